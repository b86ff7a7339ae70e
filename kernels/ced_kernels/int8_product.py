"""Exact products of int8 codes: C = A B^T in int32, with two implementations of equal bits.

`int_mm` is torch's int8 product. On CPUs without VNNI it saturates inside and is silently wrong, so
`choose_impl` checks it once on extreme codes. `int8_fp32` multiplies the codes in float32 with the
inner dimension cut so that every partial sum stays below 2^24, hence exact, and adds the parts as
int32. Both are exact, so a row's result does not depend on how many rows share the call.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Int8Impl = Literal["int_mm", "int8_fp32"]
"""Which code runs; the results have the same bits."""

_MAX_CODE = 127
_SPLIT = 1024
"""Longest inner dimension whose float32 sums stay exact: 1024 * 127^2 < 2^24."""


def int8_product(a: Tensor, b: Tensor, *, impl: Int8Impl) -> Tensor:
    """Return A B^T exactly.

    a [M, K] int8, b [N, K] int8 (or float32 holding the same codes, which `int8_fp32` then need not
    convert) -> [M, N] int32. Codes must lie in [-127, 127].
    """
    if impl == "int_mm":
        return torch._int_mm(a, b.t())
    a_values, b_values = a.float(), b.float()
    k = a.shape[1]
    if k <= _SPLIT:
        return (a_values @ b_values.t()).int()
    total = torch.zeros(a.shape[0], b.shape[0], dtype=torch.int32)
    for start in range(0, k, _SPLIT):
        part = a_values[:, start : start + _SPLIT] @ b_values[:, start : start + _SPLIT].t()
        total += part.int()
    return total


def is_exact(impl: Int8Impl) -> bool:
    """Return whether `impl` multiplies extreme codes exactly on this CPU.

    The shapes are those that decode (one row), attention (few rows) and tiles (128 rows) use; the
    library may choose another routine for each.
    """
    n, k = 64, 1536
    signs = torch.ones(n, k, dtype=torch.int64)
    signs[1::2] = -1
    signs[2::3, ::2] = -1
    b = (signs * _MAX_CODE).to(torch.int8)
    for m in (1, 3, 128):
        a = b.roll(1, 0).repeat(2, 1)[:m].contiguous()
        if not torch.equal(int8_product(a, b, impl=impl).long(), a.long() @ b.long().t()):
            return False
    return True


def choose_impl() -> Int8Impl:
    """Return "int_mm" where it is exact on this CPU, else "int8_fp32"."""
    return "int_mm" if is_exact("int_mm") else "int8_fp32"
