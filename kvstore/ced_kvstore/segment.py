"""The segment files: append records at the end, read them back, drop whole files.

Knows records and places and not what is in them or in the index. Invariant: bytes below an indexed
end are never written again, and a segment is never truncated; it only disappears as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ced_kvstore.errors import BadRecord
from ced_kvstore.files import IOV_MAX, Files
from ced_kvstore.record import ALIGN, HEADER_BYTES, Header, Place, Record, checksum, span

MAX_SEGMENT_BYTES = 256 << 20
MIN_SEGMENT_BYTES = 64 << 10

_ZEROS = memoryview(bytes(ALIGN))


def segment_limit(max_bytes: int) -> int:
    """Return the size at which a new segment is begun: small beside the budget, so that moving
    the live records out of one never needs much room."""
    return max(MIN_SEGMENT_BYTES, min(MAX_SEGMENT_BYTES, max_bytes // 32))


class Segments:
    """The folder of segments; only the writer appends, everybody reads."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self.folder = folder
        self.limit = MAX_SEGMENT_BYTES
        self.ends: dict[int, int] = {}
        """Writer only: indexed end of each segment."""
        self.active: int | None = None
        self._fd: int | None = None
        self._next = 1

    def path(self, number: int) -> Path:
        """Return a segment's path."""
        return self.folder / f"{number:06d}.kvs"

    def numbers(self) -> list[int]:
        """Return the numbers of the files there are."""
        names = self._files.names(self.folder)
        return [int(n[:-4]) for n in names if n.endswith(".kvs") and n[:-4].isdigit()]

    def size(self, number: int) -> int:
        """Return the file's size, 0 when it is gone."""
        return self._files.size(self.path(number))

    def resume(self, ends: dict[int, int]) -> None:
        """Writer: go on after the newest segment's indexed end; numbers are never used twice."""
        self.ends = dict(ends)
        self._next = max([0, *ends, *self.numbers()]) + 1
        newest = max(ends, default=None)
        if newest is not None and self.size(newest) >= ends[newest]:
            self.active = newest

    def accept(self, ends: dict[int, int]) -> None:
        """Writer: take over ends that were corrected; a truncated segment is not continued."""
        if self.active is not None and self.ends[self.active] != ends.get(self.active):
            self.finish_active()
        self.ends = dict(ends)

    def total(self) -> int:
        """Writer: bytes of all segments."""
        return sum(self.ends.values())

    def append(self, records: Sequence[Record], stamp: int) -> list[Place]:
        """Write records behind the active end and make them durable; nobody sees them yet.

        A commit that is not published leaves bytes behind the indexed end, which the next process
        to open the store overwrites. Raises OSError.
        """
        if self.active is not None and self.size(self.active) < self.ends[self.active]:
            # Somebody truncated or removed the file under us; what goes there would be lost.
            self.finish_active()
        places: list[Place] = []
        pieces: list[bytes | memoryview] = []
        start = 0
        for record in records:
            size = span(record.length)
            active = self.active
            if active is None or 0 < self.ends[active] > self.limit - size:
                self._write(pieces, start)
                pieces = []
                active = self._roll()
            if not pieces:
                start = self.ends[active]
            padding = _ZEROS[: size - HEADER_BYTES - record.length]
            pieces += [record.header(stamp).pack(), *record.pieces, padding]
            places.append(Place(active, self.ends[active], record.length))
            self.ends[active] += size
            if len(pieces) > IOV_MAX - 64:
                self._write(pieces, start)
                pieces = []
        self._write(pieces, start)
        if self._fd is not None:
            self._files.sync_data(self._fd)
        return places

    def _write(self, pieces: list[bytes | memoryview], offset: int) -> None:
        if pieces:
            assert self.active is not None
            if self._fd is None:
                self._fd = self._files.open(self.path(self.active), write=True)
            self._files.pwritev(self._fd, pieces, offset)

    def _roll(self) -> int:
        """Begin a new segment; the one before is durable from here on."""
        if self._fd is not None:
            self._files.sync_data(self._fd)
        self.finish_active()
        number = self._next
        self._fd = self._files.open(self.path(number), write=True, create=True)
        self._files.sync_directory(self.folder)
        self._next += 1
        self.active = number
        self.ends[number] = 0
        return number

    def finish_active(self) -> None:
        """Append no more to the active segment."""
        if self._fd is not None:
            self._files.close(self._fd)
        self._fd = self.active = None

    def drop(self, number: int) -> None:
        """Unlink a segment in which no record is live; readers that have it open go on reading."""
        if number == self.active:
            self.finish_active()
        self._files.unlink(self.path(number))
        self.ends.pop(number, None)

    def read_header_at(self, number: int, offset: int, extra: int = 0) -> tuple[Header, bytes]:
        """Return the checked header at an offset and the first `extra` payload bytes.

        Raises BadRecord when none is there; the payload is not checked.
        """
        raw = self._read(number, offset, HEADER_BYTES + extra)
        header = Header.unpack(raw[:HEADER_BYTES])
        if len(raw) < HEADER_BYTES + extra or header.length < extra:
            raise BadRecord("the segment ends before the record does")
        return header, bytes(raw[HEADER_BYTES:])

    def read_header(self, place: Place, extra: int = 0) -> tuple[Header, bytes]:
        """Return the checked header of a known record and its first `extra` payload bytes."""
        header, start = self.read_header_at(place.segment, place.offset, extra)
        if header.length != place.length:
            raise BadRecord("the record has another length than the index says")
        return header, start

    def read_payload(self, place: Place, kind: int, key: bytes | None) -> tuple[Header, bytearray]:
        """Return a whole record, its payload checked, of any key if None; raises BadRecord."""
        raw = self._read(place.segment, place.offset, HEADER_BYTES + place.length)
        header = Header.unpack(raw[:HEADER_BYTES])
        check_header(header, kind, header.key if key is None else key, place.length)
        payload = raw[HEADER_BYTES:]
        if len(payload) < place.length or checksum([payload]) != header.checksum:
            raise BadRecord("the payload's checksum does not fit")
        return header, payload

    def _read(self, number: int, offset: int, size: int) -> bytearray:
        raw = bytearray(size)
        try:
            fd = self._files.open(self.path(number))
        except OSError as error:
            raise BadRecord(f"segment {number:06d} cannot be opened: {error.strerror}") from None
        try:
            got = self._files.preadv(fd, [memoryview(raw)], offset)
        except OSError as error:
            raise BadRecord(f"segment {number:06d} cannot be read: {error.strerror}") from None
        finally:
            self._files.close(fd)
        del raw[got:]
        return raw


def check_header(header: Header, kind: int, key: bytes, length: int) -> None:
    """Raise BadRecord unless this is the record that was looked for."""
    if header.kind != kind or header.key != key:
        raise BadRecord("another record is in this place")
    if header.length != length:
        raise BadRecord("the record has another length than the index says")
