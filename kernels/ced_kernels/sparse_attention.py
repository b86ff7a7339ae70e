"""Attention of T rows over a window of keys and a few picked rows, one softmax, with sinks.

Key and value are the same row, shared by all heads. A sink is a logit of its head that joins the
denominator alone. Picks and window may name the same token; both count, as trained.

Letters: T rows, H heads, d head dimension, n window keys, N stored rows, K picks.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sparse_attention(
    q: Tensor,
    window: Tensor,
    seen: tuple[Tensor, Tensor],
    rows: Tensor,
    picks: Tensor,
    *,
    sinks: Tensor,
    scale: float,
) -> Tensor:
    """Return softmax([q window^T, q rows[picks]^T, sink] * scale) [window, rows[picks], 0].

    q [T, H, d], window [n, d], seen two [T] int32: row t sees window keys seen[0][t] <= j <
    seen[1][t]; rows [N, d], picks [T, K] int64 with -1 for none, sinks [H] -> [T, H, d] float32.
    A row that sees no key gives 0. Source: DeepSeek-V4.1 report (arXiv 2609.19969), CSA2; the sink
    is not scaled.
    """
    n_rows, n_heads, width = q.shape
    n_window, n_picks = len(window), picks.shape[1]
    scores = torch.empty(n_rows, n_heads, n_window + n_picks)
    flat = q.reshape(n_rows * n_heads, width)
    scores[..., :n_window] = (flat @ window.t()).view(n_rows, n_heads, n_window)
    key = torch.arange(n_window, dtype=torch.int32)
    hidden = (key < seen[0].unsqueeze(1)) | (key >= seen[1].unsqueeze(1))
    scores[..., :n_window].masked_fill_(hidden.unsqueeze(1), float("-inf"))
    picked = None
    if n_picks:
        picked = rows[picks.clamp(min=0)]
        scores[..., n_window:] = torch.bmm(q, picked.transpose(1, 2))
        scores[..., n_window:].masked_fill_((picks < 0).unsqueeze(1), float("-inf"))
    scores.mul_(scale)
    sink = sinks.view(1, n_heads, 1)
    # The sink is finite, so the largest logit is, too: a row without keys divides 0 by 1.
    largest = scores.amax(-1, keepdim=True).maximum(sink)
    weights = (scores - largest).exp_()
    weights /= weights.sum(-1, keepdim=True) + (sink - largest).exp()
    own = weights[..., :n_window].reshape(n_rows * n_heads, n_window)
    out = (own @ window).view(n_rows, n_heads, width)
    return out if picked is None else out + torch.bmm(weights[..., n_window:], picked)
