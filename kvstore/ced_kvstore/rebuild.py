"""Build the index anew from the segments.

Knows the records' own statements (header, ids, small payloads) and trusts nothing else. Invariant:
every block that gets into the index has its whole path, and what a removal named stays out.
"""

from __future__ import annotations

import contextlib

import msgpack

from ced_kvstore import anchor_row
from ced_kvstore.entry import Entry
from ced_kvstore.errors import BadRecord
from ced_kvstore.hashing import BLOCK_TOKENS, IDS_BYTES, Fingerprint, block_hash
from ced_kvstore.record import ALIGN, HEADER_BYTES, MAX_SEGMENT_BYTES, Header, Kind, Place
from ced_kvstore.rows import Tables
from ced_kvstore.segment import Segments

_SMALL = 1 << 20
"""Most bytes of an anchor, fingerprint or removal; a longer one is not ours."""

_MOST_COMMITS = 1 << 62
"""Stamps are counted one by one; a record with a higher one is not ours."""

_LEAP = 1 << 32
"""Unless it is as near as this to a record's before it."""

Found = tuple[Place, Header]


def scan(segments: Segments) -> list[Found]:
    """Return every readable record of every segment, oldest commit first.

    After a damaged header the search goes on at the next 4 KiB: a record that begins there says so
    by its own crc32. Payloads are not read; `read` finds damage there.
    """
    found: list[Found] = []
    for number in segments.numbers():
        size, offset = segments.size(number), 0
        while offset + HEADER_BYTES <= min(size, MAX_SEGMENT_BYTES):
            try:
                header, _ = segments.read_header_at(number, offset)
            except BadRecord:
                offset += ALIGN
                continue
            if offset + HEADER_BYTES + header.length > size:
                offset += ALIGN
                continue
            place = Place(number, offset, header.length)
            found.append((place, header))
            offset = place.end
    return _in_turn(found)


def _in_turn(found: list[Found]) -> list[Found]:
    """Return the records by their stamps, without those that no commit can have got to."""
    kept: list[Found] = []
    newest = 0
    for place, header in sorted(found, key=lambda item: item[1].stamp):
        # What was stored after a record that somebody forged has stamps behind that one's.
        if header.stamp > max(_MOST_COMMITS, newest + _LEAP):
            break
        newest = header.stamp
        kept.append((place, header))
    return kept


def rebuild(tables: Tables, segments: Segments, found: list[Found]) -> None:
    """Fill empty tables from the records' headers and small payloads."""
    tables.put_meta("stamp", max((header.stamp for _, header in found), default=0))
    removals = [header.stamp for _, header in found if header.kind == Kind.REMOVED]
    tables.put_meta("removal", max(removals, default=0))
    for place, header in found:
        tables.extend_segment(place)
        tables.mark_segment(place.segment, header.stamp)
    roots = _put_fingerprints(tables, segments, found)
    removed_blocks: dict[bytes, int] = {}
    removed_anchors: dict[tuple[bytes, str], int] = {}
    blocks: list[Found] = []
    for place, header in found:
        if header.kind == Kind.REMOVED:
            # What does not read as a removal removes nothing.
            with contextlib.suppress(ValueError, TypeError):
                keys, anchors = _removal(_small(segments, place, header))
                removed_blocks.update(dict.fromkeys(keys, header.stamp))
                removed_anchors.update(dict.fromkeys(anchors, header.stamp))
                tables.add_place(place, Kind.REMOVED, b"")
        elif header.kind == Kind.BLOCK:
            blocks.append((place, header))
    stamps = _put_blocks(tables, segments, blocks, removed_blocks, roots)
    for place, header in found:
        key, stamp = header.key, header.stamp
        if header.kind == Kind.SNAPSHOT:
            # One that is older than its block's record went when the block was stored anew.
            if key in stamps and stamp >= stamps[key] and stamp > removed_blocks.get(key, -1):
                tables.put_snapshot(key, place)
        elif header.kind == Kind.ANCHOR:
            with contextlib.suppress(ValueError, TypeError):
                anchor = anchor_row.of_payload(key, _small(segments, place, header))
                is_root = header.parent == key
                if (is_root or tables.block(key)) and stamp > max(
                    removed_anchors.get((key, anchor.label), -1), removed_blocks.get(key, -1)
                ):
                    tables.put_anchor(anchor, place)


def _put_fingerprints(tables: Tables, segments: Segments, found: list[Found]) -> dict[bytes, bytes]:
    """Add the fingerprints; return what stands for each in a header -> its root."""
    roots = {}
    for place, header in found:
        if header.kind == Kind.FINGERPRINT:
            with contextlib.suppress(ValueError, TypeError):
                known = Fingerprint.known(_small(segments, place, header), header.key)
                tables.put_fingerprint(known.digest, known.fields, place)
                roots[known.short] = known.root
    return roots


def _put_blocks(
    tables: Tables,
    segments: Segments,
    blocks: list[Found],
    removed: dict[bytes, int],
    roots: dict[bytes, bytes],
) -> dict[bytes, int]:
    """Add blocks from the root outwards, so that none is kept without its path; of several records
    of one block the newest that holds its ids. Return the stamps of those records."""
    stamps: dict[bytes, int] = {}
    for place, header in sorted(reversed(blocks), key=lambda item: item[1].position):
        key, parent = header.key, tables.block(header.parent)
        if header.stamp <= removed.get(key, -1) or tables.block(key) is not None:
            continue
        before = parent.position if parent else -BLOCK_TOKENS
        if header.position != before + BLOCK_TOKENS:
            continue
        # A fingerprint's record may be damaged; then its blocks stay all the same.
        if parent is None and roots.get(header.fingerprint, header.parent) != header.parent:
            continue
        try:
            _, raw_ids = segments.read_header(place, IDS_BYTES)
        except BadRecord:
            continue
        if block_hash(header.parent, raw_ids) != key:
            continue
        entry = Entry(place, header.position, False, header.fingerprint, header.parent)
        tables.put_block(key, entry)
        stamps[key] = header.stamp
    return stamps


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
