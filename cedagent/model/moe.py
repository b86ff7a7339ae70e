"""Mixture of experts: a gate, a few routed experts a token, one shared expert (report, DeepSeekMoE).

Scores are sqrt(softplus(logit)); a bias steers which experts are chosen and not what they weigh.
Clamps on both halves of SwiGLU are part of the model, in the shared expert too. An expert runs its
rows in groups of exactly 16, so that a row's bits do not depend on which rows share its tile, and
experts are summed in the order of their numbers.

Letters: T rows, D hidden, X experts, k experts a token.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from cedagent.model.release import Matrix, ReleaseCheckpoint
from cedagent.model.v41_config import V41Config

GROUP = 16
"""Rows of one expert product."""


class Gate:
    """Tensors layers.N.ffn.gate.{weight, bias}; in float32."""

    def __init__(self, checkpoint: ReleaseCheckpoint, config: V41Config, *, layer: int) -> None:
        """Read the layer's gate."""
        self._weight = checkpoint.matrix(f"layers.{layer}.ffn.gate.weight")
        self._bias = checkpoint.vector(f"layers.{layer}.ffn.gate.bias")
        self._n_chosen = config.num_experts_per_tok
        self._temperature = config.gate_temp
        self._normalised = config.norm_topk_prob and config.num_experts_per_tok > 1
        self._scaling = config.routed_scaling_factor

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (weights [T, k] float32, experts [T, k] int64) for rows [T, D]."""
        logits = functional.linear(x, self._weight.value()) / self._temperature
        scores = root_softplus(logits)
        chosen = (scores + self._bias).topk(self._n_chosen, dim=-1).indices
        weights = scores.gather(1, chosen)
        if self._normalised:
            # 1e-20 as trained, not the norm's epsilon.
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self._scaling, chosen


class MixtureOfExperts:
    """The feed-forward of one layer."""

    def __init__(self, checkpoint: ReleaseCheckpoint, config: V41Config, *, layer: int) -> None:
        """Read gate and shared expert; routed experts are read when a row first needs them."""
        self._checkpoint = checkpoint
        self._layer = layer
        self._gate = Gate(checkpoint, config, layer=layer)
        self._limit = config.swiglu_limit
        prefix = f"layers.{layer}.ffn.shared_experts."
        self._shared = (
            checkpoint.matrix(prefix + "w1.weight"),
            checkpoint.matrix(prefix + "w2.weight"),
            checkpoint.matrix(prefix + "w3.weight"),
        )

    def __call__(self, x: Tensor, routed: Tensor) -> Tensor:
        """Return the output [T, D] for rows [T, D]; only rows of `routed` [T] bool meet experts."""
        weights, chosen = self._gate(x)
        chosen = chosen.masked_fill(~routed.unsqueeze(1), -1)
        out = torch.zeros_like(x)
        group = GROUP if len(x) > 1 else 1
        for expert in chosen.unique().tolist():
            if expert < 0:
                continue
            matrices = self._checkpoint.expert(self._layer, expert)
            rows, place = (chosen == expert).nonzero(as_tuple=True)
            for start in range(0, len(rows), group):
                kept = rows[start : start + group]
                padded = x.new_zeros(group, x.shape[1])
                padded[: len(kept)] = x[kept]
                weight = x.new_zeros(group, 1)
                weight[: len(kept), 0] = weights[kept, place[start : start + group]]
                out[kept] += swiglu(padded, matrices, limit=self._limit, weight=weight)[: len(kept)]
        return out + swiglu(x, self._shared, limit=self._limit)


def root_softplus(logits: Tensor) -> Tensor:
    """Return sqrt(log(1 + e^x)), also where e^x underflows beside 1."""
    return functional.softplus(logits, threshold=20).sqrt()


def swiglu(
    x: Tensor,
    matrices: tuple[Matrix, Matrix, Matrix],
    *,
    limit: float,
    weight: Tensor | None = None,
) -> Tensor:
    """Return w2 (weight * silu(min(w1 x, limit)) * clamp(w3 x, -limit, limit)) for rows [T, D].

    matrices are (w1, w2, w3), weight [T, 1]; a limit of 0 clamps nothing.
    """
    w1, w2, w3 = matrices
    gate, up = functional.linear(x, w1.value()), functional.linear(x, w3.value())
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    inner = functional.silu(gate) * up
    if weight is not None:
        inner = weight * inner
    return functional.linear(inner, w2.value())
