"""Commit: write the new blocks of one path with what hangs on them, then publish them at once.

Knows the order that makes a crash harmless: records, one sync, one index transaction. Invariants: a
block is published only with its whole path, and what was published before is never rewritten.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import msgpack

from ced_kvstore.core import Core
from ced_kvstore.entry import Entry
from ced_kvstore.evict import make_room
from ced_kvstore.hashing import IDS_BYTES, chain
from ced_kvstore.index import Index
from ced_kvstore.record import Kind, Place, Record, span
from ced_kvstore.request import Request
from ced_kvstore.results import Anchor, Commit
from ced_kvstore.rows import Tables

KEEP_SNAPSHOTS = 2
"""Newest snapshots of a branch that stay; older ones only at pins and forks."""


@dataclasses.dataclass(slots=True)
class _Plan:
    """What of a request is new."""

    hashes: list[bytes]
    new: list[int]
    """Blocks to write, as indices into `hashes`."""
    anchors: list[Anchor]
    snapshots: dict[bytes, memoryview]
    stamp: int
    needs_fingerprint: bool
    reason: str | None = None


def commit(core: Core, index: Index, request: Request) -> Commit:
    """Store what is new; the caller holds core.lock. Raises one of errors.TROUBLE."""
    plan = _plan(core, request)
    if plan.reason and not plan.hashes:
        return Commit(0, 0, plan.reason)
    asked = len(plan.hashes) - request.first_block
    skipped = asked - len(plan.new)
    _fit(core, index, request, plan)
    records = _records(request, plan)
    if records:
        places = core.segments.append(records, plan.stamp)
        index.write(lambda tables: _publish(core, tables, request, plan, records, places))
        core.touched.clear()
        core.bad.clear()
        core.counters.blocks_written += len(plan.new)
    return Commit(len(plan.new), skipped, plan.reason)


def _plan(core: Core, request: Request) -> _Plan:
    root, first = request.fingerprint.root, request.first_block
    hashes = list(chain(root, request.raw_ids))
    with core.read() as tables:
        if first > 0 and tables.block(hashes[first - 1]) is None:
            return _Plan([], [], [], {}, 0, False, f"the path below block {first} is not stored")

        def is_missing(key: bytes) -> bool:
            return tables.block(key) is None or core.is_bad(key, tables)

        new = [i for i in range(first, len(hashes)) if is_missing(hashes[i])]
        known = {root, *hashes}
        plan = _Plan(
            hashes,
            new,
            [],
            {},
            tables.get_meta("stamp") + 1,
            not tables.has_fingerprint(request.fingerprint.digest),
        )
        for anchor in request.anchors:
            entry = tables.block(anchor.block_hash)
            if entry is None and anchor.block_hash not in known:
                plan.reason = "an anchor's block is not stored"
                continue
            end = 0 if anchor.block_hash == root else None
            if anchor.block_hash in hashes:
                end = 128 * (hashes.index(anchor.block_hash) + 1)
            elif entry is not None:
                end = entry.position + 128
            # Only a removal takes a pin away, no later anchor of the same name.
            was_pinned = any(
                old.pinned and old.label == anchor.label
                for old, _ in tables.anchors(anchor.block_hash)
            )
            dated = dataclasses.replace(
                anchor,
                pinned=anchor.pinned or was_pinned,
                created=anchor.created or time.time(),
                n_tokens=anchor.n_tokens or end or 0,
            )
            if _is_news(tables, dated):
                plan.anchors.append(dated)
        for key, data in request.snapshots.items():
            if tables.block(key) is None and key not in hashes:
                plan.reason = "a snapshot's block is not stored"
            elif tables.snapshot(key) is None or core.is_bad(key, tables):
                plan.snapshots[key] = data
    return plan


def _is_news(tables: Tables, anchor: Anchor) -> bool:
    return not any(
        old.label == anchor.label
        and (old.kind, old.pinned, old.n_tokens) == (anchor.kind, anchor.pinned, anchor.n_tokens)
        for old, _ in tables.anchors(anchor.block_hash)
    )


def _fit(core: Core, index: Index, request: Request, plan: _Plan) -> None:
    """Make room for the plan within the byte budget, or cut it to what fits."""
    if not (plan.new or plan.anchors or plan.snapshots):
        return
    block = span(IDS_BYTES + sum(stream.block_bytes for stream in request.streams))
    extra = sum(span(len(data)) for data in plan.snapshots.values())
    extra += sum(span(len(piece)) for a in plan.anchors for piece in _anchor_payload(a))
    extra += span(len(msgpack.packb(request.fingerprint.fields))) * plan.needs_fingerprint
    need = len(plan.new) * block + extra
    room = make_room(core, index, need, keep=plan.hashes)
    if room >= need:
        return
    plan.reason = "the byte budget is full of pinned blocks and the path in use"
    cut = plan.new[max(0, room - extra) // block :]
    plan.new = plan.new[: len(plan.new) - len(cut)]
    lost = {plan.hashes[i] for i in cut}
    plan.anchors = [a for a in plan.anchors if a.block_hash not in lost and room >= extra]
    plan.snapshots = {k: v for k, v in plan.snapshots.items() if k not in lost and room >= extra}


def _anchor_payload(anchor: Anchor) -> list[bytes]:
    row = [anchor.label, anchor.kind, anchor.pinned, anchor.created, anchor.n_tokens]
    return [msgpack.packb(row)]


def _records(request: Request, plan: _Plan) -> list[Record]:
    """Return the records of a plan: blocks in path order, then what hangs on them."""
    fingerprint, hashes, none = request.fingerprint, plan.hashes, bytes(32)
    raw_ids, records = memoryview(request.raw_ids), []
    if plan.needs_fingerprint and (plan.new or plan.anchors or plan.snapshots):
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
        payload = _anchor_payload(anchor)
        records.append(Record(Kind.ANCHOR, key, parent, fingerprint.short, payload))
    return records


def _publish(
    core: Core,
    tables: Tables,
    request: Request,
    plan: _Plan,
    records: Sequence[Record],
    places: Sequence[Place],
) -> None:
    """Enter written records into the index, all in one transaction."""
    anchors = iter(plan.anchors)
    for record, place in zip(records, places, strict=True):
        tables.extend_segment(place)
        if record.kind is Kind.BLOCK:
            fingerprint, parent = record.fingerprint, record.parent
            entry = Entry(place, record.position, False, fingerprint, parent)
            # Where a bad block is mended, what was stored with it is not to be trusted either.
            tables.drop_snapshot(record.key)
            tables.put_block(record.key, entry)
        elif record.kind is Kind.SNAPSHOT:
            if tables.block(record.key):
                tables.put_snapshot(record.key, place)
        elif record.kind is Kind.ANCHOR:
            # Making room may just have evicted a block that is not on this path.
            anchor = next(anchors)
            if anchor.block_hash == request.fingerprint.root or tables.block(anchor.block_hash):
                tables.put_anchor(anchor, place)
        else:
            tables.put_fingerprint(record.key, request.fingerprint.fields, place)
    tables.put_meta("stamp", plan.stamp)
    if plan.new:
        tables.put_heat(plan.hashes[plan.new[-1]], time.time(), 1.0)
    core.settle(tables)
    if plan.snapshots:
        _thin_snapshots(tables, plan.hashes)


def _thin_snapshots(tables: Tables, hashes: Sequence[bytes]) -> None:
    """Drop the snapshots of a path but the newest two and the last one before each pin and fork."""
    kept, wanted = 0, False
    for key in reversed(hashes):
        is_pinned = any(anchor.pinned for anchor, _ in tables.anchors(key))
        wanted = wanted or is_pinned or len(tables.children(key)) > 1
        if tables.snapshot(key) is None:
            continue
        kept += 1
        if kept > KEEP_SNAPSHOTS and not wanted:
            tables.drop_snapshot(key)
        wanted = False
