"""Attention of T query rows over several spans of keys in one softmax, heads grouped.

A span is a run of key rows with an optional mask. Scores of all spans share one softmax, so a layer
that sees a window and a global cache writes two spans. int8 keys are multiplied exactly with int8
queries; probabilities and values stay float32.

Letters: Hq query heads, H key heads, G = Hq / H, T queries, n keys of a span, N keys in all, D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ced_kernels.int8_product import Int8Impl, int8_product
from ced_kernels.rows import Rows, quantize_rows


class KeySpan(NamedTuple):
    """A run of key rows that queries may see."""

    k: Rows
    """codes [H, n, D], scale [H, n] or None."""
    v: Rows
    """codes [H, n, D], scale [H, n] or None."""
    mask: Tensor | None = None
    """[T, n] bool, True where visible; None: all visible."""


def attend(
    q: Tensor, spans: Sequence[KeySpan], *, scale: float, impl: Int8Impl | None = None
) -> Tensor:
    """Return softmax(q K^T * scale) V over the concatenated spans.

    q [Hq, T, D] float32 -> [T, Hq * D] float32. `impl` is the int8 product for spans that hold
    codes; spans hold either codes or float32, all of one kind. A query that sees no key gives 0.
    """
    n_heads, n_queries, head_dim = q.shape
    n_kv_heads = spans[0].k.codes.shape[0]
    group = n_heads // n_kv_heads
    n_keys = sum(span.k.codes.shape[1] for span in spans)
    grouped = q.reshape(n_kv_heads, group * n_queries, head_dim)
    scores = torch.empty(n_kv_heads, group * n_queries, n_keys)
    codes = quantize_rows(grouped) if spans[0].k.scale is not None else None
    start = 0
    for span in spans:
        part = scores[:, :, start : start + span.k.codes.shape[1]]
        if codes is None:
            torch.bmm(grouped, span.k.codes.transpose(1, 2), out=part)
            part.mul_(scale)
        else:
            assert impl is not None
            _int8_scores(codes, span.k, scale, impl, out=part)
        if span.mask is not None:
            part.view(n_kv_heads, group, n_queries, -1).masked_fill_(~span.mask, float("-inf"))
        start += span.k.codes.shape[1]
    probabilities = torch.softmax(scores, dim=-1)
    if all(span.mask is not None for span in spans):
        probabilities.nan_to_num_(nan=0.0)
    out = torch.zeros(n_kv_heads, group * n_queries, head_dim)
    start = 0
    for span in spans:
        stop = start + span.v.codes.shape[1]
        out.baddbmm_(probabilities[:, :, start:stop], span.v.values())
        start = stop
    return (
        out.view(n_kv_heads, group, n_queries, head_dim)
        .permute(2, 0, 1, 3)
        .reshape(n_queries, n_heads * head_dim)
    )


def _int8_scores(q: Rows, k: Rows, scale: float, impl: Int8Impl, *, out: Tensor) -> None:
    assert q.scale is not None
    assert k.scale is not None
    q_scale = (q.scale * scale).unsqueeze(-1)
    k_scale = k.scale.float().unsqueeze(1)
    for head in range(q.codes.shape[0]):
        product = int8_product(q.codes[head], k.codes[head], impl=impl)
        torch.mul(product, k_scale[head], out=out[head])
    out.mul_(q_scale)
