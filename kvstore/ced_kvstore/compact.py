"""Move the live records out of a segment, so that its file can go.

Knows records as bytes with a kind. Invariants: a record is named by the index at its old or its new
place at every moment, both files are there while it changes over, no segment goes that another
process appends to, and of one that goes a row is left until its file is gone.
"""

from __future__ import annotations

import contextlib

from ced_kvstore.core import Core
from ced_kvstore.errors import BadRecord
from ced_kvstore.index import Index
from ced_kvstore.leftovers import sweep
from ced_kvstore.record import Header, Kind, Place, Record
from ced_kvstore.rows import Tables

BATCH_BYTES = 32 << 20
"""Bytes moved in one go; what is held in memory meanwhile."""

UNLIMITED = 1 << 62

INDEX_MARGIN = 64 << 10
"""Bytes left for the pages that the next index transaction adds."""

Placed = tuple[Place, Kind, bytes]


def used_bytes(tables: Tables, index: Index) -> int:
    """Return what the budget limits: segments and index on disk."""
    return sum(end for end, _live in tables.segments().values()) + index.used_bytes()


def live_bytes(tables: Tables) -> int:
    """Return the bytes of live records."""
    return sum(live for _end, live in tables.segments().values())


def reclaim(core: Core, index: Index, to_bytes: int = UNLIMITED, max_moved: int = UNLIMITED) -> int:
    """Unlink dead segments, empty those that are to be purged, and then the emptiest until
    `to_bytes` are in use, all until `max_moved` bytes were moved; return the segments that went.

    The caller holds the lease. Raises one of errors.TROUBLE.
    """
    stuck: set[int] = set()
    gone: list[int] = []
    moved = 0
    sweep(core.writer, index, core.segments)
    while True:
        with index.read() as tables:
            segments, used = tables.segments(), used_bytes(tables, index)
            purges = [n for n in tables.purges() if n not in stuck and n not in gone]
        shares = {n: live / end for n, (end, live) in segments.items() if live < end}
        shares = {n: share for n, share in shares.items() if n not in stuck}
        emptiest = min(shares, key=shares.__getitem__, default=None)
        if purges and moved <= max_moved:
            emptiest = purges[0]
        elif emptiest is None or (shares[emptiest] and (moved > max_moved or used <= to_bytes)):
            return _end(index, gone)
        if move_out(core, index, emptiest):
            moved += segments.get(emptiest, (0, 0))[1]
            gone.append(emptiest)
        else:
            stuck.add(emptiest)


def purge(core: Core, index: Index) -> int:
    """Move live records out of every segment that has a dead one; return the segments that went.

    It is written down first, so that whoever comes next finishes it; those that have to wait are
    then in `tables.purges()`. The caller holds the lease.
    """

    def ask(tables: Tables) -> None:
        for number, (end, live) in tables.segments().items():
            if live < end:
                tables.ask_purge(number)

    # What is dead as a whole goes first, and with it the removals that spoke of it.
    count = reclaim(core, index)
    index.write(ask)
    return count + reclaim(core, index)


def compact(core: Core, index: Index) -> int:
    """Move live records out of segments less than half of which is live; return the segments that
    went. The caller holds the lease."""
    count = reclaim(core, index)
    with index.read() as tables:
        segments = tables.segments()
    wasteful = [number for number, (end, live) in segments.items() if 2 * live < end]
    return count + _end(index, [number for number in wasteful if move_out(core, index, number)])


def _end(index: Index, gone: list[int]) -> int:
    """Write down that the files of some segments are gone, and return how many."""

    def end(tables: Tables) -> None:
        for number in gone:
            tables.end_purge(number)

    if gone:
        index.write(end)
    return len(gone)


def move_out(core: Core, index: Index, number: int) -> bool:
    """Move what is live in a segment behind what this process appends, then unlink it.

    That it is to go stays written down: whoever comes next does what a killed process could not.

    False, and nothing moved, when another process appends to it, or when the disk has no room for
    the copies. Records that turn out damaged are left behind, blocks among them as bad. Raises one
    of errors.TROUBLE.
    """
    with core.writer.claim(number) as is_ours:
        if not is_ours:
            return False
        with index.read() as tables:
            placed = list(tables.placed(number))
            others = {n: since for n, since in tables.oldest_stamps().items() if n != number}
        if placed and not _fits(core, sum(place.span for place, _kind, _key in placed)):
            return False
        batch: list[Placed] = []
        size = 0
        for place, kind, key in placed:
            batch.append((place, kind, key))
            size += place.span
            if size >= BATCH_BYTES:
                _move(core, index, batch, others)
                batch, size = [], 0
        _move(core, index, batch, others, then_drop=number)
        core.segments.drop(number)
        # Else a power cut could bring purged bytes back.
        core.files.sync_directory(core.segments.folder)
    return True


def _fits(core: Core, n_bytes: int) -> bool:
    with contextlib.suppress(OSError):
        return n_bytes + INDEX_MARGIN <= core.files.free_bytes(core.directory)
    return True


def _move(
    core: Core,
    index: Index,
    batch: list[Placed],
    others: dict[int, int],
    then_drop: int | None = None,
) -> None:
    """Move some records; with the last ones the segment goes from the index, so that its bytes are
    never counted twice, and its file is to be unlinked."""
    records: list[Record] = []
    moved: list[Placed] = []
    lost: list[Placed] = []
    for place, kind, key in batch:
        if place in core.bad:
            lost.append((place, kind, key))
            continue
        try:
            header, payload = core.segments.read_payload(place, kind, None)
            if kind is not Kind.REMOVED and header.key != key[:32]:
                raise BadRecord("another record is in this place")
        except BadRecord:
            lost.append((place, kind, key))
            continue
        # A removal speaks of records that lie in segments as old as itself; with none left it is
        # void, and goes with its segment.
        if kind is not Kind.REMOVED or any(since <= header.stamp for since in others.values()):
            records.append(_copy(header, payload))
            moved.append((place, kind, key))
    places = core.writer.append(index, records, 0)

    def change(tables: Tables) -> None:
        stamp = tables.get_meta("stamp")
        for (old, kind, key), new in zip(moved, places, strict=True):
            tables.extend_segment(new)
            # A moved record is live; only a later removal can make it void.
            tables.mark_segment(new.segment, stamp)
            tables.move(kind, key, old, new)
        for place, kind, key in lost:
            tables.lose(place, kind, key)
        if then_drop is not None:
            tables.drop_segment(then_drop)
            tables.ask_purge(then_drop)

    index.write(change)
    core.writer.published(places)


def _copy(header: Header, payload: bytearray) -> Record:
    return Record(
        Kind(header.kind),
        header.key,
        header.parent,
        header.fingerprint,
        [memoryview(payload)],
        header.position,
        header.stamp,
    )
