"""How close a student stays to its parent: KL(parent || student) and perplexity by position.

Two readings of the same texts: every position through both halves at once (`full`), and what a
session sees, a bounded prefill with tokens fed through decode after it. Letters: N texts, T
positions, V tokens of the vocabulary. Position t predicts token t + 1. All sums are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from cedagent.engine import Engine
from cedagent.upcycle.evaluation.rates import Mean, mean_of
from cedagent.upcycle.evaluation.rows import ParentRows
from cedagent.upcycle.source import Progress

BUCKETS = (0, 128, 512, 2048, 4096)
"""Ends of the position buckets."""
ENDS = tuple(range(512, 2049, 128))
"""Prefill ends after which fed tokens are scored."""
FED = 32
"""Tokens fed through decode after each."""
_STRETCH = 128
"""Positions that stand together in a standard error, and in the figures by position."""
_KL, _PARENT, _STUDENT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Positions:
    """Figures of positions start .. stop - 1 of all texts."""

    start: int
    stop: int
    kl: Mean
    """KL(parent || student) per token, in nats."""
    perplexity: float
    parent_perplexity: float


@dataclass(frozen=True, slots=True)
class Closeness:
    """A student's figures on the held-out texts."""

    texts: int
    tokens_each: int
    """Tokens of each text that are read; each but the last has the next one to predict."""
    digest: str
    """SHA-256 (hex) of all texts."""
    buckets: tuple[Positions, ...]
    """Every position through both halves, in the buckets that the texts fill."""
    by_position: tuple[Positions, ...]
    """The same in stretches of 128."""
    first_token: Mean | None
    """KL of the logits right after each prefill, all ends together; None: texts too short."""
    after_prefill: Mean | None
    """KL of the tokens fed after each prefill, all ends together."""
    by_end: tuple[Positions, ...]
    """The same for each prefill end; `start` is the end."""


def compare(parent: Tensor, student: Tensor, following: Sequence[int]) -> Tensor:
    """Return [n, 3] float64: KL(parent || student), and -ln p of the following id by both.

    parent and student are logits [n, V] float32.
    """
    p, q = parent.log_softmax(-1), student.log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1, dtype=torch.float64)
    index = torch.tensor(following).unsqueeze(-1)
    nats = [-scores.gather(-1, index).squeeze(-1).double() for scores in (p, q)]
    return torch.stack([kl, *nats], -1)


def score_positions(
    engine: Engine, parent: ParentRows, texts: Sequence[Sequence[int]], *, progress: Progress
) -> Tensor:
    """Return `compare` of every position but the last, [N, T - 1, 3], in `full` mode."""
    label, scores = "text, every position", []
    progress(label, 0, len(texts))
    for number, text in enumerate(texts):
        student = engine.logits(text[:-1])
        parts = []
        for start in range(0, len(student), _STRETCH):
            part = student[start : start + _STRETCH]
            stop = start + len(part)
            logits = parent.logits(number, start, stop)
            parts.append(compare(logits, part, text[start + 1 : stop + 1]))
        scores.append(torch.cat(parts))
        progress(label, number + 1, len(texts))
    return torch.stack(scores)


def score_after_prefill(
    engine: Engine,
    parent: ParentRows,
    texts: Sequence[Sequence[int]],
    *,
    ends: Sequence[int],
    progress: Progress,
) -> Tensor:
    """Return `compare` right after each prefill end and after each token fed, [N, ends, 33, 3].

    One live session per text: every append drops what was decoded, so each end is that of a cold
    prefill, to the bit.
    """
    label = f"text, {FED} tokens fed after each prefill"
    scores = []
    progress(label, 0, len(texts) * len(ends))
    for number, text in enumerate(texts):
        sequence = engine.sequence()
        for end in ends:
            sequence.prefill(text[len(sequence.ids) : end], label="eval")
            student = [sequence.logits]
            for token in text[end : end + FED]:
                sequence.feed(token)
                student.append(sequence.logits)
            logits = parent.logits(number, end - 1, end + FED)
            scores.append(compare(logits, torch.stack(student), text[end : end + FED + 1]))
            progress(label, len(scores), len(texts) * len(ends))
        sequence.close()
    return torch.stack(scores).view(len(texts), len(ends), FED + 1, 3)


def ends_within(n_tokens: int) -> tuple[int, ...]:
    """Return the prefill ends after which a text of this length has tokens to feed and score."""
    return tuple(end for end in ENDS if end + FED < n_tokens)


def closeness(
    positions: Tensor, fed: Tensor | None, *, ends: Sequence[int], digest: str
) -> Closeness:
    """Return the figures of both readings: [N, T - 1, 3] and [N, ends, 33, 3] or None."""
    n_texts, n_positions = positions.shape[:2]
    last = min(n_positions, BUCKETS[-1])
    edges = [*(edge for edge in BUCKETS if edge < last), last]
    buckets = [_figures(positions, a, b) for a, b in pairwise(edges)]
    starts = range(0, n_positions, _STRETCH)
    by_position = [_figures(positions, a, min(a + _STRETCH, n_positions)) for a in starts]
    by_end: list[Positions] = []
    first = after = None
    if fed is not None:
        first = _mean(fed[:, :, :1, _KL].flatten(0, 1))
        after = _mean(fed[:, :, 1:, _KL].flatten(0, 1))
        for i, end in enumerate(ends):
            by_end.append(_of(fed[:, i, 1:], end, end + FED))
    return Closeness(
        texts=n_texts,
        tokens_each=n_positions + 1,
        digest=digest,
        buckets=tuple(buckets),
        by_position=tuple(by_position),
        first_token=first,
        after_prefill=after,
        by_end=tuple(by_end),
    )


def _figures(scores: Tensor, start: int, stop: int) -> Positions:
    return _of(scores[:, start:stop], start, stop)


def _of(scores: Tensor, start: int, stop: int) -> Positions:
    """Return the figures of scores [N, n, 3]; each 128 positions of a text are one stretch."""
    parts = [part for text in scores for part in text.split(_STRETCH)]
    kl = mean_of([(float(part[:, _KL].sum()), len(part)) for part in parts])
    assert kl is not None
    nats = scores.flatten(0, 1).mean(0)
    return Positions(
        start, stop, kl, math.exp(float(nats[_STUDENT])), math.exp(float(nats[_PARENT]))
    )


def _mean(rows: Tensor) -> Mean | None:
    """Return the mean of rows [stretches, n]."""
    return mean_of([(float(row.sum()), len(row)) for row in rows])
