"""Moves outliers from activations into weights, so that int8 loses less of both.

A row of activations shares one scale, so a channel that is always large takes the codes from the
others. Dividing each channel by s and multiplying the weight's column by s changes no result in
exact arithmetic; the division goes into what makes the channel: a norm's weight, or the rows of the
matrix before (Xiao et al. 2022, arXiv 2211.10438, section 4, with one share for all maps). Knows no
file and no calibration text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ced_kernels.attention import KeySpan
from ced_kernels.kernel_set import Product, ReferenceKernels
from ced_kernels.rows import Rows
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import EMBEDDING, HEAD

SHARE = 0.6
"""Share of a channel's size that moves into the weight.

SmolLM2-135M, E = 20, KL of int8 to float32 at positions 256-1024 of prose, mean / worst: 0.030 /
0.32 without, 0.0153 / 0.13 here.
"""

_LEAST = 1e-5
"""Channels and columns smaller than this count as this large."""


class Peaks(ReferenceKernels):
    """The reference kernels, which also note each channel's largest size before every map."""

    def __init__(self) -> None:
        """Note nothing yet."""
        super().__init__(None)
        self.of: dict[str, Tensor] = {}
        """Map -> [K]: qkv, output, gate_up, down."""

    def norm_rows(self, x: Tensor, weight: Tensor, *, eps: float) -> Rows:
        """Note what enters qkv."""
        return self._noted("qkv", super().norm_rows(x, weight, eps=eps))

    def attend(self, q: Rows, spans: Sequence[KeySpan], *, scale: float) -> Tensor:
        """Note what enters the output map."""
        attended = super().attend(q, spans, scale=scale)
        self._noted("output", Rows(attended, None))
        return attended

    def add_norm_rows(
        self, x: Tensor, product: Product, weight: Tensor, *, eps: float
    ) -> tuple[Tensor, Rows]:
        """Note what enters gate and up."""
        total = x + product.values()
        # Past our own norm_rows, which would take it for what enters qkv.
        return total, self._noted("gate_up", super().norm_rows(total, weight, eps=eps))

    def gate_rows(self, product: Product) -> Rows:
        """Note what enters down."""
        return self._noted("down", super().gate_rows(product))

    def _noted(self, name: str, rows: Rows) -> Rows:
        self.of[name] = larger(self.of.get(name), rows.values())
        return rows


def larger(before: Tensor | None, x: Tensor) -> Tensor:
    """Return each channel's largest size [K] in x [T, K] and in what was noted before."""
    peak = x.abs().amax(0)
    return peak if before is None else torch.maximum(before, peak)


def smoothed(
    tensors: Mapping[str, Tensor],
    config: LlamaConfig,
    peaks: Mapping[int, Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Return tensors of the same function whose maps quantise better.

    `peaks[layer]` holds what `Peaks` noted, and `global` for what enters a decoder layer's global
    projection; the last layer's `head` is for what enters the head, which is made apart from the
    embedding.
    """
    made = dict(tensors)
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        peak = peaks[layer]
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        inputs = [f"{attention}{name}_proj.weight" for name in "qkv"]
        _fold(made, peak["qkv"], inputs, vectors=[prefix + "input_layernorm.weight"])
        gates = [f"{mlp}{name}_proj.weight" for name in ("gate", "up")]
        _fold(made, peak["gate_up"], gates, vectors=[prefix + "post_attention_layernorm.weight"])
        _fold(made, peak["down"], [mlp + "down_proj.weight"], vectors=[mlp + "up_proj.weight"])
        values = [attention + "v_proj.weight"]
        if layer >= config.n_encoder_layers:
            pair = [prefix + "global_k.weight", prefix + "global_v.weight"]
            _fold(made, peak["global"], pair, vectors=[prefix + "global_norm.weight"])
            values.append(pair[1])
        group = config.num_attention_heads // config.num_key_value_heads
        _fold(
            made,
            peak["output"],
            [attention + "o_proj.weight"],
            vectors=values,
            shared=(config.num_key_value_heads, group),
        )
    made.setdefault(HEAD, made[EMBEDDING])
    last = peaks[config.num_hidden_layers - 1]
    _fold(made, last["head"], [HEAD], vectors=["model.norm.weight"])
    return made


def _fold(
    made: dict[str, Tensor],
    peak: Tensor,
    matrices: Sequence[str],
    *,
    vectors: Sequence[str],
    shared: tuple[int, int] | None = None,
) -> None:
    """Divide what makes the channels (`vectors`: norms [K] or matrices [K, D]) by s, and multiply
    the columns of `matrices` [N, K] by it.

    `shared` (H, G): channels are H * G heads, and the G heads of a group come from one value head.
    """
    column = torch.stack([made[name].abs().amax(0) for name in matrices]).amax(0)
    if shared is not None:
        peak = peak.view(*shared, -1).amax(1)
        column = column.view(*shared, -1).amax(1)
    s = peak.clamp(min=_LEAST) ** SHARE / column.clamp(min=_LEAST) ** (1 - SHARE)
    for name in vectors:
        maker = made[name]
        made[name] = maker / (s.flatten() if maker.ndim == 1 else s.flatten().unsqueeze(1))
    if shared is not None:
        s = s.unsqueeze(1).expand(-1, shared[1], -1)
    for name in matrices:
        made[name] = made[name] * s.flatten()
