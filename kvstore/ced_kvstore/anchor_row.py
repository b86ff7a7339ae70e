"""An anchor, packed: the payload of its record, and its row in the index.

Knows their bytes and nothing of tables. What an anchor may hold, Anchor itself checks, whoever
wrote the bytes.
"""

from __future__ import annotations

from typing import Any

import msgpack
import xxhash

from ced_kvstore.record import Place
from ced_kvstore.results import Anchor


def key(anchor: Anchor) -> bytes:
    """Return the key of an anchor's row: its block, then what stands for its label, which may be
    longer than LMDB's keys."""
    return anchor.block_hash + xxhash.xxh3_128_digest(anchor.label.encode())


def payload(anchor: Anchor) -> bytes:
    """Return an anchor's record payload."""
    packed: bytes = msgpack.packb(_plain(anchor))
    return packed


def row(anchor: Anchor, place: Place) -> bytes:
    """Return the value of an anchor's row: its payload's values, then where that record is."""
    values = [*_plain(anchor), [place.segment, place.offset, place.length]]
    packed: bytes = msgpack.packb(values)
    return packed


def of_row(block_hash: bytes, raw: bytes) -> tuple[Anchor, Place]:
    """Return an anchor and its record's place; raises ValueError, TypeError, msgpack's."""
    *values, place = msgpack.unpackb(raw)
    return of_payload(block_hash, values), place_of(place)


def of_payload(block_hash: bytes, values: Any) -> Anchor:
    """Return the anchor of a payload that was unpacked; raises ValueError or TypeError."""
    label, kind, pinned, created, n_tokens = values
    return Anchor(block_hash, label, kind, pinned, created, n_tokens)


def place_of(values: object) -> Place:
    """Return the place that three whole numbers say; raises TypeError."""
    if not isinstance(values, list) or [*map(type, values)] != [int, int, int]:
        raise TypeError("a place's values are of other types")
    return Place(*values)


def _plain(anchor: Anchor) -> list[str | bool | float | int]:
    return [anchor.label, anchor.kind, anchor.pinned, anchor.created, anchor.n_tokens]
