"""An anchor, packed: the payload of its record, and its row in the index.

Knows their bytes and nothing of tables. Invariant: an anchor that comes out has the types that it
must have, whoever wrote the bytes.
"""

from __future__ import annotations

import msgpack

from ced_kvstore.errors import BadRecord
from ced_kvstore.record import Place
from ced_kvstore.results import Anchor

_TYPES = ((str, str, bool, float, int), (str, str, bool, int, int))


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
    """Return an anchor and its record's place; raises BadRecord or one of errors.TROUBLE."""
    *values, place = msgpack.unpackb(raw)
    return of_payload(block_hash, values), place_of(place)


def of_payload(block_hash: bytes, values: object) -> Anchor:
    """Return the anchor of a payload that was unpacked; raises BadRecord."""
    if not isinstance(values, list) or tuple(map(type, values)) not in _TYPES:
        raise BadRecord("an anchor's values are of other types")
    return Anchor(block_hash, *values)


def place_of(values: object) -> Place:
    """Return the place that three whole numbers say; raises BadRecord."""
    if not isinstance(values, list) or [*map(type, values)] != [int, int, int]:
        raise BadRecord("a place's values are of other types")
    return Place(*values)


def _plain(anchor: Anchor) -> list[str | bool | float | int]:
    return [anchor.label, anchor.kind, anchor.pinned, anchor.created, anchor.n_tokens]
