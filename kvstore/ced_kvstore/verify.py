"""Check every record against its checksum, and the index against itself; mend what can be mended.

Reads the whole store once (about as fast as the disk) while matching and reading go on. Invariant:
with `fix`, what is left afterwards verifies clean; where the index contradicts itself, what is left
after the next opening, which builds it anew.
"""

from __future__ import annotations

import time
from pathlib import Path

from ced_kvstore.audit import contradictions
from ced_kvstore.compact import reclaim
from ced_kvstore.core import Core
from ced_kvstore.errors import TROUBLE, BadIndex, BadRecord, told
from ced_kvstore.index import Index
from ced_kvstore.locks import BUSY
from ced_kvstore.record import ALIGN, Kind, Place
from ced_kvstore.recover import TO_REBUILD
from ced_kvstore.results import Problem
from ced_kvstore.rows import Tables
from ced_kvstore.tree import by_depth, load

Lost = tuple[Place, Kind, bytes]

_INDEX = "index/data.mdb"
_ANEW = "the index is built anew when the store is next opened"


def verify(core: Core, *, fix: bool) -> list[Problem]:
    """Return what is wrong; a store that cannot be read or mended is a finding, too."""
    if fix:
        return core.change(_verify_and_mend, lambda reason: _unmended(core, "read_only", reason))
    try:
        return _verify(core, None)
    except BadIndex:
        return [Problem("index", _INDEX, "a row of it is not one")]
    except TROUBLE as error:
        return [Problem("disabled", str(core.directory), told(error))]


def _verify_and_mend(core: Core, index: Index) -> list[Problem]:
    with core.locks.lease() as is_ours:
        if is_ours:
            try:
                return _verify(core, index)
            except BadIndex:
                index.write(_have_rebuilt)
                return [Problem("index", _INDEX, f"a row of it is not one; {_ANEW}", True)]
    return _unmended(core, "busy", BUSY)


def _unmended(core: Core, kind: str, reason: str) -> list[Problem]:
    detail = f"nothing was mended: {reason}"
    return [Problem(kind, str(core.directory), detail), *verify(core, fix=False)]


def _have_rebuilt(tables: Tables) -> None:
    tables.put_meta("version", TO_REBUILD)


def _verify(core: Core, mend: Index | None) -> list[Problem]:
    problems: list[Problem] = []
    lost: list[Lost] = []
    # One look at all tables, as other processes go on changing them.
    with core.read() as tables:
        placed = list(tables.placed())
        entries = dict(tables.blocks())
        segments = tables.segments()
        at_odds = contradictions(tables, entries, placed)
    if at_odds and mend is not None:
        # Who follows such an index to mend it may drop what is good.
        mend.write(_have_rebuilt)
        return [Problem("index", name, f"{detail}; {_ANEW}", True) for name, detail in at_odds]
    fix = mend is not None
    problems += [Problem("index", name, detail) for name, detail in at_odds]
    for place, kind, key in placed:
        detail = _fault(core, place, kind, key)
        # It may have been moved or dropped meanwhile, file and all.
        if detail and _is_placed(core, place):
            lost.append((place, kind, key))
            problems.append(Problem("corrupt", _where(core, place), detail, fix))
    for key, entry in entries.items():
        name = f"block {key.hex()[:12]}"
        if entry.bad:
            where = _where(core, entry.place)
            problems.append(Problem("corrupt", where, f"{name} was found damaged", fix))
        if entry.position > 0 and entry.parent not in entries:
            problems.append(Problem("hole", name, "the block before it is not stored", fix))
    live: dict[int, int] = dict.fromkeys(segments, 0)
    for place, _kind, _key in placed:
        live[place.segment] = live.get(place.segment, 0) + place.span
    for number, (end, counted) in segments.items():
        where, missing = _where(core, Place(number, 0, 0)), end - core.segments.size(number)
        if live[number] != counted:
            detail = "the index counts other bytes than there are"
            problems.append(Problem("index", where, detail, fix))
        if missing > 0 and _is_known(core, number):
            detail = f"its last {missing} bytes are missing: blocks, snapshots, anchors are lost"
            problems.append(Problem("index", where, detail, fix))
    if mend is not None and problems:
        count = mend.write(lambda tables: _mend(core, tables, lost))
        core.counters.count_evicted("damaged", count)
        reclaim(core, mend)
    return problems


def _is_placed(core: Core, place: Place) -> bool:
    with core.read() as tables:
        return tables.has_place(place)


def _is_known(core: Core, number: int) -> bool:
    with core.read() as tables:
        return number in tables.segments()


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


def _mend(core: Core, tables: Tables, lost: list[Lost]) -> int:
    """Take out of the index what is lost, and what comes after it; return the dropped blocks."""
    # Counted anew here, and not before: other processes published meanwhile.
    live: dict[int, int] = {}
    for place, _kind, _key in tables.placed():
        live[place.segment] = live.get(place.segment, 0) + place.span
    for number, (end, _counted) in tables.segments().items():
        tables.put_segment(number, end, live.get(number, 0))
    for place, kind, key in lost:
        if tables.has_place(place):
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
    # Nobody appends to a truncated segment again: what was there once is remembered by its place,
    # as damaged, in other processes, too.
    for number, (end, counted) in tables.segments().items():
        size = core.segments.size(number)
        if size < end:
            tables.put_segment(number, size // ALIGN * ALIGN, counted)
            tables.ask_purge(number)
    return len(doomed)
