"""What killed processes appended and never published: files and records that the index knows not.

Nobody sees them, but an index built anew would take them for published, an unfinished removal
among them. Invariant: only what no living process can be about to publish is touched.
"""

from __future__ import annotations

from ced_kvstore.errors import BadRecord
from ced_kvstore.files import Files
from ced_kvstore.index import Index
from ced_kvstore.record import ALIGN, HEADER_BYTES, MAX_SEGMENT_BYTES, Place
from ced_kvstore.segment import Segments
from ced_kvstore.tables import INDEX_VERSION
from ced_kvstore.writer import Writer


def clear(files: Files, index: Index, segments: Segments) -> None:
    """Unlink unknown segments and blot out records behind the ends of known ones.

    For a process that is alone. Raises OSError or lmdb.Error.
    """
    known = _known(index)
    if known is None:
        return
    for number in segments.numbers():
        end, _live = known.get(number, (0, 0))
        if number not in known:
            segments.drop(number)
        elif segments.size(number) > end:
            _blot(files, segments, number, end)


def sweep(writer: Writer, index: Index, segments: Segments) -> None:
    """Unlink unknown segments that nobody holds, beside other processes; the caller has the lease.

    Raises OSError or lmdb.Error.
    """
    known = _known(index)
    if known is None:
        return
    for number in segments.numbers():
        if number in known:
            continue
        # Who begins a segment locks it at once, and has published it when the lock is free.
        with writer.claim(number) as is_ours, index.read() as tables:
            if is_ours and number not in tables.segments():
                segments.drop(number)


def _known(index: Index) -> dict[int, tuple[int, int]] | None:
    """Return the segments that the index knows, None when it is to be built anew: then what it does
    not know may well be good."""
    with index.read() as tables:
        return tables.segments() if tables.get_meta("version") == INDEX_VERSION else None


def _blot(files: Files, segments: Segments, number: int, end: int) -> None:
    """Make the headers of records behind a segment's end unreadable."""
    found, offset = [], end
    size = min(segments.size(number), MAX_SEGMENT_BYTES)
    while offset + HEADER_BYTES <= size:
        try:
            header, _ = segments.read_header_at(number, offset)
        except BadRecord:
            offset += ALIGN
            continue
        found.append(offset)
        offset = Place(number, offset, header.length).end
    if not found:
        return
    fd = files.open(segments.path(number), write=True)
    try:
        for offset in found:
            files.pwritev(fd, [bytes(HEADER_BYTES)], offset)
        files.sync_data(fd)
    finally:
        files.close(fd)
