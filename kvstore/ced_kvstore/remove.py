"""Drop what one session, label or block kept: its anchors, and the blocks that only it needed.

Knows the tree and the anchors. Invariant: a block that another anchor needs stays, with its whole
path; what is dropped stays dropped when the index is rebuilt.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgpack

from ced_kvstore.compact import move_out
from ced_kvstore.core import Core
from ced_kvstore.evict import reclaim, used_bytes
from ced_kvstore.index import Index
from ced_kvstore.record import Kind, Record
from ced_kvstore.results import Anchor, Removal
from ced_kvstore.rows import Tables
from ced_kvstore.tree import by_depth, load, path

KEYS_PER_RECORD = 10_000


@dataclass(frozen=True, slots=True)
class _Doomed:
    anchors: list[Anchor]
    blocks: list[bytes]
    """Deepest first."""


def remove(core: Core, index: Index, target: str | bytes, *, purge: bool) -> Removal:
    """Drop a label's or a block's anchors and what only they needed; the caller holds core.lock.

    With `purge` the segments they were in are rewritten at once. Raises one of errors.TROUBLE.
    """
    with index.read() as tables:
        doomed = _choose(tables, target)
        stamp = tables.get_meta("stamp") + 1
    if not doomed.anchors and not doomed.blocks:
        return Removal(0, 0, 0, "nothing is stored under that name")
    places = core.segments.append(_records(doomed), stamp)

    def change(tables: Tables) -> tuple[int, set[int]]:
        freed, segments, now = 0, set(), time.time()
        for key in doomed.blocks:
            entry = tables.block(key)
            snapshot = tables.snapshot(key)
            segments |= {p.segment for p in (entry and entry.place, snapshot) if p}
            freed += tables.drop_block(key, "removed", now)
        for anchor in doomed.anchors:
            freed += tables.drop_anchor(anchor)
        for place in places:
            tables.extend_segment(place)
            tables.add_place(place, Kind.REMOVED, b"")
        tables.put_meta("stamp", stamp)
        core.settle(tables)
        return freed, segments

    freed, segments = index.write(change)
    reclaim(core, index, used_bytes(core, index))
    if purge:
        for number in sorted(segments):
            if number in core.segments.ends:
                move_out(core, index, number)
    return Removal(len(doomed.anchors), len(doomed.blocks), freed)


def _choose(tables: Tables, target: str | bytes) -> _Doomed:
    anchors = [
        anchor
        for anchor, _place in tables.anchors()
        if target == (anchor.label if isinstance(target, str) else anchor.block_hash)
    ]
    gone = {(anchor.block_hash, anchor.label) for anchor in anchors}
    nodes = load(tables)
    needed: set[bytes] = set()
    for anchor, _place in tables.anchors():
        if (anchor.block_hash, anchor.label) not in gone:
            needed.update(path(nodes, anchor.block_hash))
    starts = {anchor.block_hash for anchor in anchors}
    if isinstance(target, bytes):
        starts.add(target)
    # A block on the removed paths that nobody needs goes with everything after it.
    doomed = {key for start in starts for key in path(nodes, start)} - needed
    for node in reversed(by_depth(nodes.values())):
        if node.parent in doomed:
            doomed.add(node.key)
    blocks = [node.key for node in by_depth(nodes[key] for key in doomed)]
    return _Doomed(anchors, blocks)


def _records(doomed: _Doomed) -> list[Record]:
    anchors = [[anchor.block_hash, anchor.label] for anchor in doomed.anchors]
    records = []
    for start in range(0, max(len(anchors), len(doomed.blocks)), KEYS_PER_RECORD):
        end = start + KEYS_PER_RECORD
        payload = msgpack.packb([doomed.blocks[start:end], anchors[start:end]])
        zero = bytes(32)
        records.append(Record(Kind.REMOVED, zero, zero, bytes(16), [payload]))
    return records
