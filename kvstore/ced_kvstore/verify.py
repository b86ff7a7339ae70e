"""Check every record against its checksum, and the index against itself; mend what can be mended.

Reads the whole store once (about as fast as the disk) while matching and reading go on. Invariant:
with `fix`, what is left afterwards verifies clean.
"""

from __future__ import annotations

import time
from pathlib import Path

from ced_kvstore.core import Core
from ced_kvstore.errors import TROUBLE, BadRecord
from ced_kvstore.evict import reclaim, used_bytes
from ced_kvstore.index import Index
from ced_kvstore.record import ALIGN, Kind, Place
from ced_kvstore.results import Problem
from ced_kvstore.rows import Tables
from ced_kvstore.tree import by_depth, load

Lost = tuple[Place, Kind, bytes]


def verify(core: Core, *, fix: bool) -> list[Problem]:
    """Return what is wrong; a store that cannot be read or mended is a finding, too."""
    if fix:
        return core.change(
            lambda core, index: _verify(core, index),
            lambda reason: [
                Problem(reason, str(core.directory), "nothing was mended"),
                *verify(core, fix=False),
            ],
        )
    try:
        return _verify(core, None)
    except TROUBLE as error:
        return [Problem("disabled", str(core.directory), str(error))]


def _verify(core: Core, mend: Index | None) -> list[Problem]:
    fix = mend is not None
    problems: list[Problem] = []
    lost: list[Lost] = []
    with core.read() as tables:
        placed = list(tables.placed())
        bad = [(key, entry.place) for key, entry in tables.blocks() if entry.bad]
        blocks = {key: entry.parent for key, entry in tables.blocks() if entry.position > 0}
        known = {key for key, _ in tables.blocks()}
        segments = tables.segments()
    for place, kind, key in placed:
        detail = _fault(core, place, kind, key)
        if detail:
            lost.append((place, kind, key))
            problems.append(Problem("corrupt", _where(core, place), detail, fix))
    problems += [
        Problem("corrupt", _where(core, place), f"block {key.hex()[:12]} was found damaged", fix)
        for key, place in bad
    ]
    holes = [key for key, parent in blocks.items() if parent not in known]
    problems += [
        Problem("hole", f"block {key.hex()[:12]}", "the block before it is not stored", fix)
        for key in holes
    ]
    live: dict[int, int] = dict.fromkeys(segments, 0)
    for place, _kind, _key in placed:
        live[place.segment] = live.get(place.segment, 0) + place.span
    for number, (end, counted) in segments.items():
        if live[number] != counted or core.segments.size(number) < end:
            detail = "the index counts other bytes than there are"
            problems.append(Problem("index", _where(core, Place(number, 0, 0)), detail, fix))
    if mend is not None and problems:
        mend.write(lambda tables: _mend(core, tables, lost, live))
        with core.read() as tables:
            core.segments.accept({n: end for n, (end, _live) in tables.segments().items()})
        reclaim(core, mend, used_bytes(core, mend))
    return problems


def _fault(core: Core, place: Place, kind: Kind, key: bytes) -> str | None:
    try:
        header, _payload = core.segments.read_payload(place, kind, None)
    except BadRecord as error:
        return str(error)
    if kind is not Kind.REMOVED and header.key != key[:32]:
        return "another record is in this place"
    if core.segments.size(place.segment) < place.end:
        # Whole, but cut within its padding: what is appended next would overwrite it.
        return "the segment ends before the record's padding does"
    return None


def _where(core: Core, place: Place) -> str:
    path: Path = core.segments.path(place.segment)
    return f"{path.name}+{place.offset}"


def _mend(core: Core, tables: Tables, lost: list[Lost], live: dict[int, int]) -> None:
    for number, (end, _counted) in tables.segments().items():
        tables.put_segment(number, end, live.get(number, 0))
    for place, kind, key in lost:
        tables.lose(place, kind, key)
    # A damaged block takes what comes after it along: nothing may be kept without its path.
    nodes, now = load(tables), time.time()
    doomed = set()
    for node in reversed(by_depth(nodes.values())):
        entry = tables.block(node.key)
        orphan = node.position > 0 and node.parent not in nodes
        if entry is None or entry.bad or orphan or node.parent in doomed:
            doomed.add(node.key)
    for node in by_depth(nodes[key] for key in doomed):
        tables.drop_block(node.key, "damaged", now)
    # What a truncated segment still has lies below its new end.
    for number, (end, counted) in tables.segments().items():
        size = core.segments.size(number)
        if size < end:
            tables.put_segment(number, size // ALIGN * ALIGN, counted)
