"""Read matched blocks into the caller's buffers, and snapshots.

Knows which record is the right one, and what to do about one that is not. Invariants: a block
counts only after its header, its ids and the checksum of its payload were compared; a record that
is damaged, or that its disk twice fails to give, is told from one that was moved.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from ced_kvstore.core import Core
from ced_kvstore.deadline import DEADLINES, timed
from ced_kvstore.errors import TROUBLE, BadRecord
from ced_kvstore.hashing import FORMAT_VERSION, IDS_BYTES, Fingerprint
from ced_kvstore.read_plan import Rows, Span
from ced_kvstore.record import HEADER_BYTES, MAGIC, Kind, Place, checksum
from ced_kvstore.restore import Restore
from ced_kvstore.results import Match, Stream

SEGMENTS_AT_A_TIME = 64
"""Segments open at a time, so that a path through many of them needs few descriptors."""

# A record.Header of every field takes as long to make as 50 KB take to read.
_START = struct.pack("<4sHH", MAGIC, FORMAT_VERSION, Kind.BLOCK)
_HEADER = struct.Struct("<8xI12x32s32x16s16s4xI")
"""Length, key, fingerprint, checksum, crc32."""


class Loader:
    """One read of consecutive blocks of one match."""

    def __init__(
        self,
        core: Core,
        fingerprint: Fingerprint,
        streams: Sequence[Stream],
        match: Match,
        buffers: Mapping[str, memoryview],
        first_block: int,
    ) -> None:
        self._core = core
        self._short = fingerprint.short
        self._match = match
        self._first = first_block
        self._rows = Rows(streams, buffers)
        self._length = IDS_BYTES + self._rows.n_bytes
        self._good: set[int] = set()

    @property
    def good(self) -> int:
        """How many blocks are whole, from the first on."""
        count = 0
        while count in self._good:
            count += 1
        return count

    def run(self, count: int) -> None:
        """Read up to `count` blocks; `good` says how many are whole.

        Raises one of errors.TROUBLE; `good` holds all the same. Nobody touches the buffers after
        it. What is damaged behind a bad record is found, too, so that one commit mends all of it.
        """
        try:
            wanted: Iterable[int] = range(count)
            # Perhaps a record was moved meanwhile, so look up once more; and one unreadable sector
            # fails a whole call, so read alone.
            for again in (False, True):
                places = self._places(wanted)
                wanted = self._read(places, alone=again)
                if not wanted:
                    return
            for index in wanted:
                self._core.quarantine(self._hash(index), places[index])
        finally:
            self._rows.release()

    def _hash(self, index: int) -> bytes:
        return self._match.hashes[self._first + index]

    def _places(self, indices: Iterable[int]) -> dict[int, Place]:
        places, bad = {}, self._core.bad
        with self._core.read() as tables:
            for index in indices:
                key = self._hash(index)
                entry = tables.block(key)
                # What `Core.is_bad` says, without asking the index twice.
                if entry and not entry.bad and not (bad and entry.place in bad):
                    places[index] = entry.place
        return places

    def _read(self, places: Mapping[int, Place], *, alone: bool) -> set[int]:
        """Read these records; return those that are not what they should be."""
        plan = self._rows.plan(places, alone=alone)
        bad = {index for index, place in places.items() if place.length != self._length}
        for spans in _by_segments(plan):
            restore = Restore(self._core, self._rows, self._is_good, spans)
            try:
                restore.run()
            finally:
                self._good |= restore.good
            bad |= restore.bad
        return bad

    def _is_good(self, index: int, head: bytes, rows: Sequence[memoryview]) -> bool:
        ids, start = head[HEADER_BYTES:], (self._first + index) * IDS_BYTES
        length, key, fingerprint, stored, crc = _HEADER.unpack_from(head)
        return (
            zlib.crc32(head[: HEADER_BYTES - 4]) == crc
            and head[: len(_START)] == _START
            and (length, key, fingerprint) == (self._length, self._hash(index), self._short)
            and ids == self._match.raw_ids[start : start + IDS_BYTES]
            and checksum((ids, *rows)) == stored
        )


def _by_segments(spans: Sequence[Span]) -> Iterable[list[Span]]:
    numbers = sorted({span.segment for span in spans})
    for first in range(0, len(numbers), SEGMENTS_AT_A_TIME):
        some = set(numbers[first : first + SEGMENTS_AT_A_TIME])
        yield [span for span in spans if span.segment in some]


def load_snapshot(core: Core, fingerprint: Fingerprint, block_hash: bytes) -> bytes | None:
    """Return a block's snapshot, None when there is none, or none that is whole.

    One that is not whole is not offered again, and the next commit that has a copy stores it anew.
    """
    with contextlib.suppress(*TROUBLE):
        # Perhaps it was moved meanwhile, so look up once more.
        for again in (False, True):
            with core.read() as tables:
                place = tables.snapshot(block_hash)
            if place is None or place in core.bad:
                break
            read = partial(core.segments.read_payload, place, Kind.SNAPSHOT, block_hash)
            try:
                header, payload = timed(core, read, DEADLINES["snapshot"].within(place.length))
            except BadRecord:
                if again:
                    core.bad[place] = block_hash
            else:
                return bytes(payload) if header.fingerprint == fingerprint.short else None
    return None
