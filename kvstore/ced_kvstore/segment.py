"""The folder of segment files: read records back, drop whole files.

Knows records and places and not what is in them or in the index; writer.py appends. Invariant: a
segment is never truncated; it only disappears as a whole.
"""

from __future__ import annotations

from pathlib import Path

from ced_kvstore.errors import BadRecord
from ced_kvstore.files import Files
from ced_kvstore.record import HEADER_BYTES, MAX_SEGMENT, Header, Place, checksum


class Segments:
    """The segments of one directory, as files."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self.folder = folder

    def path(self, number: int) -> Path:
        """Return a segment's path."""
        return self.folder / f"{number:06d}.kvs"

    def numbers(self) -> list[int]:
        """Return the numbers of the files there are."""
        named = [(name, _number(name)) for name in self._files.names(self.folder)]
        # Only under the name that we give it, it can be found again.
        return [n for name, n in named if n is not None and self.path(n).name == name]

    def size(self, number: int) -> int:
        """Return the file's size, 0 when it is gone."""
        return self._files.size(self.path(number))

    def drop(self, number: int) -> None:
        """Unlink a segment in which no record is live; readers that have it open go on reading."""
        self._files.unlink(self.path(number))

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
        try:
            # A length is what somebody says; memory is taken for what there is.
            raw = bytearray(min(size, max(0, self.size(number) - offset)))
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


def _number(name: str) -> int | None:
    """Return the number in a segment's name, None in another file's."""
    digits, _, kind = name.partition(".")
    if kind != "kvs" or not digits.isascii() or not digits.isdigit():
        return None
    number = int(digits)
    return number if number <= MAX_SEGMENT else None


def check_header(header: Header, kind: int, key: bytes, length: int) -> None:
    """Raise BadRecord unless this is the record that was looked for."""
    if header.kind != kind or header.key != key:
        raise BadRecord("another record is in this place")
    if header.length != length:
        raise BadRecord("the record has another length than the index says")
