"""One Llama layer as encoder and decoder both use it, and a decoder layer's global projection.

Knows a layer's weights and the order of its operations; knows no positions beyond the angles it is
given and no mask. Letters: T rows, D hidden, Hq query heads, H key heads, d head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from ced_kernels.attention import KeySpan
from ced_kernels.int8_product import Int8Impl
from ced_kernels.kernel_set import KernelSet, LayerWeights, Product
from ced_kernels.rows import Rows
from cedagent.model.llama.cache import KvCache
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.linear import load_linear
from cedagent.model.llama.weights import Checkpoint


class Arithmetic(NamedTuple):
    """Which code runs a model's layers."""

    impl: Int8Impl
    """The exact int8 product; its choice changes no bit."""
    kernels: KernelSet
    """Everything between the products."""


class LlamaLayer:
    """Attention projections and feed-forward of one layer (Touvron et al. 2023, section 2.2)."""

    def __init__(
        self, checkpoint: Checkpoint, config: LlamaConfig, *, layer: int, arithmetic: Arithmetic
    ) -> None:
        """Read the layer's weights; q, k, v and gate, up are each one map."""
        prefix = f"model.layers.{layer}."
        impl, self._kernels = arithmetic
        self._eps = config.rms_norm_eps
        self._n_q = config.num_attention_heads
        self._scale = config.head_dim**-0.5
        self._attention_norm = checkpoint.vector(prefix + "input_layernorm.weight")
        self._qkv = load_linear(
            checkpoint, [f"{prefix}self_attn.{name}_proj.weight" for name in "qkv"], impl=impl
        )
        self._output = load_linear(checkpoint, [prefix + "self_attn.o_proj.weight"], impl=impl)
        self._ffn_norm = checkpoint.vector(prefix + "post_attention_layernorm.weight")
        self._gate_up = load_linear(
            checkpoint, [f"{prefix}mlp.{name}_proj.weight" for name in ("gate", "up")], impl=impl
        )
        self._down = load_linear(checkpoint, [prefix + "mlp.down_proj.weight"], impl=impl)
        self._row = self._kernels.row_layer(
            LayerWeights(
                attention_norm=self._attention_norm,
                qkv=self._qkv.stored,
                output=self._output.stored,
                ffn_norm=self._ffn_norm,
                gate_up=self._gate_up.stored,
                down=self._down.stored,
                n_q=self._n_q,
                head_dim=config.head_dim,
                eps=self._eps,
                scale=self._scale,
            )
        )

    def run(
        self,
        x: Tensor,
        angles: tuple[Tensor, Tensor],
        own: KvCache | None,
        spans: Callable[[], Sequence[KeySpan]],
        *,
        start: int,
    ) -> Tensor:
        """Return the residual stream [T, D] after the layer, writing its rows from `start` on.

        `spans` is asked once the cache has room for the rows.
        """
        if self._row is None or len(x) > 1:
            return self.finish(x, self.project(x, angles, own, start=start), spans())
        if own is None:
            return self._row(x, *angles, None, 0, spans())
        out = own.room(start, start + 1)
        return self._row(x, *angles, out, start - own.base, spans())

    def project(
        self, x: Tensor, angles: tuple[Tensor, Tensor], own: KvCache | None, *, start: int
    ) -> Rows:
        """Return rotated queries [Hq, T, d]; write the layer's own keys and values from `start` on.

        x [T, D] is the residual stream before the layer. Without a cache nothing is written.
        """
        normed = self._kernels.norm_rows(x, self._attention_norm, eps=self._eps)
        return _split(self._kernels, self._qkv(normed), angles, self._n_q, own, start)

    def finish(self, x: Tensor, q: Rows, spans: Sequence[KeySpan]) -> Tensor:
        """Return the residual stream [T, D] after attention to `spans` and the feed-forward."""
        kernels = self._kernels
        attended = kernels.quantize(kernels.attend(q, spans, scale=self._scale))
        x, normed = kernels.add_norm_rows(x, self._output(attended), self._ffn_norm, eps=self._eps)
        return kernels.add(x, self._down(kernels.gate_rows(self._gate_up(normed))))


class GlobalProjection:
    """A decoder layer's global keys and values, projected from the encoder's output."""

    def __init__(
        self, checkpoint: Checkpoint, config: LlamaConfig, *, layer: int, arithmetic: Arithmetic
    ) -> None:
        """Read global_norm, global_k and global_v of the layer."""
        prefix = f"model.layers.{layer}."
        impl, self._kernels = arithmetic
        self._eps = config.rms_norm_eps
        self._norm = checkpoint.vector(prefix + "global_norm.weight")
        names = [prefix + "global_k.weight", prefix + "global_v.weight"]
        self._kv = load_linear(checkpoint, names, impl=impl)

    def write(
        self, e_out: Tensor, angles: tuple[Tensor, Tensor], cache: KvCache, *, start: int
    ) -> None:
        """Write the keys, rotated, and values of encoder outputs [T, D] from `start` on."""
        normed = self._kernels.norm_rows(e_out, self._norm, eps=self._eps)
        _split(self._kernels, self._kv(normed), angles, 0, cache, start)


def _split(
    kernels: KernelSet,
    product: Product,
    angles: tuple[Tensor, Tensor],
    n_q: int,
    cache: KvCache | None,
    start: int,
) -> Rows:
    cos, sin = angles
    if cache is None:
        return kernels.split_heads(product, cos, sin, n_q=n_q, out=None, first=0)
    out = cache.room(start, start + len(cos))
    return kernels.split_heads(product, cos, sin, n_q=n_q, out=out, first=start - cache.base)
