"""One store directory as this process has it open: who may write, what it found, when it gave up.

Knows modes and notices and not what is matched or committed. Invariant: a Core that met trouble
while writing never writes again, says so once, and goes on reading.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ced_kvstore.errors import TROUBLE, BadRecord
from ced_kvstore.files import Files
from ced_kvstore.index import Index
from ced_kvstore.record import Place
from ced_kvstore.recover import open_for_writing
from ced_kvstore.rows import Tables
from ced_kvstore.segment import Segments, segment_limit
from ced_kvstore.stats import Counters
from ced_kvstore.version import VERSION_NAME, VERSION_TEXT, read_version

T = TypeVar("T")

DEFAULT_MAX_BYTES = 10 * 10**9
_LOCK_TRIES = 5
_LOCK_PAUSE_S = 0.02


class Core:
    """Shared by all handles on one directory; `close` counts them."""

    def __init__(
        self, directory: Path, files: Files, max_bytes: int | None, map_bytes: int
    ) -> None:
        self.directory = directory
        self.files = files
        self.map_bytes = map_bytes
        self.lock = threading.RLock()
        """Held by whoever changes the store; matching and reading do without."""
        self.segments = Segments(files, directory / "seg")
        self.counters = Counters()
        self.read_only = True
        self.notice: str | None = None
        self.disabled: str | None = None
        """Why nothing can be looked up at all."""
        self.touched: dict[bytes, tuple[float, int]] = {}
        """Recency not yet written: block -> (last use, hits)."""
        self.bad: dict[bytes, Place] = {}
        """Records found damaged, by the place they were found in."""
        self.incoming: bytes | None = None
        """The block that the newest match ended in; eviction keeps its path."""
        self.index: Index | None = None
        self.users = 1
        self._index_identity: tuple[int, int] | None = None
        self._lock_fd: int | None = None
        self._lock_is_ours = False
        self.pid = os.getpid()
        if max_bytes is None:
            with contextlib.suppress(OSError):
                max_bytes = min(DEFAULT_MAX_BYTES, files.disk_bytes(directory) // 10)
        self.set_budget(DEFAULT_MAX_BYTES if max_bytes is None else max_bytes)

    def set_budget(self, max_bytes: int) -> None:
        """Change the byte budget."""
        self.max_bytes = max_bytes
        self.segments.limit = segment_limit(max_bytes)

    # Opening.

    def start(self, *, created: bool) -> None:
        """Become the writer if nobody is, else a reader; raises VersionError only."""
        try:
            version = read_version(self.files, self.directory)
            if self._take_lock():
                self._start_writing(created or version is not None)
                self.read_only = False
                return
            self.notice = (
                f"prefix store {self.directory} is in use by another process; "
                "reading only, nothing new is stored"
            )
        except TROUBLE as error:
            self.fail(error)
        if self._lock_is_ours and self._lock_fd is not None:
            # What cannot be written may still be read, as a reader does.
            with contextlib.suppress(OSError):
                self.files.unlock(self._lock_fd)
            self._lock_is_ours = False

    def _take_lock(self) -> bool:
        path = self.directory / "LOCK"
        try:
            fd = self.files.open(path, write=True, create=True)
        except OSError:
            with contextlib.suppress(OSError):
                self._lock_fd = self.files.open(path)
            raise
        self._lock_fd = fd
        # A reader that cannot register with LMDB holds the lock for moments; do not mistake it
        # for a writer.
        for attempt in range(_LOCK_TRIES):
            if attempt:
                time.sleep(_LOCK_PAUSE_S)
            if self.files.lock(fd):
                self._lock_is_ours = True
                return True
        return False

    def _start_writing(self, ours: bool) -> None:
        # A folder with other things in it may be shared on purpose; then only our own folders in
        # it are made private.
        if ours or self.files.names(self.directory) == ["LOCK"]:
            self.files.make_private(self.directory)
        for name in ("index", "seg"):
            self.files.make_directory(self.directory / name)
            self.files.make_private(self.directory / name)
        if self.files.read_small(self.directory / VERSION_NAME) is None:
            self.files.write_small(self.directory / VERSION_NAME, VERSION_TEXT)
        self.index = open_for_writing(
            self.files, self.directory / "index", self.segments, self.map_bytes
        )

    # Reading.

    @contextlib.contextmanager
    def read(self) -> Iterator[Tables]:
        """A short read transaction on the index; raises one of TROUBLE."""
        with self._reading_index().read() as tables:
            yield tables

    def _reading_index(self) -> Index:
        if self.pid != os.getpid():
            raise BadRecord("opened before a fork; open the store after it, or use spawn")
        if self.disabled:
            raise BadRecord(self.disabled)
        if self._lock_is_ours:
            if self.index is None:
                raise BadRecord("the index could not be opened")
            return self.index
        # The writer replaces an index that it had to rebuild.
        with self.lock:
            identity = self.files.identity(self.directory / "index" / "data.mdb")
            if self.index is not None and identity != self._index_identity:
                self.index.close(seal=False)
                self.index = None
            if self.index is None:
                self.index = self._open_reading()
                self._index_identity = identity
            return self.index

    def _open_reading(self) -> Index:
        folder = self.directory / "index"
        locked = self.files.is_writable(folder / "lock.mdb")
        return Index(
            self.files,
            folder,
            writable=False,
            map_bytes=self.map_bytes,
            locked=locked,
            guard=contextlib.nullcontext if locked else self._shut_out_writers,
        )

    @contextlib.contextmanager
    def _shut_out_writers(self) -> Iterator[None]:
        if self._lock_fd is None:
            yield
            return
        if not self.files.lock(self._lock_fd, shared=True):
            raise BadRecord("another process writes, and this user cannot register as a reader")
        try:
            yield
        finally:
            self.files.unlock(self._lock_fd)

    def quarantine(self, key: bytes, place: Place) -> None:
        """Remember a damaged record; the index learns it with the next commit."""
        if self.bad.get(key) != place:
            self.bad[key] = place
            self.counters.blocks_bad += 1

    def is_bad(self, key: bytes, tables: Tables) -> bool:
        """Say whether a block is known as damaged; also False when there is none."""
        entry = tables.block(key)
        return entry is not None and (entry.bad or self.bad.get(key) == entry.place)

    # Writing and leaving.

    def fail(self, error: BaseException) -> None:
        """Write no more; the first call leaves the one notice."""
        self.read_only = True
        if self.notice is None:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.notice = f"prefix store {self.directory}: {text}; nothing new is stored"

    def change(self, change: Callable[[Core, Index], T], otherwise: Callable[[str], T]) -> T:
        """Run a change if this process may write; trouble ends its writing, with one notice."""
        with self.lock:
            if self.disabled:
                return otherwise("disabled")
            if self.read_only or self.index is None or self.pid != os.getpid():
                return otherwise("read_only")
            try:
                return change(self, self.index)
            except TROUBLE as error:
                self.fail(error)
                return otherwise("read_only")

    def settle(self, tables: Tables) -> None:
        """Write what was only remembered: recency and damaged records."""
        for key, (last, hits) in self.touched.items():
            if tables.block(key) is not None:
                before, old = tables.heat(key)
                tables.put_heat(key, last, decayed(old, last - before) + hits)
        for key, place in self.bad.items():
            tables.mark_bad(key, place)

    def touch(self, key: bytes) -> None:
        """Remember one use of a block, whose path is from here on the one in use."""
        self.incoming = key
        if self.read_only:
            return
        self.touched[key] = (time.time(), self.touched.get(key, (0.0, 0))[1] + 1)

    def stop(self) -> None:
        """Close everything and let the next writer in; never raises."""
        with self.lock:
            with contextlib.suppress(*TROUBLE):
                if self.index and not self.read_only and (self.touched or self.bad):
                    self.index.write(self.settle)
            with contextlib.suppress(*TROUBLE):
                self.segments.finish_active()
            with contextlib.suppress(*TROUBLE):
                if self.index:
                    self.index.close(seal=self._lock_is_ours)
            self.index, self.disabled = None, "the store is closed"
            if self._lock_fd is not None:
                self.files.close(self._lock_fd)
                self._lock_fd = None


def decayed(hits: float, seconds: float) -> float:
    """Return what is left of some hits after a time; half after a day."""
    return float(hits * 0.5 ** (max(0.0, seconds) / 86_400))
