"""Where on the disk records of some blocks and anchors are, dead ones too: what a purge has to
reach.

The index knows live records only; a block that was moved or mended has older ones, with the same
ids, and so has an anchor that was set anew. Knows headers and not payloads. Invariant: a segment of
which it cannot be told has some.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ced_kvstore.core import Core
from ced_kvstore.errors import BadRecord
from ced_kvstore.index import Index
from ced_kvstore.record import Kind, Place
from ced_kvstore.rows import Tables
from ced_kvstore.segment import Segments


@dataclass(frozen=True, slots=True)
class Traces:
    """The segments that have records under some keys."""

    found: frozenset[int]
    looked: Mapping[int, int]
    """Segment -> how far it was looked through."""

    def segments(self, tables: Tables) -> list[int]:
        """Return those that are still there, and all that others have appended to meanwhile."""
        return [
            number
            for number, (end, _live) in tables.segments().items()
            if number in self.found or end > self.looked.get(number, 0)
        ]


def find(core: Core, index: Index, blocks: Collection[bytes], anchors: Collection[bytes]) -> Traces:
    """Look for records of these blocks, and of these anchors by the keys of their rows: for live
    ones in the index, for dead ones in each segment that has any. Raises one of errors.TROUBLE."""
    with index.read() as tables:
        segments = tables.segments()
        found = {
            place.segment
            for place, _kind, key in tables.placed()
            if key[:32] in blocks or key in anchors
        }
    # A header names an anchor's block and not its label.
    pointed_at = {key[:32] for key in anchors}
    for number, (end, live) in segments.items():
        if number in found or live >= end:
            continue
        if _has_any(core.segments, number, end, blocks, pointed_at):
            found.add(number)
    return Traces(frozenset(found), {number: end for number, (end, _live) in segments.items()})


def _has_any(
    segments: Segments,
    number: int,
    end: int,
    blocks: Collection[bytes],
    pointed_at: Collection[bytes],
) -> bool:
    offset = 0
    while offset < end:
        try:
            header, _ = segments.read_header_at(number, offset)
        except BadRecord:
            return True
        if header.key in blocks or (header.kind == Kind.ANCHOR and header.key in pointed_at):
            return True
        offset = Place(number, offset, header.length).end
    return False
