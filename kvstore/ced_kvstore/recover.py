"""Open the index for writing: check it against the segments, or have it built anew from them.

Only a process that is alone does either; one that comes beside others takes the index as it is.
Invariant: afterwards every place in the index lies inside its segment, or its record is known as
lost.
"""

from __future__ import annotations

from pathlib import Path

import lmdb

from ced_kvstore.errors import BadRecord
from ced_kvstore.files import Files
from ced_kvstore.index import Index
from ced_kvstore.leftovers import clear
from ced_kvstore.rebuild import Found, rebuild, scan
from ced_kvstore.rows import Tables
from ced_kvstore.seal import check, erase
from ced_kvstore.segment import Segments
from ced_kvstore.tables import INDEX_VERSION

TO_REBUILD = 0
"""The version of an index that was found to be wrong: whoever comes alone next builds it anew."""

_DAMAGE = (
    BadRecord,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
)
"""What tells that an index is to be built anew; other trouble is the disk's."""


def open_index(
    files: Files, directory: Path, segments: Segments, map_bytes: int, *, alone: bool
) -> Index:
    """Return a store's index, open for writing; `alone`: no other process writes, or begins to.

    Raises BadRecord, OSError or lmdb.Error.
    """
    folder = directory / "index"
    if alone:
        return _open_alone(files, folder, segments, map_bytes)
    return _open_beside(files, folder, map_bytes)


def _open_alone(files: Files, folder: Path, segments: Segments, map_bytes: int) -> Index:
    """Return an index that agrees with the segments."""
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
        # Never written: a new store.
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
        found = scan(segments)
        index.write(lambda tables: _rebuild(tables, segments, found))
        clear(files, index, segments)
    except BaseException:
        index.close()
        raise
    return index


def _open_beside(files: Files, folder: Path, map_bytes: int) -> Index:
    """Return the index that other processes have open for writing: one of them has checked it, and
    nobody may mend it under them."""
    index = Index(files, folder, writable=True, map_bytes=map_bytes)
    try:
        with index.read() as tables:
            version = tables.get_meta("version")
        if version == TO_REBUILD:
            raise BadRecord("its index is built anew when no process has it open any more")
        if version != INDEX_VERSION:
            raise BadRecord("a process that uses it now has an index of another version")
    except BaseException:
        index.close()
        raise
    return index


def _rebuild(tables: Tables, segments: Segments, found: list[Found]) -> None:
    tables.put_meta("version", INDEX_VERSION)
    rebuild(tables, segments, found)


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
