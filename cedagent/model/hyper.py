"""Hyper-connections: four residual streams, mixed around every sublayer (report, mHC).

One projection of the normalised streams gives three sets of coefficients: `pre` collapses the
streams into a sublayer's input, `post` spreads its output over them, `comb` mixes what stays. A
sublayer is entered with the `pre` of the sublayer before it, so `pre` travels with the streams from
layer to layer and from the encoder to the decoder.

Letters: T rows, S streams, D hidden.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ced_kernels.ordered.kernel_set import OrderedKernels
from ced_kernels.ordered.norm import ordered_rms_norm
from ced_kernels.ordered.rounded import ordered_sum, rounded_sigmoid, rounded_softmax
from cedagent.model.release import ReleaseCheckpoint
from cedagent.model.v41_config import V41Config


class Mixes(NamedTuple):
    """The coefficients of one sublayer."""

    pre: Tensor
    """[T, S]: enters the next sublayer."""
    post: Tensor
    """[T, S]"""
    comb: Tensor
    """[T, S, S]: row j of the old streams goes to column k of the new ones."""


class HyperConnection:
    """The mixing of one sublayer; tensors hc_attn_* or hc_ffn_*."""

    def __init__(
        self,
        checkpoint: ReleaseCheckpoint,
        config: V41Config,
        *,
        layer: int,
        site: str,
        kernels: OrderedKernels,
    ) -> None:
        """Read fn [(2 + S) S, S D], base [(2 + S) S] and scale [3] of site "attn" or "ffn"."""
        self._kernels = kernels
        prefix = f"layers.{layer}.hc_{site}_"
        self._fn = checkpoint.vector(prefix + "fn").t().contiguous()
        self._base = checkpoint.vector(prefix + "base")
        self._scale = checkpoint.vector(prefix + "scale")
        self._n = config.hc_mult
        self._iterations = config.hc_sinkhorn_iters
        self._eps = config.hc_eps
        self._norm_eps = config.rms_norm_eps

    def mixes(self, streams: Tensor) -> Mixes:
        """Return the coefficients for streams [T, S, D]."""
        n = self._n
        flat = ordered_rms_norm(self._kernels, streams.flatten(1), None, eps=self._norm_eps)
        mixed = self._kernels.product(flat, self._fn)
        scale, base = self._scale, self._base
        pre = rounded_sigmoid(mixed[:, :n] * scale[0] + base[:n]) + self._eps
        post = 2 * rounded_sigmoid(mixed[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        logits = mixed[:, 2 * n :] * scale[2] + base[2 * n :]
        return Mixes(pre, post, self._balanced(logits.view(-1, n, n)))

    def _balanced(self, logits: Tensor) -> Tensor:
        """Return [T, S, S] with rows and columns summing to one: Sinkhorn, columns first."""
        comb = self._normalised(rounded_softmax(logits, dim=2) + self._eps, dim=1)
        for _ in range(self._iterations - 1):
            comb = self._normalised(self._normalised(comb, dim=2), dim=1)
        return comb

    def _normalised(self, comb: Tensor, *, dim: int) -> Tensor:
        return comb / (ordered_sum(comb, dim=dim).unsqueeze(dim) + self._eps)


def first_pre(n_rows: int, n_streams: int) -> Tensor:
    """Return the `pre` [T, S] that enters the first layer: stream 0 alone."""
    pre = torch.zeros(n_rows, n_streams)
    pre[:, 0] = 1
    return pre


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """Return a sublayer's input [T, D] from streams [T, S, D] and `pre` [T, S]."""
    return ordered_sum(streams * pre.unsqueeze(-1), dim=1)


def expand(output: Tensor, streams: Tensor, mixes: Mixes) -> Tensor:
    """Return the streams [T, S, D] after a sublayer with this output [T, D]."""
    mixed = mixes.post.unsqueeze(-1) * output.unsqueeze(1)
    for stream in range(streams.shape[1]):
        mixed = mixed + mixes.comb[:, stream].unsqueeze(-1) * streams[:, stream].unsqueeze(1)
    return mixed
