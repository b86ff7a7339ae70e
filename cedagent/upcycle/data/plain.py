"""Plain text for healing, cut into documents of 256 to 4,096 tokens.

Knows sources and the tokenizer, no chat format. Invariants: a file is in one split only; the same
installation, split and seed give the same documents in every process.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Final

from cedagent.chat.tokenizer import Tokenizer
from cedagent.upcycle.data.conversation import Example, Split
from cedagent.upcycle.data.documents import long_document
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.plain_sources import Kind, Source, heldout_sources, sources

MIX: Final[dict[Kind | str, float]] = {"prose": 0.45, "code": 0.30, "data": 0.10, "rows": 0.15}
"""Share of each kind of document; rows are made up, the rest is found."""
_CHARS_PER_TOKEN: Final = 6
"""More than any text here has, so that one encoding is enough."""


def plain_examples(
    tokenizer: Tokenizer, *, split: Split, seed: int, lengths: tuple[int, int] = (256, 4096)
) -> Iterator[Example]:
    """Yield documents of text, all of it trained; without end for training.

    `lengths` are the least and the most tokens; short and long ones are equally likely on a
    logarithmic scale. The held-out side ends when every file has given one document.
    """
    made = (
        _endless(tokenizer, seed, lengths) if split == "train" else _once(tokenizer, seed, lengths)
    )
    return (plain_example(ids) for ids in made)


def plain_example(ids: Sequence[int]) -> Example:
    """Return ids as an example: every id but the first is predicted."""
    return Example(tuple(ids), (0.0, *[1.0] * (len(ids) - 1)))


def interleaved(
    examples: Iterator[Example], samples: Iterable[Sequence[int]], *, share: float, seed: int
) -> Iterator[Example]:
    """Yield examples, a share of them from `samples`: ids that the caller gives, such as texts
    that the parent wrote itself. Ends when either does.
    """
    rng = Random(f"interleaved/{seed}")
    given = iter(samples)
    while True:
        try:
            yield plain_example(next(given)) if rng.random() < share else next(examples)
        except StopIteration:
            return


def _endless(tokenizer: Tokenizer, seed: int, lengths: tuple[int, int]) -> Iterator[list[int]]:
    shelves = {kind: _shelf(kind) for kind in MIX if kind != "rows"}
    for i in itertools.count():
        rng = Random(f"plain/{seed}/{i}")
        kind = rng.choices(tuple(MIX), tuple(MIX.values()))[0]
        n_tokens = _length(rng, lengths)
        if kind == "rows":
            yield _rows(tokenizer, f"{seed}/{i}", n_tokens, split="train")
            continue
        while True:
            ids = _cut(tokenizer, shelves[kind](rng), n_tokens, rng=rng)
            if len(ids) >= lengths[0]:
                break
        yield ids


def _once(tokenizer: Tokenizer, seed: int, lengths: tuple[int, int]) -> Iterator[list[int]]:
    rng = Random(f"heldout/{seed}")
    left: dict[str, list[Source]] = {kind: [] for kind in MIX}
    for source in heldout_sources():
        left[source.kind].append(source)
    for files in left.values():
        rng.shuffle(files)
    while any(left.values()):
        kinds = [kind for kind in MIX if left[kind] or kind == "rows"]
        kind = rng.choices(kinds, [MIX[kind] for kind in kinds])[0]
        n_tokens = _length(rng, lengths)
        if kind == "rows":
            yield _rows(tokenizer, f"{seed}/{rng.random()}", n_tokens, split="heldout")
            continue
        ids = _cut(tokenizer, left[kind].pop(), n_tokens, rng=rng)
        if len(ids) >= lengths[0]:
            yield ids


def _shelf(kind: str) -> Callable[[Random], Source]:
    """Return what draws a training source: a package by the root of its size, then a file."""
    packages: dict[str, list[Source]] = {}
    for source in sources():
        if source.kind == kind and not source.is_heldout:
            packages.setdefault(source.package, []).append(source)
    names = sorted(packages)
    weights = [math.sqrt(sum(source.n_bytes for source in packages[name])) for name in names]

    def pick(rng: Random) -> Source:
        return rng.choice(packages[rng.choices(names, weights)[0]])

    return pick


def _length(rng: Random, lengths: tuple[int, int]) -> int:
    low, high = lengths
    return round(low * math.pow(high / low, rng.random()))


def _cut(tokenizer: Tokenizer, source: Source, n_tokens: int, *, rng: Random) -> list[int]:
    """Return tokens from the start of some line on; fewer than asked for if the text ends."""
    text = source.text()
    n_chars = n_tokens * _CHARS_PER_TOKEN
    last = len(text) - n_chars // 2
    start = rng.randrange(last) if last > 0 and rng.random() < 0.8 else 0
    if start:
        start = text.find("\n", start) + 1
    return tokenizer.encode(text[start : start + n_chars])[:n_tokens]


def _rows(tokenizer: Tokenizer, seed: str, n_tokens: int, *, split: Split) -> list[int]:
    draw = Draw(f"rows/{seed}", split=split)
    ids: list[int] = []
    while len(ids) < n_tokens:
        document = long_document(
            draw, min(n_tokens, 2_000), depth=0.5, count=lambda text: len(tokenizer.encode(text))
        )
        ids += tokenizer.encode(("\n\n" if ids else "") + document.text)
    return ids[:n_tokens]
