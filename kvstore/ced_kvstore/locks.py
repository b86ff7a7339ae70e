"""The three locks of a directory: who opens or closes it, who writes in it, who makes room.

    OPEN    exclusive, while a process opens or closes the store
    LOCK    shared, for life, by each process that writes; exclusive: nobody else has it open
    LEASE   exclusive, while a process drops or moves what is stored

Knows flock and nothing of what is locked. The kernel holds each lock for an open file, so it dies
with its process. A child forked meanwhile shares the open file: locks are given back, not closed.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ced_kvstore.errors import BadRecord
from ced_kvstore.files import Files

OPEN_WAIT_S = 30.0
"""A process that checks or rebuilds a large index keeps others waiting; see seal.check."""

LEASE_WAIT_S = 2.0

BUSY = "another process is making room"
"""Why something was not dropped or moved."""

WHO_BARS = "a reader that keeps writers out for moments, or an older version of the store"

_PAUSE_S = 0.02
_TRIES = 10


class Company(enum.Enum):
    """Who else writes in a directory."""

    ALONE = enum.auto()
    BESIDE = enum.auto()
    BARRED = enum.auto()


class Locks:
    """The locks of one directory, as one process holds them."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._fd: int | None = None
        self._has_lease = False
        self._readers = 0
        self._reading = threading.RLock()
        self.is_writer = False
        """Whether this process takes part in writing, that is holds LOCK for life."""

    # Opening and closing.

    @contextlib.contextmanager
    def opening(self) -> Iterator[bool]:
        """Hold OPEN; False when another process had it for too long. Raises OSError."""
        with self._hold("OPEN", OPEN_WAIT_S) as got:
            yield got

    def join(self) -> Company:
        """Take part in writing; the caller holds OPEN. Alone means LOCK is exclusive until `share`.

        Raises OSError.
        """
        if self._fd is None:
            self._fd = self._files.open(self._directory / "LOCK", write=True, create=True)
        company = self._try(self._fd)
        self.is_writer = company is not Company.BARRED
        return company

    def share(self) -> bool:
        """Let others take part, too; False when a reader got in between and stayed."""
        assert self._fd is not None
        # The kernel gives the lock back before it takes the other kind.
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE_S)
            if self._files.lock(self._fd, shared=True):
                return True
        return False

    def is_last(self) -> bool:
        """Say whether no other process writes; the caller holds OPEN, and is leaving."""
        return self._fd is not None and self.is_writer and self._try(self._fd) is Company.ALONE

    def leave(self) -> None:
        """Take no more part; never raises."""
        self.is_writer = False
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._files.unlock(self._fd)

    def close(self) -> None:
        """Give everything back; never raises."""
        self.leave()
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._files.close(self._fd)
            self._fd = None

    def _try(self, fd: int, tries: int = _TRIES) -> Company:
        for attempt in range(tries):
            if attempt:
                time.sleep(_PAUSE_S)
            if self._files.lock(fd):
                return Company.ALONE
            if self._files.lock(fd, shared=True):
                return Company.BESIDE
        return Company.BARRED

    # Making room.

    @contextlib.contextmanager
    def lease(self, wait_s: float | None = None) -> Iterator[bool]:
        """Hold LEASE, which may be held already; False when another process keeps it."""
        if self._has_lease:
            yield True
            return
        with self._hold("LEASE", LEASE_WAIT_S if wait_s is None else wait_s) as got:
            self._has_lease = got
            try:
                yield got
            finally:
                self._has_lease = False

    @contextlib.contextmanager
    def _hold(self, name: str, wait_s: float) -> Iterator[bool]:
        fd = self._files.open(self._directory / name, write=True, create=True)
        try:
            ends = time.monotonic() + wait_s
            while not (got := self._files.lock(fd)) and time.monotonic() < ends:
                time.sleep(_PAUSE_S)
            yield got
        finally:
            with contextlib.suppress(OSError):
                self._files.unlock(fd)
            self._files.close(fd)

    # Reading only.

    def look(self) -> Company:
        """Say who writes, without taking part: barred while an index is checked or built anew."""
        fd = self._reading_fd()
        if fd is None:
            return Company.ALONE
        company = self._try(fd, tries=2)
        self._files.unlock(fd)
        return company

    @contextlib.contextmanager
    def without_writers(self) -> Iterator[None]:
        """Keep writers out for a moment; raises BadRecord when there is one.

        For a user who cannot register as a reader: nothing else would keep a page in place while
        it is read.
        """
        fd = self._reading_fd()
        if fd is None:
            yield
            return
        with self._reading:
            if not self._readers and self._try(fd) is not Company.ALONE:
                self._files.unlock(fd)
                raise BadRecord("another process writes, and this user cannot register as a reader")
            self._readers += 1
            try:
                yield
            finally:
                self._readers -= 1
                if not self._readers:
                    self._files.unlock(fd)

    def _reading_fd(self) -> int | None:
        if self._fd is None:
            with contextlib.suppress(OSError):
                self._fd = self._files.open(self._directory / "LOCK")
        return self._fd
