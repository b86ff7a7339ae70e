"""Whether the tables of the index say the same as one another, row by row.

Knows tables and no files; looks at every row there is, so that none that cannot be read is left for
later. Invariant: an index without contradictions has every block on a path from a root, each record
counted once, and an edge for each block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ced_kvstore import anchor_row
from ced_kvstore.entry import Entry
from ced_kvstore.hashing import BLOCK_TOKENS
from ced_kvstore.record import Kind, Place
from ced_kvstore.rows import Tables

_COUNTERS = ("stamp", "removal", "segment", "budget")

_WITH_ROWS = (Kind.BLOCK, Kind.SNAPSHOT, Kind.ANCHOR)
"""What has a row that says where its record is. A fingerprint stays known without its record."""

Row = tuple[Kind, bytes]


def contradictions(
    tables: Tables, entries: Mapping[bytes, Entry], placed: Sequence[tuple[Place, Kind, bytes]]
) -> list[tuple[str, str]]:
    """Return (where, what) of all that does not fit, given all blocks and all places.

    A block whose path is lost is no contradiction. Raises what comes of a row that is not one.
    """
    _read_the_rest(tables)
    return [*_of_edges(tables, entries), *_of_places(tables, entries, placed)]


def _read_the_rest(tables: Tables) -> None:
    for name in _COUNTERS:
        tables.get_meta(name)
    tables.purges()
    tables.fingerprints()
    for _heat in tables.heats():
        pass
    for key, _value in tables.items("gone"):
        tables.gone(key)


def _of_edges(tables: Tables, entries: Mapping[bytes, Entry]) -> Iterator[tuple[str, str]]:
    edges = set(tables.items("children"))
    for key, entry in entries.items():
        parent = entries.get(entry.parent)
        if parent is not None and entry.position != parent.position + BLOCK_TOKENS:
            yield _name(Kind.BLOCK, key), "it is not where the block before it ends"
        if (entry.parent, key) not in edges:
            yield _name(Kind.BLOCK, key), "the block before it does not lead to it"
        edges.discard((entry.parent, key))
    for _parent, key in edges:
        yield _name(Kind.BLOCK, key), "a block leads to it that is not the one before it"


def _of_places(
    tables: Tables, entries: Mapping[bytes, Entry], placed: Sequence[tuple[Place, Kind, bytes]]
) -> Iterator[tuple[str, str]]:
    counted = {(kind, key): place for place, kind, key in placed if kind in _WITH_ROWS}
    said: dict[Row, Place | None] = {
        (Kind.BLOCK, key): entry.place for key, entry in entries.items() if not entry.bad
    }
    for key, _value in tables.items("snapshots"):
        said[Kind.SNAPSHOT, key] = tables.snapshot(key)
        if key not in entries:
            yield _name(Kind.SNAPSHOT, key), "its block is not stored"
    for anchor, place in tables.anchors():
        said[Kind.ANCHOR, anchor_row.key(anchor)] = place
    for kind, key in {*counted, *said}:
        if counted.get((kind, key)) != said.get((kind, key)):
            yield _name(kind, key), "its row and the list of places name different places"
    if len(counted) != sum(kind in _WITH_ROWS for _place, kind, _key in placed):
        yield "the list of places", "a record is in it twice"
    ends = {number: end for number, (end, _live) in tables.segments().items()}
    for place, kind, key in placed:
        if place.end > ends.get(place.segment, 0):
            yield _name(kind, key), "its record lies behind the end of its segment"


def _name(kind: Kind, key: bytes) -> str:
    return f"{kind.name.lower()} {key.hex()[:12]}"
