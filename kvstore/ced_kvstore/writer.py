"""The segments that this process appends to: one at a time, locked for as long as it does.

Continues a segment that nobody holds, behind its indexed end, or begins the next number. Knows
records and the index's ends, and not what is published. Invariants: only the holder of a segment's
lock extends it, bytes below an indexed end are never written again, and what was appended stays
locked until the index names it, so that nobody takes it for leftovers.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ced_kvstore.files import IOV_MAX, Files
from ced_kvstore.index import Index
from ced_kvstore.record import (
    ALIGN,
    HEADER_BYTES,
    MAX_SEGMENT,
    MAX_SEGMENT_BYTES,
    Place,
    Record,
    span,
)
from ced_kvstore.segment import Segments

MIN_SEGMENT_BYTES = 64 << 10

_ZEROS = memoryview(bytes(ALIGN))


def segment_limit(max_bytes: int) -> int:
    """Return the size at which a new segment is begun: small beside the budget, so that moving
    the live records out of one never needs much room."""
    return max(MIN_SEGMENT_BYTES, min(MAX_SEGMENT_BYTES, max_bytes // 32))


@dataclass(slots=True)
class _Held:
    """A segment whose lock is ours."""

    fd: int
    end: int
    """How far the index names it; what lies behind is written anew."""


class Writer:
    """Appends for one process; the caller holds core.lock."""

    def __init__(self, files: Files, segments: Segments) -> None:
        self._files = files
        self._segments = segments
        self.limit = MAX_SEGMENT_BYTES
        self.active: int | None = None
        self._held: dict[int, _Held] = {}

    def append(self, index: Index, records: Sequence[Record], stamp: int) -> list[Place]:
        """Write records and make them durable; nobody sees them until they are `published`.

        Begins behind what was published: an append that was not published is written over. Raises
        OSError or lmdb.Error.
        """
        self._let_go(keep=self.active)
        if self.active is not None:
            active = self._held[self.active]
            if self._segments.size(self.active) < active.end:
                # Somebody truncated or removed the file under us; what goes there would be lost.
                self.finish()
        places: list[Place] = []
        pieces: list[bytes | memoryview] = []
        start = at = self._held[self.active].end if self.active is not None else 0
        for record in records:
            size = span(record.length)
            if self.active is None or 0 < at > self.limit - size:
                self._write(pieces, start)
                pieces = []
                self._begin(index, size)
                assert self.active is not None
                start = at = self._held[self.active].end
            padding = _ZEROS[: size - HEADER_BYTES - record.length]
            pieces += [record.header(stamp).pack(), *record.pieces, padding]
            places.append(Place(self.active, at, record.length))
            at += size
            if len(pieces) > IOV_MAX - 64:
                self._write(pieces, start)
                pieces, start = [], at
        self._write(pieces, start)
        if places and self.active is not None:
            self._files.sync_data(self._held[self.active].fd)
        return places

    def published(self, places: Sequence[Place]) -> None:
        """Go on behind these places: the index names their segments up to there now."""
        for place in places:
            held = self._held[place.segment]
            held.end = max(held.end, place.end)
        self._let_go(keep=self.active)

    def finish(self) -> None:
        """Append no more to the active segment, and let others continue it. Raises OSError."""
        self.active = None
        self._let_go(keep=None)

    @contextlib.contextmanager
    def claim(self, number: int) -> Iterator[bool]:
        """Hold a segment that is to go; False when another process appends to it. Raises OSError.

        Nobody can extend it then. Its file may be gone already.
        """
        self._let_go(keep=self.active)
        fd: int | None = None
        is_ours = True
        try:
            if number == self.active:
                fd, self.active = self._held.pop(number).fd, None
            else:
                with contextlib.suppress(FileNotFoundError):
                    fd = self._files.open(self._segments.path(number), write=True)
                is_ours = fd is None or self._files.lock(fd)
            yield is_ours
        finally:
            if fd is not None:
                self._release(fd)

    def _write(self, pieces: list[bytes | memoryview], offset: int) -> None:
        if pieces:
            assert self.active is not None
            self._files.pwritev(self._held[self.active].fd, pieces, offset)

    def _begin(self, index: Index, size: int) -> None:
        """Continue a segment with room for `size` bytes, or begin one; the one before is durable
        from here on."""
        if self.active is not None:
            self._files.sync_data(self._held[self.active].fd)
        self.active = None
        with index.read() as tables:
            segments, newest = tables.segments(), tables.get_meta("segment")
            leaving = tables.purges()
        for number in sorted(segments, reverse=True):
            end, live = segments[number]
            # What is less than half live will be moved out soon; it must not grow.
            stays = 2 * live >= end and number not in {*leaving, *self._held}
            if stays and end + size <= self.limit and self._continue(index, number, size):
                return
        taken = {newest, *segments, *leaving, *self._segments.numbers()}
        number = max(taken) + 1
        if number > MAX_SEGMENT:
            # Somebody made the highest one up.
            number = next(free for free in itertools.count(1) if free not in taken)
        self._create(number)

    def _continue(self, index: Index, number: int, size: int) -> bool:
        path = self._segments.path(number)
        try:
            fd = self._files.open(path, write=True)
        except FileNotFoundError:
            return False
        is_ours = False
        try:
            if self._files.lock(fd):
                # Its holder before us may have extended it until now.
                with index.read() as tables:
                    end, _live = tables.segments().get(number, (0, 0))
                is_ours = 0 < end <= min(self._segments.size(number), self.limit - size)
        finally:
            if not is_ours:
                self._release(fd)
        if is_ours:
            self.active, self._held[number] = number, _Held(fd, end)
        return is_ours

    def _create(self, number: int) -> None:
        while True:
            path: Path = self._segments.path(number)
            fd = self._files.create(path)
            if fd is not None and self._is_ours(path, fd):
                self.active, self._held[number] = number, _Held(fd, 0)
                return
            number += 1

    def _is_ours(self, path: Path, fd: int) -> bool:
        """Lock a new file, and make its name durable; else let it go."""
        is_ours = False
        try:
            # Whoever sweeps leftovers may have locked it first, and unlinked it.
            if self._files.lock(fd) and self._files.identity(path) == self._files.identity(fd):
                self._files.sync_directory(self._segments.folder)
                is_ours = True
        finally:
            if not is_ours:
                self._release(fd)
        return is_ours

    def _let_go(self, keep: int | None) -> None:
        """Give back every lock but one."""
        for number in [number for number in self._held if number != keep]:
            self._release(self._held.pop(number).fd)

    def _release(self, fd: int) -> None:
        # A child forked meanwhile shares the lock; closing alone would leave it with the child.
        with contextlib.suppress(OSError):
            self._files.unlock(fd)
        self._files.close(fd)
