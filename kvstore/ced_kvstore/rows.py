"""The rows of the index, inside one transaction: blocks and their tree, and what hangs on them.

Knows how each row is packed, and keeps the tables in step: a block, its edge to its parent, its
place and its segment's live bytes are put and dropped together. It does no file access and decides
nothing about what to keep.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgpack

from ced_kvstore import anchor_row
from ced_kvstore.entry import BAD_AT, Entry
from ced_kvstore.hashing import Fingerprint, Value
from ced_kvstore.record import Kind, Place
from ced_kvstore.results import Anchor, check_hash
from ced_kvstore.tables import PlaceTables

GONE_ROWS = 50_000
"""Dropped blocks that are remembered, so that a miss can say `evicted`."""

_PLACE = struct.Struct("<IQI")
_HEAT = struct.Struct("<dd")
_WHEN = struct.Struct("<d")


class Tables(PlaceTables):
    """All tables in one transaction; everything returned is a copy."""

    # Blocks and their tree.

    def block(self, key: bytes) -> Entry | None:
        """Return a block's row."""
        raw = self._get("blocks", key)
        return Entry.unpack(raw) if raw else None

    def walk(self, keys: Iterable[bytes]) -> Iterator[tuple[bytes, bool, bool, list[Anchor]]]:
        """Yield (hash, is stored, has a snapshot, anchors) along a path, up to the first block that
        is not there. A thousand blocks take a few milliseconds: no row is unpacked for nothing."""
        get, blocks, snapshots = self._txn.get, self._t["blocks"], self._t["snapshots"]
        any_snapshot, cursor = self.count("snapshots") > 0, None
        if self.count("anchors"):
            cursor = self._txn.cursor(self._t["anchors"])
        for key in keys:
            raw = get(key, db=blocks)
            if raw is None or raw[BAD_AT]:
                yield key, False, False, []
                return
            anchors: list[Anchor] = []
            if cursor is not None and cursor.set_range(key) and cursor.key()[:32] == key:
                anchors = [anchor for anchor, _ in self.anchors(key)]
            yield key, True, any_snapshot and get(key, db=snapshots) is not None, anchors

    def blocks(self) -> Iterator[tuple[bytes, Entry]]:
        """Yield every block."""
        for key, value in self.items("blocks"):
            check_hash(key)
            yield key, Entry.unpack(value)

    def children(self, parent: bytes) -> list[bytes]:
        """Return the hashes of the blocks that follow `parent`."""
        cursor = self._txn.cursor(self._t["children"])
        if not cursor.set_key(parent):
            return []
        return [bytes(value) for value in cursor.iternext_dup()]

    def put_block(self, key: bytes, entry: Entry) -> None:
        """Add a block, or give it a new place."""
        old = self.block(key)
        if old:
            self.drop_place(old.place)
        self._put("blocks", key, entry.pack())
        self._txn.put(entry.parent, key, db=self._t["children"])
        self.add_place(entry.place, Kind.BLOCK, key)
        self._delete("gone", key)

    def mark_bad(self, key: bytes, place: Place) -> bool:
        """Quarantine a block if it is still in this place, whose row keeps the tree whole, or drop
        the snapshot that is."""
        if self.snapshot(key) == place:
            self.drop_snapshot(key)
        entry = self.block(key)
        if entry is None or entry.place != place or entry.bad:
            return False
        self.drop_place(place)
        self._put("blocks", key, replace(entry, bad=True).pack())
        return True

    def drop_block(self, key: bytes, why: str, when: float) -> int:
        """Drop a leaf with its snapshot and anchors; return the bytes that are dead now."""
        entry = self.block(key)
        if entry is None:
            return 0
        freed = 0 if entry.bad else entry.place.span
        self.drop_place(entry.place)
        self._delete("blocks", key)
        self._txn.delete(entry.parent, key, db=self._t["children"])
        self._delete("heat", key)
        freed += self.drop_snapshot(key)
        for anchor, _place in list(self.anchors(key)):
            freed += self.drop_anchor(anchor)
        if self.count("gone") >= GONE_ROWS:
            self._txn.drop(self._t["gone"], delete=False)
        self._put("gone", key, _WHEN.pack(when) + why.encode())
        return freed

    def gone(self, key: bytes) -> tuple[float, str] | None:
        """Return when and why a block was dropped."""
        raw = self._get("gone", key)
        return (_WHEN.unpack_from(raw)[0], raw[8:].decode(errors="replace")) if raw else None

    # What hangs on a block.

    def snapshot(self, key: bytes) -> Place | None:
        """Return where a block's snapshot is."""
        raw = self._get("snapshots", key)
        return Place(*_PLACE.unpack(raw)) if raw else None

    def put_snapshot(self, key: bytes, place: Place) -> None:
        """Add a snapshot, or give it a new place."""
        self.drop_snapshot(key)
        self._put("snapshots", key, _PLACE.pack(place.segment, place.offset, place.length))
        self.add_place(place, Kind.SNAPSHOT, key)

    def drop_snapshot(self, key: bytes) -> int:
        """Drop a snapshot; return the bytes that are dead now."""
        place = self.snapshot(key)
        if place is None:
            return 0
        self.drop_place(place)
        self._delete("snapshots", key)
        return place.span

    def anchors(self, key: bytes = b"") -> Iterator[tuple[Anchor, Place]]:
        """Yield the anchors at a block, or all."""
        cursor = self._txn.cursor(self._t["anchors"])
        found = cursor.set_range(key) if key else cursor.first()
        while found and bytes(cursor.key()[:32]).startswith(key):
            yield anchor_row.of_row(bytes(cursor.key()[:32]), bytes(cursor.value()))
            found = cursor.next()

    def anchor(self, like: Anchor) -> Anchor | None:
        """Return the anchor with this one's block and label."""
        raw = self._get("anchors", anchor_row.key(like))
        return None if raw is None else anchor_row.of_row(like.block_hash, raw)[0]

    def put_anchor(self, anchor: Anchor, place: Place) -> None:
        """Add an anchor, or replace the one with its block and label."""
        self.drop_anchor(anchor)
        key = anchor_row.key(anchor)
        self._put("anchors", key, anchor_row.row(anchor, place))
        self.add_place(place, Kind.ANCHOR, key)

    def drop_anchor(self, anchor: Anchor) -> int:
        """Drop an anchor; return the bytes that are dead now."""
        raw = self._get("anchors", anchor_row.key(anchor))
        if raw is None:
            return 0
        _, place = anchor_row.of_row(anchor.block_hash, raw)
        self.drop_place(place)
        self._delete("anchors", anchor_row.key(anchor))
        return place.span

    # Fingerprints in plain form, and recency.

    def fingerprints(self) -> dict[bytes, dict[str, Value]]:
        """Return every known fingerprint: digest -> plain fields."""
        found = {}
        for key, value in self.items("fingerprints"):
            fields, _place = msgpack.unpackb(value)
            found[key] = Fingerprint.known(fields, key).fields
        return found

    def has_fingerprint(self, digest: bytes) -> bool:
        """Say whether a fingerprint is known in plain form."""
        return self._get("fingerprints", digest) is not None

    def put_fingerprint(self, digest: bytes, fields: dict[str, Value], place: Place) -> None:
        """Add a fingerprint, or give it a new place."""
        raw = self._get("fingerprints", digest)
        if raw:
            self.drop_place(anchor_row.place_of(msgpack.unpackb(raw)[1]))
        place_row = [place.segment, place.offset, place.length]
        self._put("fingerprints", digest, msgpack.packb([fields, place_row]))
        self.add_place(place, Kind.FINGERPRINT, digest)

    def move(self, kind: Kind, key: bytes, old: Place, new: Place) -> None:
        """Give a live record a new place, unless it was dropped or written anew meanwhile."""
        if kind is Kind.BLOCK:
            entry = self.block(key)
            if entry is not None and entry.place == old and not entry.bad:
                self.put_block(key, replace(entry, place=new))
        elif kind is Kind.SNAPSHOT:
            if self.snapshot(key) == old:
                self.put_snapshot(key, new)
        elif kind is Kind.ANCHOR:
            for anchor, place in list(self.anchors(key[:32])):
                if place == old:
                    self.put_anchor(anchor, new)
        elif kind is Kind.FINGERPRINT:
            if self.has_place(old):
                self.put_fingerprint(key, self.fingerprints()[key], new)
        elif self.has_place(old):
            self.drop_place(old)
            self.add_place(new, kind, key)

    def lose(self, place: Place, kind: Kind, key: bytes) -> None:
        """Account for a record that turned out damaged or missing."""
        if kind is Kind.BLOCK:
            self.mark_bad(key, place)
        elif kind is Kind.SNAPSHOT:
            self.drop_snapshot(key)
        elif kind is Kind.ANCHOR:
            for anchor, where in list(self.anchors(key[:32])):
                if where == place:
                    self.drop_anchor(anchor)
        else:
            # A fingerprint's row and a removal's effect stay; only the record is gone.
            self.drop_place(place)

    def heat(self, key: bytes) -> tuple[float, float]:
        """Return (last use in seconds since the epoch, decayed hits at that time) of a block."""
        raw = self._get("heat", key)
        return _HEAT.unpack(raw) if raw else (0.0, 0.0)

    def heats(self) -> Iterator[tuple[bytes, float, float]]:
        """Yield (block, last use, decayed hits at that time)."""
        for key, raw in self.items("heat"):
            last, hits = _HEAT.unpack(raw)
            yield key, last, hits

    def put_heat(self, key: bytes, last: float, hits: float) -> None:
        """Set a block's recency."""
        self._put("heat", key, _HEAT.pack(last, hits))
