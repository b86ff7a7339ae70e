"""The compressor: r consecutive tokens become one latent row (report, CSA2).

Ratio 2: a softmax per channel over the two tokens' gates weighs the sum of their projections, in
float32. Ratio 1: a projection per token. The latent is normalised; the index key is taken from it
before it is turned and rounded. A group without its last token has no row yet.

Letters: T rows, G groups, D hidden, d head dimension, r ratio.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ced_kernels.ordered.kernel_set import OrderedKernels
from ced_kernels.ordered.norm import ordered_rms_norm
from ced_kernels.ordered.rounded import ordered_sum, rounded_softmax
from cedagent.model.release import ReleaseCheckpoint
from cedagent.model.v41_config import V41Config


class Ungrouped(NamedTuple):
    """Projections of single tokens, before groups are formed."""

    kv: Tensor
    """[T, d]"""
    gate: Tensor | None
    """[T, d]; None at ratio 1."""

    def part(self, start: int, stop: int) -> Ungrouped:
        """Return some tokens' projections, copied."""
        kept = slice(start, stop)
        return Ungrouped(
            self.kv[kept].clone(), None if self.gate is None else self.gate[kept].clone()
        )

    def after(self, pending: Ungrouped) -> Ungrouped:
        """Return the tokens of `pending` and then these."""
        gate = None
        if self.gate is not None and pending.gate is not None:
            gate = torch.cat((pending.gate, self.gate))
        return Ungrouped(torch.cat((pending.kv, self.kv)), gate)


class Compressor:
    """Tensors layers.N.attn.compressor.{wkv, wgate, norm} of a KV source layer."""

    def __init__(
        self,
        checkpoint: ReleaseCheckpoint,
        config: V41Config,
        *,
        layer: int,
        kernels: OrderedKernels,
    ) -> None:
        """Read the layer's compressor."""
        self._kernels = kernels
        prefix = f"layers.{layer}.attn.compressor."
        self.ratio = config.ratio(layer)
        self._wkv = checkpoint.matrix(prefix + "wkv.weight")
        self._wgate = checkpoint.matrix(prefix + "wgate.weight") if self.ratio > 1 else None
        self._norm = checkpoint.vector(prefix + "norm.weight")
        self._eps = config.rms_norm_eps

    def project(self, x: Tensor) -> Ungrouped:
        """Return the projections of rows [T, D]."""
        kv = self._kernels.product(x, self._wkv.transposed())
        gate = None if self._wgate is None else self._kernels.product(x, self._wgate.transposed())
        return Ungrouped(kv, gate)

    def latents(self, tokens: Ungrouped) -> Tensor:
        """Return latents [G, d] of T = G r tokens, not yet turned."""
        kv = tokens.kv
        if tokens.gate is not None:
            shape = (-1, self.ratio, kv.shape[1])
            weights = rounded_softmax(tokens.gate.view(shape), dim=1)
            kv = ordered_sum(kv.view(shape) * weights, dim=1)
        return ordered_rms_norm(self._kernels, kv, self._norm, eps=self._eps)
