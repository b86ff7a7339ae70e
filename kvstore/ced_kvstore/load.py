"""Read matched blocks straight into the caller's buffers.

Knows where rows lie in a record and nothing of what they mean. Invariants: a block is counted as
good only after its header, its ids and the checksum of its payload were compared, and payload bytes
never pass through an object of our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ced_kvstore.core import Core
from ced_kvstore.errors import TROUBLE, BadRecord
from ced_kvstore.files import IOV_MAX
from ced_kvstore.hashing import IDS_BYTES, Fingerprint
from ced_kvstore.record import ALIGN, HEADER_BYTES, Header, Kind, Place, checksum
from ced_kvstore.results import Match, Stream
from ced_kvstore.segment import check_header

BATCH_BYTES = 4 << 20
"""Bytes of one preadv: large enough for the disk, small enough that the checksum finds them in the
processor's cache."""

_HEAD = HEADER_BYTES + IDS_BYTES


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
        self._fingerprint = fingerprint
        self._streams = streams
        self._match = match
        self._buffers = buffers
        self._first = first_block
        self.good = 0
        self._length = IDS_BYTES + sum(stream.block_bytes for stream in streams)
        # A stream that nobody asked for is still read: the checksum covers all of them. Records
        # are then read one by one, because the next one would overwrite its bytes.
        unwanted = [stream.block_bytes for stream in streams if stream.name not in buffers]
        self._spare = memoryview(bytearray(ALIGN + sum(unwanted)))
        self._one_by_one = bool(unwanted)

    def run(self, count: int) -> None:
        """Read up to `count` blocks and leave in `good` how many are whole, from the first on.

        Raises one of errors.TROUBLE; `good` holds all the same.
        """
        places = self._places(0, count)
        while self.good < len(places):
            start = self.good
            size = self._batch(places, start)
            self.good += self._read(places[start : start + size], start)
            if self.good == start and size > 1:
                # One unreadable sector fails the whole call; the first record may be well.
                self.good += self._read(places[start : start + 1], start)
            elif self.good == start + size:
                continue
            if self.good < len(places):
                # Perhaps the record was moved meanwhile: look up once more.
                bad = places[self.good]
                places[self.good :] = self._places(self.good, count)
                if self.good < len(places) and places[self.good] == bad:
                    if self._read([bad], self.good):
                        self.good += 1
                        continue
                    self._core.quarantine(self._hash(self.good), bad)
                    self._check_rest(places)
                    return

    def _check_rest(self, places: list[Place]) -> None:
        """Find what else is damaged behind a bad record, so that one commit mends all of it."""
        for index in range(self.good + 1, len(places)):
            try:
                self._core.segments.read_payload(places[index], Kind.BLOCK, self._hash(index))
            except BadRecord:
                self._core.quarantine(self._hash(index), places[index])

    def _hash(self, index: int) -> bytes:
        return self._match.hashes[self._first + index]

    def _places(self, start: int, count: int) -> list[Place]:
        places = []
        with self._core.read() as tables:
            for index in range(start, count):
                key = self._hash(index)
                entry = tables.block(key)
                if entry is None or self._core.is_bad(key, tables):
                    break
                places.append(entry.place)
        return places

    def _batch(self, places: list[Place], start: int) -> int:
        """Return how many records from `start` on lie one behind the other and fit one preadv."""
        pieces_each = len(self._streams) + 2
        end = start + 1
        while (
            not self._one_by_one
            and end < len(places)
            and places[end].segment == places[start].segment
            and places[end].offset == places[end - 1].end
            and places[end].end - places[start].offset <= BATCH_BYTES
            and (end + 1 - start) * pieces_each <= IOV_MAX
        ):
            end += 1
        return end - start

    def _read(self, places: list[Place], index: int) -> int:
        """Read and check records that lie one behind the other; return how many are good."""
        heads = memoryview(bytearray(_HEAD * len(places)))
        padding = self._spare[: places[0].span - HEADER_BYTES - self._length]
        rows = [self._rows(index + i) for i in range(len(places))]
        pieces: list[memoryview] = []
        for i, each in enumerate(rows):
            pieces += [heads[i * _HEAD : (i + 1) * _HEAD], *each, padding]
        good = 0
        try:
            fd = self._core.files.open(self._core.segments.path(places[0].segment))
        except FileNotFoundError:
            return 0
        try:
            self._core.files.preadv(fd, pieces, places[0].offset)
            for i, place in enumerate(places):
                if place.length != self._length:
                    break
                self._check(heads[i * _HEAD : (i + 1) * _HEAD], rows[i], index + i)
                good += 1
        except (OSError, BadRecord):
            pass
        finally:
            self._core.files.close(fd)
        return good

    def _rows(self, index: int) -> list[memoryview]:
        rows, spare = [], ALIGN
        for stream in self._streams:
            buffer, size = self._buffers.get(stream.name), stream.block_bytes
            if buffer is None:
                rows.append(self._spare[spare : spare + size])
                spare += size
            else:
                rows.append(buffer[index * size : (index + 1) * size])
        return rows

    def _check(self, head: memoryview, rows: list[memoryview], index: int) -> None:
        header = Header.unpack(head[:HEADER_BYTES])
        check_header(header, Kind.BLOCK, self._hash(index), self._length)
        ids = head[HEADER_BYTES:]
        start = (self._first + index) * IDS_BYTES
        if ids != self._match.raw_ids[start : start + IDS_BYTES]:
            raise BadRecord("other token ids are stored in this place")
        if header.fingerprint != self._fingerprint.short:
            raise BadRecord("the record belongs to another fingerprint")
        if checksum([ids, *rows]) != header.checksum:
            raise BadRecord("the payload's checksum does not fit")


def load_snapshot(core: Core, fingerprint: Fingerprint, block_hash: bytes) -> bytes | None:
    """Return a block's snapshot, None when there is none, or none that is whole."""
    try:
        with core.read() as tables:
            place = tables.snapshot(block_hash)
        if place is None:
            return None
        header, payload = core.segments.read_payload(place, Kind.SNAPSHOT, block_hash)
    except TROUBLE:
        return None
    return bytes(payload) if header.fingerprint == fingerprint.short else None
