"""How Python calls the compiled library: argument types, addresses, and the layout of spans.

Knows the C files' signatures; a test calls every one of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from ced_kernels.attention import KeySpan

_P, _I, _F, _T = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int

_SIGNATURES: dict[str, list[type]] = {
    "ced_quantize": [_P, _I, _I, _P, _P, _T],
    "ced_norm_rows": [_P, _P, _F, _I, _I, _P, _P, _T],
    "ced_dequantize": [_P, _P, _P, _P, _I, _I, _P, _T],
    "ced_add_norm_rows": [_P, _P, _P, _P, _P, _F, _I, _I, _P, _P, _P, _T],
    "ced_gate_rows": [_P, _P, _P, _I, _I, _P, _P, _T],
    "ced_split_heads": [_P, _P, _P, _P, _P, _I, _I, _I, _I, _P, _P, _P, _P, _I, _I, _T],
    "ced_product_row": [_P, _P, _I, _I, _P, _T],
    "ced_attend_tile": [_P, _P, _P, _I, _I, _I, _I, _I, _F, _P, _P, _T],
    "ced_attend_tile_scratch": [_P, _I, _I, _I, _T],
    "ced_attend_row": [_P, _P, _P, _I, _I, _I, _I, _F, _P, _P, _T],
    "ced_attend_row_scratch": [_P, _I, _I],
    "ced_layer_row": [_P, _P, _P, _P, _P, _P, _I, _I, _P, _I, _P, _P, _T, _T],
    "ced_layer_row_scratch": [_P, _P, _I],
}

_PARALLEL_ROWS = 16
"""Fewer rows than this are one thread's work: waking another costs more."""
_PARALLEL_KEYS = 1024
"""The same for the keys that one query row reads."""


def declare(library: ctypes.CDLL) -> None:
    """Give every function its argument types; sizes of scratch are returned as integers."""
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = _I if name.endswith("_scratch") else None


class Scratch:
    """Memory that grows and is kept between calls of one caller at a time."""

    def __init__(self) -> None:
        """Start empty."""
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._size = 0

    def at(self, size: int) -> int:
        """Return the address of at least `size` bytes, of any content."""
        if self._size < size:
            self._size = size + size // 4
            self._memory = torch.empty(self._size, dtype=torch.uint8)
        return self._memory.data_ptr()


def address(tensor: Tensor) -> int:
    """Return where a contiguous tensor's elements are."""
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def span_words(spans: Sequence[KeySpan]) -> ctypes.Array[ctypes.c_int64]:
    """Return the spans as an array of the C struct `span_t`: eight words each."""
    words: list[int] = []
    for (codes, scale), start, stop, seen_from, seen_to in spans:
        assert scale is not None
        _, n_kv, capacity, head_dim = codes.shape
        key, key_scale = address(codes) + start * head_dim, address(scale) + start * 2
        words += (
            key, key + n_kv * capacity * head_dim, key_scale, key_scale + n_kv * capacity * 2,
            capacity, stop - start, 0 if seen_from is None else address(seen_from),
            0 if seen_to is None else address(seen_to),
        )  # fmt: skip
    return (ctypes.c_int64 * len(words))(*words)


def row_threads(n_rows: int) -> int:
    """Return how many threads share this many rows."""
    return torch.get_num_threads() if n_rows >= _PARALLEL_ROWS else 1


def key_threads(spans: Sequence[KeySpan]) -> int:
    """Return how many threads share the keys of one query row."""
    n_keys = sum(span.stop - span.start for span in spans)
    return torch.get_num_threads() if n_keys >= _PARALLEL_KEYS else 1
