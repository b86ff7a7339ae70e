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
        self, checkpoint: ReleaseCheckpoint, config: V41Config, *, layer: int, site: str
    ) -> None:
        """Read fn [(2 + S) S, S D], base [(2 + S) S] and scale [3] of site "attn" or "ffn"."""
        prefix = f"layers.{layer}.hc_{site}_"
        self._fn = checkpoint.vector(prefix + "fn")
        self._base = checkpoint.vector(prefix + "base")
        self._scale = checkpoint.vector(prefix + "scale")
        self._n = config.hc_mult
        self._iterations = config.hc_sinkhorn_iters
        self._eps = config.hc_eps
        self._norm_eps = config.rms_norm_eps

    def mixes(self, streams: Tensor) -> Mixes:
        """Return the coefficients for streams [T, S, D]."""
        n = self._n
        flat = streams.flatten(1)
        flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + self._norm_eps)
        mixed = flat @ self._fn.t()
        scale, base = self._scale, self._base
        pre = torch.sigmoid(mixed[:, :n] * scale[0] + base[:n]) + self._eps
        post = 2 * torch.sigmoid(mixed[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        logits = mixed[:, 2 * n :] * scale[2] + base[2 * n :]
        return Mixes(pre, post, self._balanced(logits.view(-1, n, n)))

    def _balanced(self, logits: Tensor) -> Tensor:
        """Return [T, S, S] with rows and columns summing to one: Sinkhorn, columns first."""
        comb = torch.softmax(logits, dim=-1) + self._eps
        comb = comb / (comb.sum(1, keepdim=True) + self._eps)
        for _ in range(self._iterations - 1):
            comb = comb / (comb.sum(2, keepdim=True) + self._eps)
            comb = comb / (comb.sum(1, keepdim=True) + self._eps)
        return comb


def first_pre(n_rows: int, n_streams: int) -> Tensor:
    """Return the `pre` [T, S] that enters the first layer: stream 0 alone."""
    pre = torch.zeros(n_rows, n_streams)
    pre[:, 0] = 1
    return pre


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """Return a sublayer's input [T, D] from streams [T, S, D] and `pre` [T, S]."""
    return (streams * pre.unsqueeze(-1)).sum(1)


def expand(output: Tensor, streams: Tensor, mixes: Mixes) -> Tensor:
    """Return the streams [T, S, D] after a sublayer with this output [T, D]."""
    # One product after the other: a batched product's bits could depend on the number of rows.
    mixed = mixes.post.unsqueeze(-1) * output.unsqueeze(1)
    for stream in range(streams.shape[1]):
        mixed = mixed + mixes.comb[:, stream].unsqueeze(-1) * streams[:, stream].unsqueeze(1)
    return mixed
