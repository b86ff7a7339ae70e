"""Mixture of experts: a gate, a few routed experts a token, a shared one (report, DeepSeekMoE).

Scores are sqrt(softplus(logit)); a bias steers which experts are chosen and not what they weigh.
Clamps on both halves of SwiGLU are part of the model, in the shared expert too. Experts are summed
in the order of their numbers; a row's bits do not depend on which rows an expert runs with it.

Letters: T rows, D hidden, X experts, k experts a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ced_kernels.ordered.kernel_set import OrderedKernels
from ced_kernels.ordered.rounded import ordered_sum, rounded_root_softplus, rounded_sigmoid
from cedagent.model.release import Matrix, ReleaseCheckpoint
from cedagent.model.v41_config import V41Config


class Gate:
    """Tensors layers.N.ffn.gate.{weight, bias}; in float32."""

    def __init__(
        self,
        checkpoint: ReleaseCheckpoint,
        config: V41Config,
        *,
        layer: int,
        kernels: OrderedKernels,
    ) -> None:
        """Read the layer's gate."""
        self._kernels = kernels
        self._weight = checkpoint.matrix(f"layers.{layer}.ffn.gate.weight")
        self._bias = checkpoint.vector(f"layers.{layer}.ffn.gate.bias")
        self._n_chosen = config.num_experts_per_tok
        self._temperature = config.gate_temp
        self._normalised = config.norm_topk_prob and config.num_experts_per_tok > 1
        self._scaling = config.routed_scaling_factor

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (weights [T, k] float32, experts [T, k] int64) for rows [T, D]."""
        logits = self._kernels.product(x, self._weight.transposed()) / self._temperature
        scores = rounded_root_softplus(logits)
        chosen = (scores + self._bias).topk(self._n_chosen, dim=-1).indices
        weights = scores.gather(1, chosen)
        if self._normalised:
            # 1e-20 as trained, not the norm's epsilon.
            weights = weights / (ordered_sum(weights, dim=1).unsqueeze(1) + 1e-20)
        return weights * self._scaling, chosen


class MixtureOfExperts:
    """The feed-forward of one layer."""

    def __init__(
        self,
        checkpoint: ReleaseCheckpoint,
        config: V41Config,
        *,
        layer: int,
        kernels: OrderedKernels,
    ) -> None:
        """Read gate and shared expert; routed experts are read when a row first needs them."""
        self._kernels = kernels
        self._checkpoint = checkpoint
        self._layer = layer
        self._gate = Gate(checkpoint, config, layer=layer, kernels=kernels)
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
        for expert in torch.unique(chosen).tolist():
            if expert < 0:
                continue
            matrices = self._checkpoint.expert(self._layer, expert)
            rows, place = (chosen == expert).nonzero(as_tuple=True)
            weight = weights[rows, place].unsqueeze(1)
            out[rows] += swiglu(self._kernels, x[rows], matrices, limit=self._limit, weight=weight)
        return out + swiglu(self._kernels, x, self._shared, limit=self._limit)


def swiglu(
    kernels: OrderedKernels,
    x: Tensor,
    matrices: tuple[Matrix, Matrix, Matrix],
    *,
    limit: float,
    weight: Tensor | None = None,
) -> Tensor:
    """Return weight * w2 (silu(min(w1 x, limit)) * clamp(w3 x, -limit, limit)) for rows [T, D].

    matrices are (w1, w2, w3), weight [T, 1]; a limit of 0 clamps nothing.
    """
    w1, w2, w3 = matrices
    gate, up = kernels.product(x, w1.transposed()), kernels.product(x, w3.transposed())
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    inner = gate * rounded_sigmoid(gate) * up
    out = kernels.product(inner, w2.transposed())
    return out if weight is None else weight * out
