"""The sparse index: scores of stored rows for each query, and which of them attention reads.

Selection is a set: picks come in ascending order, so that what is summed over them has one order.
Rows that a query may not see have the score -inf and never become picks.

Letters: T queries, h index heads, k index head dimension, N stored rows, K picks, B blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ced_kernels.ordered.kernel_set import OrderedKernels
from ced_kernels.ordered.rounded import ordered_sum

_SLICE = 4096
"""Stored rows scored at a time: bounds the [T, h, N] intermediate."""


def index_scores(
    kernels: OrderedKernels, q: Tensor, keys: Tensor, weights: Tensor, *, visible: Tensor
) -> Tensor:
    """Return sum_h weights_h relu(q_h . key) for every stored row, -inf where it is not visible.

    q [T, h, k], keys [N, k], weights [T, h] with all scales in them, visible [T] int64: query t
    sees rows below visible[t] -> [T, N] float32. Source: DeepSeek-V4.1 report, lightning indexer.
    """
    n_rows, n_heads, width = q.shape
    flat = q.reshape(n_rows * n_heads, width)
    scores = torch.empty(n_rows, len(keys))
    for start in range(0, len(keys), _SLICE):
        part = keys[start : start + _SLICE]
        products = kernels.product(flat, part.t().contiguous()).relu_()
        products = products.view(n_rows, n_heads, len(part)) * weights.unsqueeze(-1)
        scores[:, start : start + len(part)] = ordered_sum(products, dim=1)
    hidden = torch.arange(len(keys)) >= visible.unsqueeze(1)
    return scores.masked_fill_(hidden, float("-inf"))


def top_picks(scores: Tensor, *, n_picks: int) -> Tensor:
    """Return the indices of the best rows per query, ascending, -1 where fewer are visible.

    scores [T, N] -> [T, min(n_picks, N)] int64. Of equal scores the oldest row wins: fp4 keys make
    exact ties common (relu gives 0), and every implementation must then read the same rows.
    """
    best = _best(scores, min(n_picks, scores.shape[1]))
    picks = best.nonzero()[:, 1].view(len(scores), min(n_picks, scores.shape[1]))
    # NaN scores compare false and become -1 too: damage must not become a row to read.
    return picks.masked_fill(~(scores.gather(1, picks) > float("-inf")), -1)


def candidate_blocks(scores: Tensor, *, visible: Tensor, n_blocks: int, block: int) -> Tensor:
    """Return which blocks of stored rows later layers may pick from: [T, B] bool.

    scores [T, N]; a block's score is its best row's. The block with a query's newest visible row is
    always kept, then the best ones up to `n_blocks` in all, of equal ones the oldest. Blocks
    without a visible row are out.
    """
    n_rows, width = scores.shape
    padded = torch.nn.functional.pad(scores, (0, -width % block), value=float("-inf"))
    best = padded.view(n_rows, padded.shape[1] // block, block).amax(-1)
    newest = ((visible - 1) // block).unsqueeze(1)
    best = best.masked_fill(torch.arange(best.shape[1]) == newest, float("inf"))
    return _best(best, min(n_blocks, best.shape[1])) & (best > float("-inf"))


def _best(scores: Tensor, n: int) -> Tensor:
    """Return exactly the n best of each row [T, N] as [T, N] bool; of equal ones the first."""
    scores = scores.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    if not n:
        return torch.zeros_like(scores, dtype=torch.bool)
    least = scores.topk(n, dim=-1).values[:, -1:]
    above, equal = scores > least, scores == least
    left = n - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1) <= left))


def keep_candidates(scores: Tensor, blocks: Tensor, *, block: int) -> Tensor:
    """Return scores [T, N] with -inf outside the candidate blocks [T, B]."""
    rows = blocks.repeat_interleave(block, dim=-1)[:, : scores.shape[1]]
    return scores.masked_fill(~rows, float("-inf"))
