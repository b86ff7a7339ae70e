"""A whole layer for one row in one call: what each token that is decoded runs.

The bits are those of the operations called one after the other; only the way between them is saved.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from ced_kernels.attention import KeySpan
from ced_kernels.kernel_set import LayerWeights
from ced_kernels.native.calls import Scratch, address, key_threads, span_words
from ced_kernels.rows import Rows


class _Layer(ctypes.Structure):
    """`layer_t` of layer_row.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "attention_norm", "ffn_norm", "qkv", "qkv_scale", "output", "output_scale", "gate_up",
            "gate_up_scale", "down", "down_scale",
        )),
        *((name, ctypes.c_int64) for name in ("hidden", "n_q", "n_kv", "dim", "inner")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
    )  # fmt: skip


class NativeRowLayer:
    """One layer's weights, ready to run a row."""

    def __init__(self, library: ctypes.CDLL, weights: LayerWeights, scratch: Scratch) -> None:
        """Keep the weights; their addresses must not change."""
        self._library = library
        self._scratch = scratch
        self._weights = weights
        matrices = (weights.qkv, weights.output, weights.gate_up, weights.down)
        places = [address(weights.attention_norm), address(weights.ffn_norm)]
        for matrix in matrices:
            assert matrix.scale is not None
            places += (address(matrix.codes), address(matrix.scale))
        head_dim = weights.head_dim
        n_kv = (len(weights.qkv.codes) // head_dim - weights.n_q) // 2
        inner, hidden = len(weights.gate_up.codes) // 2, len(weights.attention_norm)
        self._layer = _Layer(
            *places, hidden, weights.n_q, n_kv, head_dim, inner, weights.eps, weights.scale
        )
        self._at = ctypes.addressof(self._layer)

    def __call__(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        out: Rows | None,
        first: int,
        spans: Sequence[KeySpan],
    ) -> Tensor:
        """Return the residual stream [1, D] after the layer; write its row of keys and values."""
        library, words, n_spans = self._library, span_words(spans), len(spans)
        keys, key_scale, capacity = None, None, 0
        if out is not None and out.scale is not None:
            keys, key_scale, capacity = address(out.codes), address(out.scale), out.codes.shape[2]
            assert first < capacity
        result = torch.empty(1, self._layer.hidden)
        memory = self._scratch.at(library.ced_layer_row_scratch(self._at, words, n_spans))
        library.ced_layer_row(
            self._at, address(x), address(cos), address(sin), keys, key_scale, capacity, first,
            words, n_spans, result.data_ptr(), memory, torch.get_num_threads(), key_threads(spans),
        )  # fmt: skip
        return result
