"""What one commit would write: the part of a request that is new, cut to the room there is.

Knows the index as it was when the plan was made; publish.py checks it again when it counts.
Invariant: a plan names no block without the blocks before it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import msgpack

from ced_kvstore import anchor_row
from ced_kvstore.core import Core
from ced_kvstore.evict import FULL, TOO_SMALL, make_room
from ced_kvstore.hashing import BLOCK_TOKENS, IDS_BYTES, chain
from ced_kvstore.index import Index
from ced_kvstore.record import Kind, Record, span
from ced_kvstore.request import Request
from ced_kvstore.results import Anchor, Stream
from ced_kvstore.rows import Tables

INDEX_BLOCK_BYTES = 640
"""Bytes by which a block lets the index grow: 360 to 550 for each of a million."""


@dataclasses.dataclass(slots=True)
class Plan:
    """What of a request is new."""

    hashes: list[bytes]
    new: list[int]
    """Blocks to write, as indices into `hashes`."""
    anchors: list[Anchor]
    snapshots: dict[bytes, memoryview]
    stamp: int
    needs_fingerprint: bool
    reason: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is new."""
        return not (self.new or self.anchors or self.snapshots)


def make_plan(core: Core, request: Request) -> Plan | str:
    """Return what is new, or why it has nothing to stand on. Raises one of TROUBLE."""
    root, first = request.fingerprint.root, request.first_block
    hashes = list(chain(root, request.raw_ids))
    with core.read() as tables:
        if first > 0 and tables.block(hashes[first - 1]) is None:
            return f"the path below block {first} is not stored"

        def is_missing(key: bytes) -> bool:
            return tables.block(key) is None or core.is_bad(key, tables)

        plan = Plan(
            hashes,
            [i for i in range(first, len(hashes)) if is_missing(hashes[i])],
            [],
            {},
            tables.get_meta("stamp") + 1,
            not tables.has_fingerprint(request.fingerprint.digest),
        )
        ends = {key: (i + 1) * BLOCK_TOKENS for i, key in enumerate(hashes)} | {root: 0}
        for anchor in request.anchors:
            entry = tables.block(anchor.block_hash)
            if entry is not None:
                ends[anchor.block_hash] = entry.position + BLOCK_TOKENS
            if anchor.block_hash not in ends:
                plan.reason = "an anchor's block is not stored"
                continue
            dated = _dated(tables, anchor, ends[anchor.block_hash])
            if is_news(tables, dated):
                plan.anchors.append(dated)
        for key, data in request.snapshots.items():
            if tables.block(key) is None and (key == root or key not in ends):
                plan.reason = "a snapshot's block is not stored"
            elif not core.has_snapshot(key, tables) or core.is_bad(key, tables):
                plan.snapshots[key] = data
    return plan


def _dated(tables: Tables, anchor: Anchor, end: int) -> Anchor:
    # Only a removal takes a pin away, no later anchor of the same name.
    old = tables.anchor(anchor)
    return dataclasses.replace(
        anchor,
        pinned=anchor.pinned or (old is not None and old.pinned),
        created=anchor.created or time.time(),
        n_tokens=anchor.n_tokens or end,
    )


def is_news(tables: Tables, anchor: Anchor) -> bool:
    """Say whether the index has no anchor that says the same."""
    old = tables.anchor(anchor)
    return old is None or (old.kind, old.pinned, old.n_tokens) != (
        anchor.kind,
        anchor.pinned,
        anchor.n_tokens,
    )


def block_bytes(streams: Sequence[Stream]) -> int:
    """Return the bytes that one more block takes of the budget."""
    record = span(IDS_BYTES + sum(stream.block_bytes for stream in streams))
    return record + INDEX_BLOCK_BYTES


def fit(core: Core, index: Index, request: Request, plan: Plan) -> None:
    """Make room for the plan within the byte budget, or cut it to what fits."""
    if plan.is_empty:
        return
    block = block_bytes(request.streams)
    extra = sum(span(len(data)) for data in plan.snapshots.values())
    extra += sum(span(len(anchor_row.payload(anchor))) for anchor in plan.anchors)
    extra += span(len(msgpack.packb(request.fingerprint.fields))) * plan.needs_fingerprint
    need = len(plan.new) * block + extra
    room = make_room(core, index, need, keep=plan.hashes, may_drop=request.may_drop)
    if room.fits >= need:
        return
    is_too_small = room.reason == FULL and plan.new and block > room.at_most
    plan.reason = TOO_SMALL if is_too_small else room.reason
    cut = plan.new[max(0, room.fits - extra) // block :]
    plan.new = plan.new[: len(plan.new) - len(cut)]
    lost = {plan.hashes[i] for i in cut}
    has_room = room.fits >= extra
    plan.anchors = [a for a in plan.anchors if a.block_hash not in lost and has_room]
    plan.snapshots = {k: v for k, v in plan.snapshots.items() if k not in lost and has_room}


def records_of(request: Request, plan: Plan) -> list[Record]:
    """Return the records of a plan: blocks in path order, then what hangs on them."""
    fingerprint, hashes, none = request.fingerprint, plan.hashes, bytes(32)
    raw_ids, records = memoryview(request.raw_ids), []
    if plan.needs_fingerprint and not plan.is_empty:
        payload = [msgpack.packb(fingerprint.fields)]
        kind = Kind.FINGERPRINT
        records.append(Record(kind, fingerprint.digest, none, fingerprint.short, payload))
    for i in plan.new:
        at = i - request.first_block
        pieces: list[bytes | memoryview] = [raw_ids[i * IDS_BYTES : (i + 1) * IDS_BYTES]]
        for stream in request.streams:
            size = stream.block_bytes
            pieces.append(request.rows[stream.name][at * size : (at + 1) * size])
        parent = hashes[i - 1] if i else fingerprint.root
        records.append(
            Record(Kind.BLOCK, hashes[i], parent, fingerprint.short, pieces, position=i * 128)
        )
    for key, data in plan.snapshots.items():
        records.append(Record(Kind.SNAPSHOT, key, none, fingerprint.short, [data]))
    for anchor in plan.anchors:
        # The parent field tells an anchor before the first block from others at a rebuild.
        key = anchor.block_hash
        parent = key if key == fingerprint.root else none
        records.append(
            Record(Kind.ANCHOR, key, parent, fingerprint.short, [anchor_row.payload(anchor)])
        )
    return records
