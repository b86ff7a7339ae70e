"""Attention of T query rows over several spans of keys in one softmax, heads grouped.

A span is a run of rows of a key/value buffer; each query sees one interval of it. Scores of all
spans share one softmax, so a layer that sees a window and a global cache reads two spans. int8 keys
are multiplied exactly with int8 queries; probabilities and values stay float32.

Letters: Hq query heads, H key heads, G = Hq / H, T queries, C rows of a buffer, n keys of a span,
N keys in all, D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ced_kernels.int8_product import Int8Impl, int8_product
from ced_kernels.rows import Rows


class KeySpan(NamedTuple):
    """Rows `start` .. `stop` - 1 of a buffer of keys and values, and what queries see of them."""

    rows: Rows
    """codes [2, H, C, D] (keys, then values), scale [2, H, C] or None."""
    start: int
    stop: int
    seen_from: Tensor | None = None
    """[T] int32: query t sees keys seen_from[t] <= j < seen_to[t], counted from `start`."""
    seen_to: Tensor | None = None
    """[T] int32; None for both: every query sees the whole span."""

    def part(self, which: int) -> Rows:
        """Return the span's keys (0) or values (1): codes [H, n, D], scale [H, n] or None."""
        codes, scale = self.rows
        kept = slice(self.start, self.stop)
        return Rows(codes[which, :, kept], None if scale is None else scale[which, :, kept])

    def mask(self) -> Tensor | None:
        """Return [T, n] bool, True where visible, or None where all is."""
        if self.seen_from is None or self.seen_to is None:
            return None
        key = torch.arange(self.stop - self.start, dtype=torch.int32)
        return (key >= self.seen_from.unsqueeze(1)) & (key < self.seen_to.unsqueeze(1))


def attend(q: Rows, spans: Sequence[KeySpan], *, scale: float, impl: Int8Impl | None) -> Tensor:
    """Return softmax(q K^T * scale) V over the concatenated spans.

    q codes [Hq, T, D], scale [Hq, T] or None -> [T, Hq * D] float32. Queries and spans are all
    codes, multiplied by `impl`, or all float32. A query that sees no key gives 0.
    """
    n_heads, n_queries, head_dim = q.codes.shape
    n_kv_heads = spans[0].rows.codes.shape[1]
    group = n_heads // n_kv_heads
    n_keys = sum(span.stop - span.start for span in spans)
    grouped = Rows(
        q.codes.reshape(n_kv_heads, group * n_queries, head_dim),
        None if q.scale is None else q.scale.reshape(n_kv_heads, group * n_queries),
    )
    scores = torch.empty(n_kv_heads, group * n_queries, n_keys)
    masks = [span.mask() for span in spans]
    start = 0
    for span, mask in zip(spans, masks, strict=True):
        part = scores[:, :, start : start + span.stop - span.start]
        _scores(grouped, span.part(0), scale, impl, out=part)
        if mask is not None:
            part.view(n_kv_heads, group, n_queries, -1).masked_fill_(~mask, float("-inf"))
        start += part.shape[2]
    probabilities = torch.softmax(scores, dim=-1)
    if all(mask is not None for mask in masks):
        probabilities.nan_to_num_(nan=0.0)
    out = torch.zeros(n_kv_heads, group * n_queries, head_dim)
    start = 0
    for span in spans:
        stop = start + span.stop - span.start
        out.baddbmm_(probabilities[:, :, start:stop], span.part(1).values())
        start = stop
    return (
        out.view(n_kv_heads, group, n_queries, head_dim)
        .permute(2, 0, 1, 3)
        .reshape(n_queries, n_heads * head_dim)
    )


def _scores(q: Rows, k: Rows, scale: float, impl: Int8Impl | None, *, out: Tensor) -> None:
    """Write the scores [H, G * T, n] of one span."""
    if q.scale is None or k.scale is None:
        torch.bmm(q.codes, k.codes.transpose(1, 2), out=out)
        out.mul_(scale)
        return
    assert impl is not None
    k_scale = k.scale.float().unsqueeze(1)
    for head in range(q.codes.shape[0]):
        product = int8_product(q.codes[head], k.codes[head], impl=impl)
        torch.mul(product, k_scale[head], out=out[head])
    out.mul_((q.scale * scale).unsqueeze(-1))
