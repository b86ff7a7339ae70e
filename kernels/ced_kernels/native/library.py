"""NativeKernels: the operations of `KernelSet` in compiled C, called through ctypes.

Knows shapes and pointers; every formula is in the C files and, as its specification, in
`ReferenceKernels`. One instance serves one caller at a time: it keeps scratch memory between calls.
Bits depend neither on the number of threads nor on the company of a row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ced_kernels.attention import KeySpan
from ced_kernels.kernel_set import LayerWeights, Product
from ced_kernels.native.build import NativeUnavailable, Recipe, build, torch_openmp
from ced_kernels.native.calls import (
    Scratch,
    address,
    declare,
    key_threads,
    row_threads,
    span_words,
)
from ced_kernels.native.layer_row import NativeRowLayer
from ced_kernels.rows import Rows

MAX_HEAD_DIM = 128

# Explicit instruction sets instead of -march=native: the same instructions, hence the same bits, on
# every CPU that has them. Contraction is off so that only what is written as fmadd is fused.
RECIPE = Recipe(
    name="ced_kernels",
    folder=Path(__file__).parent,
    flags=(
        "-O3", "-std=gnu11", "-fPIC", "-ffp-contract=off", "-mprefer-vector-width=512", "-mavx512f",
        "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma", "-mf16c",
    ),
    cpu_flags=frozenset(
        ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma", "f16c")
    ),
)  # fmt: skip
"""How these kernels are compiled."""


def load_native(cache_dir: Path, *, head_dim: int) -> NativeKernels:
    """Return the native kernels, compiled into `cache_dir` when they are not there.

    Raises NativeUnavailable with the reason, also for a head dimension that they do not serve.
    """
    if head_dim % 4 or head_dim > MAX_HEAD_DIM:
        raise NativeUnavailable(
            f"they serve head dimensions that are multiples of 4 up to {MAX_HEAD_DIM}, "
            f"got {head_dim}"
        )
    path = build(RECIPE, cache_dir, openmp=torch_openmp())
    try:
        return NativeKernels(ctypes.CDLL(str(path)))
    except OSError as error:
        raise NativeUnavailable(f"{path}: cannot be loaded: {error}") from None


class NativeKernels:
    """Compiled operations; see `KernelSet` for what each computes."""

    name = "native 1 avx512"

    def __init__(self, library: ctypes.CDLL) -> None:
        """Take the loaded library."""
        declare(library)
        self._library = library
        self._scratch = Scratch()

    def quantize(self, x: Tensor) -> Rows:
        """Take codes and scale of each row."""
        n_rows, width = x.shape
        rows = _empty_rows(n_rows, width)
        self._library.ced_quantize(
            address(x), n_rows, width, address(rows[0]), address(rows[1]), row_threads(n_rows)
        )
        return Rows(*rows)

    def norm_rows(self, x: Tensor, weight: Tensor, *, eps: float) -> Rows:
        """Normalise and quantise each row in one pass."""
        n_rows, width = x.shape
        rows = _empty_rows(n_rows, width)
        self._library.ced_norm_rows(
            address(x),
            address(weight),
            eps,
            n_rows,
            width,
            address(rows[0]),
            address(rows[1]),
            row_threads(n_rows),
        )
        return Rows(*rows)

    def dequantize(self, product: Product) -> Tensor:
        """Apply both scales."""
        return self._sum(None, product)

    def add(self, x: Tensor, product: Product) -> Tensor:
        """Apply both scales and add."""
        return self._sum(x, product)

    def _sum(self, x: Tensor | None, product: Product) -> Tensor:
        n_rows, width = product.codes.shape
        assert x is None or x.shape == product.codes.shape
        out = torch.empty(n_rows, width)
        self._library.ced_dequantize(
            None if x is None else address(x), *_addresses(product), n_rows, width, address(out),
            row_threads(n_rows),
        )  # fmt: skip
        return out

    def add_norm_rows(
        self, x: Tensor, product: Product, weight: Tensor, *, eps: float
    ) -> tuple[Tensor, Rows]:
        """Add, normalise and quantise each row in one pass."""
        assert product.codes.shape == x.shape
        n_rows, width = x.shape
        out, rows = torch.empty(n_rows, width), _empty_rows(n_rows, width)
        self._library.ced_add_norm_rows(
            address(x), *_addresses(product), address(weight), eps, n_rows, width, address(out),
            address(rows[0]), address(rows[1]), row_threads(n_rows),
        )  # fmt: skip
        return out, Rows(*rows)

    def gate_rows(self, product: Product) -> Rows:
        """Gate and quantise each row in one pass."""
        n_rows, width = product.codes.shape[0], product.codes.shape[1] // 2
        rows = _empty_rows(n_rows, width)
        self._library.ced_gate_rows(
            *_addresses(product),
            n_rows,
            width,
            address(rows[0]),
            address(rows[1]),
            row_threads(n_rows),
        )
        return Rows(*rows)

    def split_heads(
        self, product: Product, cos: Tensor, sin: Tensor, *, n_q: int, out: Rows | None, first: int
    ) -> Rows:
        """Rotate and quantise each row's heads in one pass, keys and values into the cache."""
        n_rows, head_dim = cos.shape
        n_kv = (product.codes.shape[1] // head_dim - n_q) // 2
        codes = torch.empty(n_q, n_rows, head_dim, dtype=torch.int8)
        scale = torch.empty(n_q, n_rows)
        keys, key_scale, capacity = None, None, 0
        if out is not None and out.scale is not None:
            keys, key_scale, capacity = address(out.codes), address(out.scale), out.codes.shape[2]
            assert first + n_rows <= capacity
        self._library.ced_split_heads(
            *_addresses(product), address(cos), address(sin), n_rows, n_q, n_kv, head_dim,
            address(codes), address(scale), keys, key_scale, capacity, first, row_threads(n_rows),
        )  # fmt: skip
        return Rows(codes, scale)

    def attend(self, q: Rows, spans: Sequence[KeySpan], *, scale: float) -> Tensor:
        """Score, exponentiate and weigh in blocks; one query row is cut along its keys instead."""
        n_heads, n_queries, head_dim = q.codes.shape
        n_kv = spans[0].rows.codes.shape[1]
        words, library = span_words(spans), self._library
        assert q.scale is not None
        out = torch.empty(n_queries, n_heads * head_dim)
        group = n_heads // n_kv
        if n_queries == 1:
            size = library.ced_attend_row_scratch(words, len(spans), n_heads)
            library.ced_attend_row(
                address(q.codes), address(q.scale), words, len(spans), n_kv, group, head_dim, scale,
                address(out), self._scratch.at(size), key_threads(spans),
            )  # fmt: skip
            return out
        threads = torch.get_num_threads()
        size = library.ced_attend_tile_scratch(words, len(spans), n_kv, head_dim, threads)
        library.ced_attend_tile(
            address(q.codes), address(q.scale), words, len(spans), n_kv, group, n_queries, head_dim,
            scale, address(out), self._scratch.at(size), threads,
        )  # fmt: skip
        return out

    def row_layer(self, weights: LayerWeights) -> NativeRowLayer | None:
        """Run one row through a layer of int8 weights in one call."""
        matrices = (weights.qkv, weights.output, weights.gate_up, weights.down)
        if any(matrix.codes.dtype is not torch.int8 for matrix in matrices):
            return None
        return NativeRowLayer(self._library, weights, self._scratch)


def _empty_rows(n_rows: int, width: int) -> tuple[Tensor, Tensor]:
    return torch.empty(n_rows, width, dtype=torch.int8), torch.empty(n_rows)


def _addresses(product: Product) -> tuple[int, int, int]:
    assert product.channel_scale is not None
    assert product.row_scale is not None
    return address(product.codes), address(product.channel_scale), address(product.row_scale)
