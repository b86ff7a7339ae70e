"""NativeOrdered: the operations of `OrderedKernels` in compiled C, bit for bit the reference.

Knows shapes and pointers; the formulas are in ordered.c. It compiles for any CPU, since the order
of sums, and not the instruction set, decides the bits.
"""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ced_kernels.native.build import NativeUnavailable, Recipe, build, torch_openmp
from ced_kernels.native.calls import address
from ced_kernels.ordered.kernel_set import OrderedReference, PickedRows

_IS_X86 = platform.machine() == "x86_64"

RECIPE = Recipe(
    name="ced_ordered",
    folder=Path(__file__).parent,
    flags=(
        "-O3", "-std=gnu11", "-fPIC", "-ffp-contract=off",
        *(("-march=native", "-mprefer-vector-width=512") if _IS_X86 else ()),
    ),
)  # fmt: skip
"""How these kernels are compiled; contraction is off, so that nothing is fused."""

_P, _I, _F, _T = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_PRODUCT = [_P, _P, _I, _I, _I, _P, _T]
_ROW_DOTS = [_P, _P, _I, _I, _P]
_ATTEND = [_P, _P, _P, _P, _P, _P, _P, _F, _I, _I, _I, _I, _I, _P, _T]

_PARALLEL = 1 << 18
"""Multiplications below which a second thread costs more than it helps."""


def load_ordered(cache_dir: Path) -> NativeOrdered:
    """Return the compiled kernels, compiled into `cache_dir` when they are not there.

    Raises NativeUnavailable with the reason.
    """
    path = build(RECIPE, cache_dir, openmp=torch_openmp())
    try:
        return NativeOrdered(ctypes.CDLL(str(path)))
    except OSError as error:
        raise NativeUnavailable(f"{path}: cannot be loaded: {error}") from None


class NativeOrdered:
    """Compiled operations; see `OrderedKernels` for what each computes."""

    name = OrderedReference.name

    def __init__(self, library: ctypes.CDLL) -> None:
        """Take the loaded library."""
        self._product = _declared(library.ced_ordered_product, _PRODUCT, None)
        self._row_dots = _declared(library.ced_ordered_row_dots, _ROW_DOTS, None)
        self._attend = _declared(library.ced_ordered_attend, _ATTEND, _I)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Run columns side by side."""
        n_rows, inner = x.shape
        assert weight.shape[0] == inner, f"{list(x.shape)} times {list(weight.shape)}"
        n_columns = weight.shape[1]
        out = torch.empty(n_rows, n_columns)
        threads = _threads(n_rows * inner * n_columns)
        x, weight = x.contiguous(), weight.contiguous()
        self._product(address(x), address(weight), n_rows, inner, n_columns, address(out), threads)
        return out

    def row_dots(self, a: Tensor, b: Tensor) -> Tensor:
        """Run rows side by side."""
        assert a.shape == b.shape
        out = torch.empty(len(a))
        a, b = a.contiguous(), b.contiguous()
        self._row_dots(address(a), address(b), *a.shape, address(out))
        return out

    def attend(
        self,
        q: Tensor,
        window: Tensor,
        seen: tuple[Tensor, Tensor],
        picked: PickedRows,
        *,
        sinks: Tensor,
        scale: float,
    ) -> Tensor:
        """Run queries side by side, over the keys that each sees."""
        n_rows, n_heads, width = q.shape
        n_picks, most = picked.picks.shape[1], len(window) + picked.picks.shape[1]
        first, last = seen
        # The kernel follows these numbers to memory.
        assert int(first.min()) >= 0
        assert int(last.max()) <= len(window)
        assert not n_picks or int(picked.picks.max()) < len(picked.rows)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        kept = [
            part.contiguous() for part in (q, window, first, last, picked.rows, picked.picks, sinks)
        ]
        failed = self._attend(
            *map(address, kept), scale, n_rows, n_heads, width, n_picks, most, address(out),
            _threads(n_rows * n_heads * width * most),
        )  # fmt: skip
        if failed:
            raise MemoryError("attention found no memory for its scores")
        return out


def _threads(work: int) -> int:
    return torch.get_num_threads() if work >= _PARALLEL else 1


def _declared(function: Any, arguments: list[Any], result: Any) -> Any:
    function.argtypes = arguments
    function.restype = result
    return function
