"""Open the index for writing: check it against the segments, or build it anew from them.

Only a process that is alone does either; one that comes beside others takes the index as it is.
Knows the records' own statements (header, ids, small payloads) and trusts nothing else. Invariant:
afterwards every block in the index has its whole path, and every place lies inside its segment.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import lmdb
import msgpack

from ced_kvstore import anchor_row
from ced_kvstore.entry import Entry
from ced_kvstore.errors import BadRecord
from ced_kvstore.files import Files
from ced_kvstore.hashing import BLOCK_TOKENS, IDS_BYTES, Fingerprint, Value, block_hash
from ced_kvstore.index import Index, check, erase
from ced_kvstore.leftovers import clear
from ced_kvstore.record import ALIGN, HEADER_BYTES, Header, Kind, Place
from ced_kvstore.rows import Tables
from ced_kvstore.segment import Segments
from ced_kvstore.tables import INDEX_VERSION

_SMALL = 1 << 20
"""Most bytes of an anchor, fingerprint or removal; a longer one is not ours."""

_MOST_COMMITS = 1 << 62
"""Stamps are counted one by one; a record with a higher one is not ours."""

_DAMAGE = (
    BadRecord,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    struct.error,
    ValueError,
)
"""What tells that an index is to be built anew; other trouble is the disk's."""

Found = tuple[Place, Header]


def open_alone(files: Files, folder: Path, segments: Segments, map_bytes: int) -> Index:
    """Return an index that agrees with the segments; no other process writes, or begins to.

    Raises OSError or lmdb.Error.
    """
    index: Index | None = None
    try:
        check(files, folder, walk=True)
        index = Index(files, folder, writable=True, map_bytes=map_bytes)
        with index.read() as tables:
            version, ends = tables.get_meta("version"), tables.segments()
        if version == INDEX_VERSION:
            index.write(lambda tables: _drop_lost(tables, segments))
            clear(files, index, segments)
            return index
        # Never written: a new store, or an index that was deleted.
        if version == 0 and not ends and not segments.numbers():
            index.write(lambda tables: tables.put_meta("version", INDEX_VERSION))
            return index
    except _DAMAGE:
        pass
    except BaseException:
        if index is not None:
            index.close()
        raise
    if index is not None:
        index.close()
    erase(files, folder)
    index = Index(files, folder, writable=True, map_bytes=map_bytes)
    try:
        found = _scan(segments)
        index.write(lambda tables: _rebuild(tables, segments, found))
        clear(files, index, segments)
    except BaseException:
        index.close()
        raise
    return index


def open_beside(files: Files, folder: Path, map_bytes: int) -> Index:
    """Return the index that other processes have open for writing: one of them has checked it, and
    nobody may mend it under them.

    Raises BadRecord, OSError or lmdb.Error.
    """
    index = Index(files, folder, writable=True, map_bytes=map_bytes)
    try:
        with index.read() as tables:
            version = tables.get_meta("version")
        if version != INDEX_VERSION:
            raise BadRecord("a process that uses it now has an index of another version")
    except BaseException:
        index.close()
        raise
    return index


def _drop_lost(tables: Tables, segments: Segments) -> None:
    """Quarantine records that lie behind the end of a truncated or missing segment."""
    for number, (end, _live) in tables.segments().items():
        size = segments.size(number)
        if size >= end:
            continue
        for place, kind, key in list(tables.placed(number)):
            if place.end > size:
                tables.lose(place, kind, key)
        if size == 0:
            tables.drop_segment(number)


def _scan(segments: Segments) -> list[Found]:
    """Return every readable record of every segment, oldest commit first.

    After a damaged header the search goes on at the next 4 KiB: a record that begins there says so
    by its own crc32. Payloads are not read; `read` finds damage there.
    """
    found: list[Found] = []
    for number in segments.numbers():
        size, offset = segments.size(number), 0
        while offset + HEADER_BYTES <= size:
            try:
                header, _ = segments.read_header_at(number, offset)
            except BadRecord:
                offset += ALIGN
                continue
            place = Place(number, offset, header.length)
            if offset + HEADER_BYTES + header.length > size or header.stamp > _MOST_COMMITS:
                offset += ALIGN
                continue
            found.append((place, header))
            offset = place.end
    found.sort(key=lambda item: item[1].stamp)
    return found


def _rebuild(tables: Tables, segments: Segments, found: list[Found]) -> None:
    """Fill empty tables from the records' headers and small payloads."""
    tables.put_meta("version", INDEX_VERSION)
    tables.put_meta("stamp", max((header.stamp for _, header in found), default=0))
    removals = [header.stamp for _, header in found if header.kind == Kind.REMOVED]
    tables.put_meta("removal", max(removals, default=0))
    for place, header in found:
        tables.extend_segment(place)
        tables.mark_segment(place.segment, header.stamp)
    removed_blocks: dict[bytes, int] = {}
    removed_anchors: dict[tuple[bytes, str], int] = {}
    blocks: list[Found] = []
    for place, header in found:
        if header.kind == Kind.REMOVED:
            # What does not read as a removal removes nothing.
            with contextlib.suppress(BadRecord, ValueError, TypeError):
                keys, anchors = _removal(_small(segments, place, header))
                removed_blocks.update(dict.fromkeys(keys, header.stamp))
                removed_anchors.update(dict.fromkeys(anchors, header.stamp))
                tables.add_place(place, Kind.REMOVED, b"")
        elif header.kind == Kind.BLOCK:
            blocks.append((place, header))
    _rebuild_tree(tables, segments, blocks, removed_blocks)
    for place, header in found:
        key, stamp = header.key, header.stamp
        if header.kind == Kind.FINGERPRINT:
            with contextlib.suppress(BadRecord, ValueError, TypeError):
                fields = _fields(_small(segments, place, header), key)
                tables.put_fingerprint(key, fields, place)
        elif header.kind == Kind.SNAPSHOT:
            if tables.block(key) and stamp > removed_blocks.get(key, -1):
                tables.put_snapshot(key, place)
        elif header.kind == Kind.ANCHOR:
            with contextlib.suppress(BadRecord):
                anchor = anchor_row.of_payload(key, _small(segments, place, header))
                is_root = header.parent == key
                if (is_root or tables.block(key)) and stamp > max(
                    removed_anchors.get((key, anchor.label), -1), removed_blocks.get(key, -1)
                ):
                    tables.put_anchor(anchor, place)


def _rebuild_tree(
    tables: Tables, segments: Segments, blocks: list[Found], removed: dict[bytes, int]
) -> None:
    """Add blocks from the root outwards, so that none is kept without its path; of several records
    of one block the newest that holds its ids."""
    for place, header in sorted(reversed(blocks), key=lambda item: item[1].position):
        key, parent = header.key, tables.block(header.parent)
        if header.stamp <= removed.get(key, -1) or tables.block(key) is not None:
            continue
        before = parent.position if parent else -BLOCK_TOKENS
        if header.position != before + BLOCK_TOKENS:
            continue
        try:
            _, raw_ids = segments.read_header(place, IDS_BYTES)
        except BadRecord:
            continue
        if block_hash(header.parent, raw_ids) != key:
            continue
        entry = Entry(place, header.position, False, header.fingerprint, header.parent)
        tables.put_block(key, entry)


def _removal(row: object) -> tuple[list[bytes], list[tuple[bytes, str]]]:
    """Return the blocks and the anchors that a removal names; raises ValueError or TypeError."""
    if not isinstance(row, list):
        raise TypeError
    keys, anchors = row
    pairs = [(key, label) for key, label in anchors]
    names = [*keys, *(key for key, _ in pairs)]
    if not all(isinstance(key, bytes) for key in names):
        raise TypeError
    if not all(isinstance(label, str) for _, label in pairs):
        raise TypeError
    return [*keys], pairs


def _fields(row: object, digest: bytes) -> dict[str, Value]:
    """Return plain fields that have this digest; raises BadRecord or TypeError."""
    if not isinstance(row, dict) or Fingerprint.from_fields(row).digest != digest:
        raise BadRecord("another fingerprint")
    return row


def _small(segments: Segments, place: Place, header: Header) -> object:
    """Return a small record's unpacked payload, None when it is damaged."""
    if header.length > _SMALL:
        return None
    try:
        _, payload = segments.read_payload(place, header.kind, header.key)
        unpacked: object = msgpack.unpackb(payload, use_list=True)
    except (BadRecord, msgpack.UnpackException, ValueError):
        return None
    return unpacked
