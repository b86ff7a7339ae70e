"""Move the live records out of a segment, so that its file can go.

Knows records as bytes with a kind. Invariant: a record is named by the index at its old or its new
place at every moment, and both files are there while it changes over.
"""

from __future__ import annotations

from ced_kvstore.core import Core
from ced_kvstore.errors import BadRecord
from ced_kvstore.index import Index
from ced_kvstore.record import Kind, Place, Record
from ced_kvstore.rows import Tables

BATCH_BYTES = 32 << 20
"""Bytes moved in one go; what is held in memory meanwhile."""

Placed = tuple[Place, Kind, bytes]


def move_out(core: Core, index: Index, number: int) -> None:
    """Move what is live in a segment to the end of the newest one, then unlink it.

    Records that turn out damaged are left behind, blocks among them as bad. Raises one of
    core.TROUBLE.
    """
    if core.segments.active == number:
        core.segments.finish_active()
    with index.read() as tables:
        placed = list(tables.placed(number))
        # A removal speaks of records in older segments; with none of them left it is void.
        is_oldest = number == min(tables.segments())
    batch: list[Placed] = []
    size = 0
    for place, kind, key in placed:
        if kind is Kind.REMOVED and is_oldest:
            continue
        batch.append((place, kind, key))
        size += place.span
        if size >= BATCH_BYTES:
            _move(core, index, batch)
            batch, size = [], 0
    _move(core, index, batch)
    forget(core, index, number)


def _move(core: Core, index: Index, batch: list[Placed]) -> None:
    records: list[Record] = []
    moved: list[Placed] = []
    lost: list[Placed] = []
    for place, kind, key in batch:
        try:
            header, payload = core.segments.read_payload(place, kind, None)
            if kind is not Kind.REMOVED and header.key != key[:32]:
                raise BadRecord("another record is in this place")
        except BadRecord:
            lost.append((place, kind, key))
            continue
        records.append(
            Record(
                kind,
                header.key,
                header.parent,
                header.fingerprint,
                [memoryview(payload)],
                header.position,
                header.stamp,
            )
        )
        moved.append((place, kind, key))
    places = core.segments.append(records, 0)

    def change(tables: Tables) -> None:
        for (old, kind, key), new in zip(moved, places, strict=True):
            tables.extend_segment(new)
            tables.move(kind, key, old, new)
        for place, kind, key in lost:
            tables.lose(place, kind, key)

    index.write(change)


def forget(core: Core, index: Index, number: int) -> None:
    """Take a segment without live records out of the index, then unlink it."""
    index.write(lambda tables: tables.drop_segment(number))
    core.segments.drop(number)
