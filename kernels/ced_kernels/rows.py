"""Rows of codes: a vector as int8 codes and one scale, value = code * scale.

The scale is amax / 127 of the row, rounded to its stored type *before* the codes are taken, so that
what is stored is exactly what is read. A zero row has scale 0 and codes 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_LARGEST_HALF = 65504.0
_LEAST_SCALE = 2.0**-126


class Rows(NamedTuple):
    """Rows in one of the two stored forms."""

    codes: Tensor
    """[..., D] int8, or float32 values when `scale` is None."""
    scale: Tensor | None
    """[...] float16 or float32, one per row."""

    def values(self) -> Tensor:
        """Return [..., D] float32."""
        if self.scale is None:
            return self.codes
        return self.codes.float() * self.scale.float().unsqueeze(-1)


def quantize_rows(x: Tensor, *, scale_dtype: torch.dtype = torch.float32) -> Rows:
    """Return x as int8 codes with one scale per row.

    x [..., D] float32 -> codes [..., D] int8 in [-127, 127], scale [...] of `scale_dtype`. Ties
    round to even.
    """
    scale = x.abs().amax(-1) / 127
    if scale_dtype is torch.float16:
        scale = scale.clamp(max=_LARGEST_HALF).half()
    exact = scale.float()
    # The inverse of a smaller one is infinite, and nothing that small is worth a code.
    inverse = torch.where(exact >= _LEAST_SCALE, 1 / exact, 0).unsqueeze(-1)
    codes = (x * inverse).round_().clamp_(-127, 127).to(torch.int8)
    return Rows(codes, scale)
