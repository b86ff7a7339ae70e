"""OrderedKernels: products, row sums and attention in float32 with one order of summation.

Every product and every sum is rounded, terms are added first to last, and nothing is fused. So a
row's bits do not depend on the rows beside it, on how many keys are hidden from it, on threads, on
vector width or on a library's choice of algorithm. `OrderedReference` is the specification in plain
torch; compiled kernels are compared with it bit by bit.

Letters: M rows, K inner dimension, N columns, T queries, H heads, d head dimension, n window keys,
P picks, R stored rows.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ced_kernels.ordered.rounded import rounded_exp


class PickedRows(NamedTuple):
    """Stored rows and which of them each query reads."""

    rows: Tensor
    """[R, d] float32"""
    picks: Tensor
    """[T, P] int64, -1 for none."""


class OrderedKernels(Protocol):
    """What a V4.1 model's arithmetic is made of, beside elementwise operations."""

    @property
    def name(self) -> str:
        """A name that all implementations with the same bits share."""
        ...

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x weight: [M, K] and [K, N] float32 -> [M, N], summed over k = 0, 1, ..."""
        ...

    def row_dots(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the sums over columns of a * b: two [M, N] float32 -> [M], first to last."""
        ...

    def attend(
        self,
        q: Tensor,
        window: Tensor,
        seen: tuple[Tensor, Tensor],
        picked: PickedRows,
        *,
        sinks: Tensor,
        scale: float,
    ) -> Tensor:
        """Return softmax([q window^T, q picked^T] * scale, sink) [window, picked, 0].

        q [T, H, d]; window [n, d], key and value of all heads; seen two [T] int32: query t sees
        window keys seen[0][t] <= j < seen[1][t]; sinks [H] join the denominator alone -> [T, H, d].
        Window keys come before picks; a row that both name counts twice; a query without keys gives
        0. Source: DeepSeek-V4.1 report (arXiv 2609.19969), CSA2 with attention sinks.
        """
        ...


class OrderedReference:
    """The specification: loops over the summed dimension in plain torch."""

    name = "ordered float32"

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Add one rank-1 product after the other."""
        out = x.new_zeros(len(x), weight.shape[1])
        for k in range(x.shape[1]):
            out += x[:, k : k + 1] * weight[k]
        return out

    def row_dots(self, a: Tensor, b: Tensor) -> Tensor:
        """Add one column after the other."""
        products = a * b
        out = a.new_zeros(len(a))
        for column in range(a.shape[1]):
            out += products[:, column]
        return out

    def attend(
        self,
        q: Tensor,
        window: Tensor,
        seen: tuple[Tensor, Tensor],
        picked: PickedRows,
        *,
        sinks: Tensor,
        scale: float,
    ) -> Tensor:
        """Score hidden keys, too, and give them no weight."""
        n_rows, n_heads, width = q.shape
        key = torch.arange(len(window), dtype=torch.int32)
        visible = (key >= seen[0].unsqueeze(1)) & (key < seen[1].unsqueeze(1))
        visible = torch.cat((visible, picked.picks >= 0), dim=1)
        rows = window.expand(n_rows, -1, -1)
        if picked.picks.shape[1]:
            rows = torch.cat((rows, picked.rows[picked.picks.clamp(min=0)]), dim=1)
        scores = q.new_zeros(n_rows, n_heads, rows.shape[1])
        for i in range(width):
            scores += q[:, :, i : i + 1] * rows[:, None, :, i]
        scores = (scores * scale).masked_fill(~visible.unsqueeze(1), float("-inf"))
        sink = sinks.view(1, n_heads, 1)
        # The sink is finite, so the largest logit is, too: a query without keys divides 0 by 1.
        largest = scores.amax(-1, keepdim=True).maximum(sink) if rows.shape[1] else sink
        weights = rounded_exp(scores - largest)
        total = q.new_zeros(n_rows, n_heads)
        for j in range(rows.shape[1]):
            total += weights[..., j]
        weights = weights / (total.unsqueeze(-1) + rounded_exp(sink - largest))
        out = torch.zeros_like(q)
        for j in range(rows.shape[1]):
            out += weights[..., j : j + 1] * rows[:, None, j]
        return out
