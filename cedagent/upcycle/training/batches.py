"""Batches: which tokens one pass runs, which decoder rows, and which of these are scored.

Plain text is cut into equal lengths from one long stream; transcripts stay whole, one beside the
other without padding. A replay that ends at P runs the rows that serving would run there, and what
is decoded after it; only rows whose logits serving would use are scored. Knows no weights and no
text. Invariant: step n of a stage is a function of the examples, the seed and n.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from cedagent.errors import UsageError
from cedagent.model.llama.config import LlamaConfig
from cedagent.upcycle.training.attention import Documents, Stretch

LENGTHS = (512, 1024, 2048)
"""Tokens of a piece of plain text, each as often as the others."""

_MOST_LEFT_OUT = 1000
"""Examples in a row that may be left out before it is a mistake."""

Kind = Literal["distill", "predict"]


class Example(Protocol):
    """Token ids, and how much predicting each of them counts."""

    @property
    def ids(self) -> Sequence[int]:
        """The text."""
        ...

    @property
    def trained(self) -> Sequence[float]:
        """How much predicting ids[i] from what stands before it counts; 0: not at all."""
        ...


class Scored(NamedTuple):
    """Some decoder rows, the positions among them whose logits count, and how much they do."""

    stretch: Stretch
    positions: Sequence[int]
    weights: Sequence[float]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one pass runs."""

    kind: Kind
    """distill: towards the parent; predict: the next token."""
    ids: Tensor
    """[N] int64, of all documents."""
    documents: tuple[Documents, ...]
    stretches: tuple[Stretch, ...]
    """The decoder's rows."""
    rows: Tensor
    """[M] int64, the scored ones among the stretches' rows."""
    places: Tensor
    """[M] int64, the same rows among all N."""
    weights: Tensor
    """[M] float32, how much each counts."""
    share: float = 1.0
    """Its part of the weighted mean over all scored rows of its kind in the step."""

    @property
    def targets(self) -> Tensor:
        """The token [M] that follows each scored row."""
        return self.ids[self.places + 1]

    def to(self, device: torch.device) -> Batch:
        """Return the batch with its tensors on `device`."""
        tensors = ("ids", "rows", "places", "weights")
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})


@dataclass(frozen=True, slots=True)
class Room:
    """How much runs at once, and how it is served."""

    config: LlamaConfig
    pass_tokens: int
    """Most tokens of one pass."""
    replay_share: float
    """Share of texts that run as a replay and what is decoded after it, not as a whole."""
    lengths: Sequence[int] = LENGTHS
    """Lengths of pieces of plain text."""


class TokenStream:
    """The examples' tokens, one example after the other, without end."""

    def __init__(self, examples: Iterator[Example]) -> None:
        """Take an endless iterator."""
        self._examples = examples
        self._left: list[int] = []

    def take(self, n: int) -> list[int]:
        """Return the next `n` tokens."""
        while len(self._left) < n:
            self._left.extend(next(self._examples).ids)
        taken, self._left = self._left[:n], self._left[n:]
        return taken


def plain_passes(stream: TokenStream, *, n_tokens: int, room: Room, draw: Random) -> list[Batch]:
    """Return passes over about `n_tokens` tokens of plain text, all of whose rows are scored."""
    found, left = [], n_tokens
    longest = min(room.pass_tokens, room.config.max_position_embeddings)
    while left > 0:
        # Drawn in any case, so that one setting does not shift the draws of another.
        length, is_replay = draw.choice(room.lengths), draw.random() < room.replay_share
        length = min(length, longest, max(left, 2))
        first_end = draw.randrange(2**30)
        n = max(1, min(room.pass_tokens, left) // length)
        some = Documents(0, n, length)
        scored = _replays(some, room.config, first_end) if is_replay else []
        scored = scored or [Scored(Stretch(some, 0, length), range(length), [1.0] * length)]
        found.append(_batch("distill", stream.take(n * length), scored))
        left -= n * length
    return _with_shares(found)


def transcript_passes(
    examples: Iterator[Example], *, n_tokens: int, room: Room, draw: Random
) -> list[Batch]:
    """Return passes over about `n_tokens` tokens of transcripts, scored where they are trained.

    An example that is too long for a pass, or has nothing to predict, is left out. Raises
    UsageError when that is all that comes.
    """
    found: list[Batch] = []
    ids: list[int] = []
    scored: list[Scored] = []
    left, n_left_out = n_tokens, 0
    longest = min(room.pass_tokens, room.config.max_position_embeddings)
    while left > 0:
        if n_left_out == _MOST_LEFT_OUT:
            raise UsageError(
                f"no transcript of at most {longest} tokens among {n_left_out}: allow more tokens "
                "in a pass"
            )
        example = next(examples)
        length, is_replay = len(example.ids), draw.random() < room.replay_share
        outputs = _outputs(example.trained)
        if length > longest or not outputs:
            n_left_out += 1
            continue
        n_left_out = 0
        if len(ids) + length > room.pass_tokens:
            found.append(_batch("predict", ids, scored))
            ids, scored = [], []
        one = Documents(len(ids), 1, length)
        ids.extend(example.ids)
        if is_replay:
            for start, stop in outputs:
                first = start - room.config.replay_rows(start)
                stretch, counted = Stretch(one, first, stop - 1), example.trained[start:stop]
                scored.append(Scored(stretch, range(start - 1, stop - 1), counted))
        else:
            positions = [p for start, stop in outputs for p in range(start - 1, stop - 1)]
            counted = [example.trained[p + 1] for p in positions]
            scored.append(Scored(Stretch(one, 0, positions[-1] + 1), positions, counted))
        left -= length
    return _with_shares([*found, _batch("predict", ids, scored)])


def _replays(some: Documents, config: LlamaConfig, first_end: int) -> list[Scored]:
    """Return replays, and a window decoded after each, that cover the documents evenly.

    Empty where serving a replay changes nothing: without a window, or without a decoder.
    """
    window, length = config.decoder_window, some.length
    if not window or not config.n_decoder_layers:
        return []
    # As many rows as the documents have: a replay's, then a window of decoding.
    period = (config.replay_windows + 1) * window
    found = []
    for end in range(1 + first_end % min(period, length), length + 1, period):
        start, stop = end - config.replay_rows(end), min(length, end + window)
        rows = range(end - 1, stop)
        found.append(Scored(Stretch(some, start, stop), rows, [1.0] * len(rows)))
    return found


def _outputs(trained: Sequence[float]) -> list[tuple[int, int]]:
    """Return the runs (start, stop) of trained tokens; the first token follows nothing."""
    found: list[tuple[int, int]] = []
    for i in range(1, len(trained)):
        if trained[i] and found and found[-1][1] == i:
            found[-1] = found[-1][0], i + 1
        elif trained[i]:
            found.append((i, i + 1))
    return found


def _batch(kind: Kind, ids: Sequence[int], scored: Sequence[Scored]) -> Batch:
    rows, places, weights, used = [], [], list[float](), 0
    for stretch, wanted, counted in scored:
        some, start, stop = stretch
        positions = torch.tensor(wanted, dtype=torch.int64)
        document = torch.arange(some.n).unsqueeze(1)
        rows.append((used + document * (stop - start) + positions - start).flatten())
        places.append((some.offset + document * some.length + positions).flatten())
        weights += list(counted) * some.n
        used += stretch.n_rows
    return Batch(
        kind=kind,
        ids=torch.tensor(ids, dtype=torch.int64),
        documents=tuple(dict.fromkeys(stretch.documents for stretch, *_ in scored)),
        stretches=tuple(stretch for stretch, *_ in scored),
        rows=torch.cat(rows),
        places=torch.cat(places),
        weights=torch.tensor(weights, dtype=torch.float32),
    )


def _with_shares(batches: Sequence[Batch]) -> list[Batch]:
    counted = [float(batch.weights.sum()) for batch in batches]
    total = sum(counted)
    return [replace(b, share=part / total) for b, part in zip(batches, counted, strict=True)]
