"""Which paths of an archive come into a store, chosen before anything of it is published.

Knows the archive's tree, what of it the store has, and how many bytes there are; no rows.
Invariants: what is chosen fits beside all that the store's anchors need, and each chosen block is
needed by a chosen anchor, unless everything is chosen.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgpack

from ced_kvstore import anchor_row
from ced_kvstore.compact import INDEX_MARGIN
from ced_kvstore.core import Core
from ced_kvstore.drop import unneeded
from ced_kvstore.errors import TROUBLE
from ced_kvstore.evict import FULL, clear, left
from ced_kvstore.index import Index
from ced_kvstore.plan import INDEX_BLOCK_BYTES, block_bytes
from ced_kvstore.proof import BATCH, Outline
from ced_kvstore.record import span
from ced_kvstore.results import Anchor

SLACK = 2 * INDEX_MARGIN
"""Bytes left for what the index of a small store takes beyond its blocks' rows."""


@dataclass(slots=True)
class Part:
    """What of one section comes in."""

    outline: Outline
    costs: array[int]
    """Bytes that each block takes of the budget beyond what is kept anyway, with its snapshot; of
    the root, the fingerprint's."""
    chosen: bytearray
    """1 for each block that comes in, or is there and needed by what comes in."""
    anchors: list[Anchor] = field(default_factory=list)
    """Those that come in."""
    asked: list[tuple[Anchor, int, int]] = field(default_factory=list)
    """Each anchor of the section, its block's number, and the bytes it takes itself."""

    def snapshots(self) -> set[bytes]:
        """Return the blocks whose snapshots come in."""
        sizes = self.outline.snapshots
        return {self.outline.key(at) for at, size in enumerate(sizes) if size and self.chosen[at]}

    def way(self, at: int, most: int) -> tuple[list[int], int] | None:
        """Return what a path needs beyond what is chosen, and its bytes; None if above `most`."""
        blocks: list[int] = []
        cost = 0
        while cost <= most:
            if self.chosen[at]:
                return blocks, cost
            cost += self.costs[at]
            blocks.append(at)
            if at == 0:
                break
            at = self.outline.parents[at]
        return (blocks, cost) if cost <= most else None

    def rest(self) -> Iterator[int]:
        """Yield the blocks that are not chosen."""
        return (at for at, is_chosen in enumerate(self.chosen) if not is_chosen)


@dataclass(frozen=True, slots=True)
class Choice:
    """What of an archive comes in."""

    parts: Sequence[Part]
    need: int
    """Bytes that it takes of the budget."""
    is_all: bool


def choose(core: Core, index: Index, outlines: Sequence[Outline]) -> Choice:
    """Choose what comes in, and make room for it.

    Room is what the budget leaves beside all that the store's anchors and pins need: other blocks
    are dropped, if that lets more in. The caller holds core.lock. Raises one of errors.TROUBLE.
    """
    there = left(core, index)
    choice = _choose(core, index, outlines, there.in_time, {})
    kept: dict[bytes, int] = {}
    if not choice.is_all and (loose := unneeded(core, index)):
        choice = _choose(core, index, outlines, there.in_time + sum(loose.values()), loose)
        kept = _kept(choice, loose)
    written = choice.need - sum(kept.values())
    if written and written + SLACK > there.now:
        clear(core, index, written + SLACK, kept)
        there = left(core, index)
        # Dead bytes stay where another process appends, or the disk has no room for copies.
        if written + SLACK > there.now:
            choice = _choose(core, index, outlines, there.now, {})
    return choice


def no_room(core: Core, index: Index, what: str, n_written: int) -> str:
    """Say that the store has no room for something beside the blocks that came in, and what else it
    has. Raises one of errors.TROUBLE."""
    with index.read() as tables:
        has_more = tables.count("blocks") > n_written
    whose = "the byte budget" if left(core, index).reason == FULL else "the disk"
    beside = " without dropping what the store has" if has_more else ""
    return f"{whose} has no room for {what}{beside}"


def _choose(
    core: Core, index: Index, outlines: Sequence[Outline], room: int, loose: Mapping[bytes, int]
) -> Choice:
    """Choose whole paths that fit the room: those of pinned anchors first, then of newer ones.

    What no anchor of the archive needs comes in last: all of it, behind all anchors, or none.
    """
    room = free = max(0, room - SLACK)
    parts = [_look(core, index, outline, loose) for outline in outlines]
    asked = [(part, *each) for part in parts for each in part.asked]
    is_all = True
    for part, anchor, at, price in sorted(asked, key=lambda a: (not a[1].pinned, -a[1].created)):
        found = part.way(at, free - price)
        if found is None:
            is_all = False
            continue
        part.anchors.append(anchor)
        free -= price + found[1]
        for block in found[0]:
            part.chosen[block] = 1
    if is_all:
        cost = sum(part.costs[at] for part in parts for at in part.rest())
        is_all = cost <= free
    if is_all:
        free -= cost
        for part in parts:
            part.chosen[:] = b"\1" * len(part.chosen)
    return Choice(parts, room - free, is_all)


def _look(core: Core, index: Index, outline: Outline, loose: Mapping[bytes, int]) -> Part:
    """Look up what the store has of a section. Of the `loose` blocks it has, each costs what
    dropping it would give."""
    section, size = outline.section, len(outline)
    part = Part(outline, array("Q", bytes(8 * size)), bytearray(size))
    block = block_bytes(section.streams)
    numbers = {section.fingerprint.root: 0}
    wanted = {anchor.block_hash for anchor in section.anchors}
    for batch in outline.batches():
        with index.read() as tables:
            for at in batch:
                key = outline.key(at)
                if key in wanted:
                    numbers[key] = at
                is_there = tables.block(key) is not None and not core.is_bad(key, tables)
                cost = loose.get(key, 0) if is_there else block
                snapshot = outline.snapshots[at]
                if snapshot and not (is_there and core.has_snapshot(key, tables)):
                    cost += snapshot + INDEX_BLOCK_BYTES
                part.costs[at] = cost
    with index.read() as tables:
        if not tables.has_fingerprint(section.fingerprint.digest):
            part.costs[0] = span(len(msgpack.packb(section.fingerprint.fields)))
        for anchor in section.anchors:
            price = span(len(anchor_row.payload(anchor))) + INDEX_BLOCK_BYTES
            price *= tables.anchor(anchor) is None
            part.asked.append((anchor, numbers[anchor.block_hash], price))
    return part


def _kept(choice: Choice, loose: Mapping[bytes, int]) -> dict[bytes, int]:
    """Return which of the loose blocks the chosen paths need."""
    kept = {}
    for part in choice.parts:
        for at, is_chosen in enumerate(part.chosen):
            if is_chosen and (key := part.outline.key(at)) in loose:
                kept[key] = loose[key]
    return kept


def holdings(core: Core, outlines: Sequence[Outline]) -> tuple[int, int, int]:
    """Return how many blocks, snapshots and anchors of an archive are in the store now."""
    blocks = snapshots = anchors = 0
    ours = [anchor for outline in outlines for anchor in outline.section.anchors]
    with contextlib.suppress(*TROUBLE):
        for outline in outlines:
            for batch in outline.batches():
                with core.read() as tables:
                    for at in batch:
                        key = outline.key(at)
                        blocks += tables.block(key) is not None and not core.is_bad(key, tables)
                        has_one = outline.snapshots[at] > 0
                        snapshots += has_one and tables.snapshot(key) is not None
        for start in range(0, len(ours), BATCH):
            with core.read() as tables:
                found = map(tables.anchor, ours[start : start + BATCH])
                anchors += sum(anchor is not None for anchor in found)
    return blocks, snapshots, anchors
