"""The lower tables of the index: counters, segment statistics, and which record is where.

Knows places and kinds and not what a record is for (rows.py does). Invariant: a segment's live
bytes are the sum of the spans of its places.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import lmdb

from ced_kvstore.record import MAX_SEGMENT, Kind, Place

INDEX_VERSION = 2
"""Version of these tables; another one is rebuilt from the segments."""

TABLES: dict[str, dict[str, Any]] = {
    "meta": {},
    "blocks": {},
    "children": {"dupsort": True, "dupfixed": True},
    "snapshots": {},
    "anchors": {},
    "fingerprints": {},
    "places": {},
    "segments": {},
    "heat": {},
    "gone": {},
}

_PLACE_KEY = struct.Struct(">IQ")
_PURGE = b"purge."
_SEGMENT = struct.Struct("<QQQ")
_END_OF_TIME = (1 << 64) - 1

_MOST = {"segment": MAX_SEGMENT}
"""Highest values of counters; others have 63 bits, so that what is added still fits a record."""

_KEY_BYTES = {Kind.BLOCK: 32, Kind.SNAPSHOT: 32, Kind.ANCHOR: 48, Kind.FINGERPRINT: 32}
"""Bytes of the key of the row that a record belongs to; a removal has no row."""


class PlaceTables:
    """The tables below the rows, in one transaction; everything returned is a copy.

    Where a row is not one, a method raises whatever comes of that: Index makes it a BadIndex.
    """

    def __init__(self, txn: lmdb.Transaction, tables: dict[str, Any]) -> None:
        self._txn = txn
        self._t = tables

    # Small values.

    def get_meta(self, name: str) -> int:
        """Return a counter, 0 when it was never set."""
        value = int.from_bytes(self._get("meta", name.encode()) or b"", "little")
        if value > _MOST.get(name, (1 << 63) - 1):
            raise ValueError(f"the counter {name} is {value}")
        return value

    def put_meta(self, name: str, value: int) -> None:
        """Set a counter."""
        self._put("meta", name.encode(), value.to_bytes(8, "little"))

    def segments(self) -> dict[int, tuple[int, int]]:
        """Return segment -> (indexed end, live bytes)."""
        return {number: (end, live) for number, (end, live, _since) in self._segments()}

    def oldest_stamps(self) -> dict[int, int]:
        """Return segment -> a stamp that none of its records which could be void is below."""
        return {number: since for number, (_end, _live, since) in self._segments()}

    def put_segment(self, number: int, end: int, live: int) -> None:
        """Set a segment's statistics."""
        _end, _live, since = self._segment(number)
        self._put_segment(number, end, live, since)

    def mark_segment(self, number: int, stamp: int) -> None:
        """Say that a segment has records of this stamp."""
        end, live, since = self._segment(number)
        self._put_segment(number, end, live, min(since, stamp))

    def drop_segment(self, number: int) -> None:
        """Forget a segment and whatever is still placed in it."""
        for place, _kind, _key in list(self.placed(number)):
            self._delete("places", _PLACE_KEY.pack(place.segment, place.offset))
        self._delete("segments", number.to_bytes(4, "big"))
        self.end_purge(number)

    def ask_purge(self, number: int) -> None:
        """Have a segment emptied by whoever can, however much of it is live, and its file unlinked;
        written down until `end_purge`."""
        self.put_meta(f"purge.{number}", 1)

    def end_purge(self, number: int) -> None:
        """Ask no more: the file is gone."""
        self._delete("meta", f"purge.{number}".encode())

    def purges(self) -> list[int]:
        """Return the segments that are to go, also those that only their file is left of."""
        cursor = self._txn.cursor(self._t["meta"])
        found: list[int] = []
        is_there = cursor.set_range(_PURGE)
        while is_there and bytes(cursor.key()).startswith(_PURGE):
            name = bytes(cursor.key()).decode()
            number = int(name[len(_PURGE) :])
            if not 0 < number <= MAX_SEGMENT or name != f"purge.{number}":
                raise ValueError(f"a segment of the name {name}")
            if self.get_meta(name):
                found.append(number)
            is_there = cursor.next()
        return sorted(found)

    # Places: which record is where. Kept for every live record of every kind.

    def placed(self, number: int | None = None) -> Iterator[tuple[Place, Kind, bytes]]:
        """Yield (place, kind, row key) of the live records, of one segment or of all, in order."""
        cursor = self._txn.cursor(self._t["places"])
        found = cursor.set_range(_PLACE_KEY.pack(number or 0, 0))
        while found:
            segment, offset = _PLACE_KEY.unpack(cursor.key())
            if number is not None and segment != number:
                return
            raw = bytes(cursor.value())
            length = int.from_bytes(raw[1:5], "little")
            kind, key = Kind(raw[0]), raw[5:]
            if len(key) != _KEY_BYTES.get(kind, 0):
                raise ValueError(f"a record of kind {kind} belongs to {key!r}")
            yield Place(segment, offset, length), kind, key
            found = cursor.next()

    def extend_segment(self, place: Place) -> None:
        """Move a segment's end behind a record, whether or not it is live."""
        end, live, since = self._segment(place.segment)
        self._put_segment(place.segment, max(end, place.end), live, since)

    def add_place(self, place: Place, kind: Kind, key: bytes) -> None:
        """Count a record as live."""
        value = bytes([kind]) + place.length.to_bytes(4, "little") + key
        self._put("places", _PLACE_KEY.pack(place.segment, place.offset), value)
        end, live, since = self._segment(place.segment)
        self._put_segment(place.segment, max(end, place.end), live + place.span, since)

    def has_place(self, place: Place) -> bool:
        """Say whether a record in this place is live."""
        return self._get("places", _PLACE_KEY.pack(place.segment, place.offset)) is not None

    def drop_place(self, place: Place) -> None:
        """Count a record as dead."""
        if self._delete("places", _PLACE_KEY.pack(place.segment, place.offset)):
            end, live, since = self._segment(place.segment)
            self._put_segment(place.segment, end, max(0, live - place.span), since)

    def _segments(self) -> Iterator[tuple[int, tuple[int, int, int]]]:
        for key, value in self.items("segments"):
            number = int.from_bytes(key, "big")
            if number > MAX_SEGMENT:
                raise ValueError(f"a segment of number {number}")
            yield number, _SEGMENT.unpack(value)

    def _segment(self, number: int) -> tuple[int, int, int]:
        raw = self._get("segments", number.to_bytes(4, "big"))
        return _SEGMENT.unpack(raw) if raw else (0, 0, _END_OF_TIME)

    def _put_segment(self, number: int, end: int, live: int, since: int) -> None:
        # A number is never given to another file: a reader may still hold places in the old one.
        if number > self.get_meta("segment"):
            self.put_meta("segment", number)
        self._put("segments", number.to_bytes(4, "big"), _SEGMENT.pack(end, live, since))

    # Primitives.

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        return self._txn.stat(self._t[table])["entries"]

    def _get(self, table: str, key: bytes) -> bytes | None:
        value = self._txn.get(key, db=self._t[table])
        return None if value is None else bytes(value)

    def _put(self, table: str, key: bytes, value: bytes) -> None:
        self._txn.put(key, value, db=self._t[table])

    def _delete(self, table: str, key: bytes) -> bool:
        return self._txn.delete(key, db=self._t[table])

    def items(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of every row of a table."""
        for key, value in self._txn.cursor(self._t[table]):
            yield bytes(key), bytes(value)
