"""Drop what some labels or blocks kept: their anchors, and the blocks that only they needed.

Knows the tree, the anchors and the pins. Invariants: a block that another anchor needs, or that a
live process is using, stays with its whole path; what is dropped stays dropped when the index is
rebuilt, as the removal's stamp is above every published one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgpack

from ced_kvstore import anchor_row
from ced_kvstore.compact import reclaim
from ced_kvstore.core import Core
from ced_kvstore.drop import UNREADABLE, in_use
from ced_kvstore.errors import Stale
from ced_kvstore.index import Index
from ced_kvstore.locks import BUSY
from ced_kvstore.record import Kind, Place, Record
from ced_kvstore.results import Anchor, Removal
from ced_kvstore.rows import Tables
from ced_kvstore.traces import Traces, find
from ced_kvstore.tree import by_depth, load, paths

KEYS_PER_RECORD = 1_000
"""So many, each with the longest label, are still a record that a rebuild reads."""

_TRIES = 8
"""Stamps tried while other processes publish; each is twice as far above theirs as the last."""


@dataclass(frozen=True, slots=True)
class _Doomed:
    anchors: list[Anchor]
    blocks: list[bytes]
    """Deepest first."""
    in_use: int
    """Blocks that would go but for the processes that use them."""


def remove(core: Core, index: Index, targets: Collection[str | bytes], *, purge: bool) -> Removal:
    """Drop the anchors of labels or at blocks, and what only they needed.

    The caller holds core.lock. With `purge` the segments that have a record of them, dead ones
    included, are rewritten at once, or by whoever comes next. Raises one of errors.TROUBLE.
    """
    with core.locks.lease() as is_ours:
        if not is_ours:
            return Removal(0, 0, 0, BUSY)
        reason = "other processes keep changing what is to go; try again"
        for headroom in (1 << i for i in range(_TRIES)):
            pinned = in_use(core)
            if pinned is None:
                return Removal(0, 0, 0, UNREADABLE)
            with index.read() as tables:
                doomed = _choose(tables, targets, pinned)
                stamp = tables.get_meta("stamp") + headroom
            if not doomed.anchors and not doomed.blocks:
                return Removal(0, 0, 0, _nothing(doomed))
            traces = _traces(core, index, doomed) if purge else None
            places = core.writer.append(index, _records(doomed), stamp)
            change = _Change(core, targets, doomed, places, stamp, traces)
            try:
                freed = core.publish(index, change.publish)
            except Stale:
                continue
            core.writer.published(places)
            core.counters.count_evicted("removed", len(doomed.blocks))
            reclaim(core, index)
            with index.read() as tables:
                stays = traces is not None and not traces.found.isdisjoint(tables.purges())
            return Removal(len(doomed.anchors), len(doomed.blocks), freed, _left(doomed, stays))
        return Removal(0, 0, 0, reason)


def _traces(core: Core, index: Index, doomed: _Doomed) -> Traces:
    anchors = frozenset(anchor_row.key(anchor) for anchor in doomed.anchors)
    return find(core, index, frozenset(doomed.blocks), anchors)


def _nothing(doomed: _Doomed) -> str:
    if doomed.in_use:
        return f"another process is using it ({doomed.in_use} blocks)"
    return "nothing is stored under that name"


def _left(doomed: _Doomed, stays: bool) -> str | None:
    if doomed.in_use:
        return f"{doomed.in_use} blocks stay: another process is using them"
    if stays:
        return (
            "its bytes leave the disk when another process is done with their segment, or there is "
            "room to move what else is in it"
        )
    return None


def _choose(tables: Tables, targets: Collection[str | bytes], pinned: Collection[bytes]) -> _Doomed:
    anchors = _anchors(tables, targets)
    gone = {(anchor.block_hash, anchor.label) for anchor in anchors}
    nodes, others = load(tables), (anchor for anchor, _place in tables.anchors())
    needed = paths(nodes, (a.block_hash for a in others if (a.block_hash, a.label) not in gone))
    used = paths(nodes, pinned)
    starts = {anchor.block_hash for anchor in anchors}
    starts.update(target for target in targets if isinstance(target, bytes))
    # A block on the removed paths that nobody needs goes with everything after it.
    wanted = paths(nodes, starts) - needed
    for node in reversed(by_depth(nodes.values())):
        if node.parent in wanted:
            wanted.add(node.key)
    doomed = [node.key for node in by_depth(nodes[key] for key in wanted - used)]
    return _Doomed(anchors, doomed, len(wanted & used))


def _anchors(tables: Tables, targets: Collection[str | bytes]) -> list[Anchor]:
    return [
        anchor
        for anchor, _place in tables.anchors()
        if anchor.label in targets or anchor.block_hash in targets
    ]


def _records(doomed: _Doomed) -> list[Record]:
    # Where the block goes no anchor can stay, and a label may be what somebody wants to be gone.
    gone = set(doomed.blocks)
    stay = [anchor for anchor in doomed.anchors if anchor.block_hash not in gone]
    anchors = [[anchor.block_hash, anchor.label] for anchor in stay]
    records = []
    for start in range(0, max(len(anchors), len(doomed.blocks)), KEYS_PER_RECORD):
        end = start + KEYS_PER_RECORD
        payload = msgpack.packb([doomed.blocks[start:end], anchors[start:end]])
        zero = bytes(32)
        records.append(Record(Kind.REMOVED, zero, zero, bytes(16), [payload]))
    return records


@dataclass(frozen=True, slots=True)
class _Change:
    """One try to take what was chosen out of the index."""

    core: Core
    targets: Collection[str | bytes]
    doomed: _Doomed
    places: Sequence[Place]
    stamp: int
    traces: Traces | None
    """Where records of it are that go at once; None when they need not."""

    def publish(self, tables: Tables) -> int:
        """Return the bytes that are dead now; raises Stale when others published meanwhile what
        the removal would have to name."""
        if self.stamp <= tables.get_meta("stamp") or (
            _anchors(tables, self.targets) != self.doomed.anchors
        ):
            raise Stale
        if not self._is_unused(tables):
            raise Stale
        # Written down here, a purge that is cut short is finished by whoever comes next.
        for number in self.traces.segments(tables) if self.traces else ():
            tables.ask_purge(number)
        freed, now = 0, time.time()
        for key in self.doomed.blocks:
            if tables.children(key):
                raise Stale
            if any(anchor not in self.doomed.anchors for anchor, _ in tables.anchors(key)):
                raise Stale
            freed += tables.drop_block(key, "removed", now)
        for anchor in self.doomed.anchors:
            freed += tables.drop_anchor(anchor)
        for place in self.places:
            tables.extend_segment(place)
            tables.mark_segment(place.segment, self.stamp)
            tables.add_place(place, Kind.REMOVED, b"")
        tables.put_meta("stamp", self.stamp)
        tables.put_meta("removal", self.stamp)
        return freed

    def _is_unused(self, tables: Tables) -> bool:
        """Say whether nobody began to use what was chosen; asked within the transaction, so that
        who has pinned and then waited for it is safe."""
        doomed, used = set(self.doomed.blocks), in_use(self.core)
        if used is None:
            return False
        seen: set[bytes] = set()
        for key in used:
            entry = tables.block(key)
            while entry is not None and key not in seen:
                seen.add(key)
                key, entry = entry.parent, tables.block(entry.parent)
        return not seen & doomed
