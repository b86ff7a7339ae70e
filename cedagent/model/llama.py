"""One Llama layer as encoder and decoder both use it, and a decoder layer's global projection.

Knows a layer's weights and arithmetic; knows no positions beyond the angles it is given, no cache
and no mask. Letters: T rows, D hidden, Hq query heads, H key heads, d head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from cedagent.model.config import ModelConfig
from cedagent.model.linear import load_linear
from cedagent.model.weights import Checkpoint
from ced_kernels.int8_product import Int8Impl
from ced_kernels.norm import rms_norm
from ced_kernels.rope import rotate


class LlamaLayer:
    """Attention projections and feed-forward of one layer (Touvron et al. 2023, section 2.2)."""

    def __init__(
        self, checkpoint: Checkpoint, config: ModelConfig, *, layer: int, impl: Int8Impl
    ) -> None:
        """Read the layer's weights; q, k, v and gate, up are each one map."""
        prefix = f"model.layers.{layer}."
        self._config = config
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

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return rotated queries [Hq, T, d] and stacked keys and values [2, H, T, d].

        x [T, D] is the residual stream before the layer; keys are rotated, values are not.
        """
        config = self._config
        normed = rms_norm(x, self._attention_norm, eps=config.rms_norm_eps)
        heads = self._qkv(normed).view(len(x), -1, config.head_dim).transpose(0, 1)
        n_rotated = config.num_attention_heads + config.num_key_value_heads
        rotated = rotate(heads[:n_rotated], cos, sin)
        q, k = rotated[: config.num_attention_heads], rotated[config.num_attention_heads :]
        return q, torch.stack((k, heads[n_rotated:]))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the residual stream [T, D] after attention [T, Hq * d] and the feed-forward."""
        x = x + self._output(attended)
        normed = rms_norm(x, self._ffn_norm, eps=self._config.rms_norm_eps)
        gate, up = self._gate_up(normed).chunk(2, dim=-1)
        return x + self._down(silu(gate) * up)


class GlobalProjection:
    """A decoder layer's global keys and values, projected from the encoder's output."""

    def __init__(
        self, checkpoint: Checkpoint, config: ModelConfig, *, layer: int, impl: Int8Impl
    ) -> None:
        """Read global_norm, global_k and global_v of the layer."""
        prefix = f"model.layers.{layer}."
        self._config = config
        self._norm = checkpoint.vector(prefix + "global_norm.weight")
        names = [prefix + "global_k.weight", prefix + "global_v.weight"]
        self._kv = load_linear(checkpoint, names, impl=impl)

    def project(self, e_out: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return stacked keys and values [2, H, T, d] of encoder outputs [T, D]; keys rotated."""
        config = self._config
        normed = rms_norm(e_out, self._norm, eps=config.rms_norm_eps)
        heads = self._kv(normed).view(len(e_out), -1, config.head_dim).transpose(0, 1)
        k, v = heads.split(config.num_key_value_heads)
        return torch.stack((rotate(k, cos, sin), v))
