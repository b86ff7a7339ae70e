"""One store directory as this process has it open: may it write, what it found, when it gave up.

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

from ced_kvstore.errors import TROUBLE, BadIndex, BadRecord, told
from ced_kvstore.files import Files
from ced_kvstore.index import Index
from ced_kvstore.leftovers import clear
from ced_kvstore.locks import WHO_BARS, Company, Locks
from ced_kvstore.pins import Pins
from ced_kvstore.reader import Reader
from ced_kvstore.record import Place
from ced_kvstore.recover import open_index
from ced_kvstore.rows import Tables
from ced_kvstore.segment import Segments
from ced_kvstore.stats import Counters
from ced_kvstore.tree import decayed
from ced_kvstore.version import check, prepare
from ced_kvstore.writer import Writer, segment_limit

T = TypeVar("T")

DEFAULT_MAX_BYTES = 10 * 10**9


class Core:
    """Shared by all handles on one directory; `users` counts them."""

    def __init__(
        self, directory: Path, files: Files, max_bytes: int | None, map_bytes: int
    ) -> None:
        self.directory = directory
        self.files = files
        self.lock = threading.RLock()
        """Held by whoever changes the store; matching and reading do without."""
        self.segments = Segments(files, directory / "seg")
        self.writer = Writer(files, self.segments)
        self.locks = Locks(files, directory)
        self.pins = Pins(files, directory / "pins")
        self.counters = Counters()
        self.read_only = True
        self.notice: str | None = None
        self.disabled: str | None = None
        """Why nothing can be looked up at all."""
        self.touched: dict[bytes, tuple[float, int]] = {}
        """Recency not yet written: block -> (last use, hits)."""
        self.bad: dict[Place, bytes] = {}
        """Blocks and snapshots found damaged: the place they were found in -> block."""
        self.in_vain: object = None
        """What the store looked like when nothing in it could be dropped."""
        self.users = 1
        self.pid = os.getpid()
        self._map_bytes = map_bytes
        self._index: Index | None = None
        """Of a process that takes part in writing."""
        self._reader = Reader(files, directory, map_bytes, self.locks)
        if max_bytes is None:
            with contextlib.suppress(OSError):
                max_bytes = min(DEFAULT_MAX_BYTES, files.disk_bytes(directory) // 10)
        self.set_budget(DEFAULT_MAX_BYTES if max_bytes is None else max_bytes)

    def set_budget(self, max_bytes: int) -> None:
        """Change the byte budget."""
        self.max_bytes = max_bytes
        self.writer.limit = segment_limit(max_bytes)

    def budget(self, tables: Tables) -> int:
        """Return the byte budget: what the folder was last given, by whichever process."""
        return (tables.get_meta("budget") or self.max_bytes + 1) - 1

    # Opening.

    def start(self) -> None:
        """Take part in writing, or read only and say why; raises StoreError only."""
        try:
            check(self.files, self.directory)
            with self.locks.opening() as is_ours:
                if is_ours:
                    self._join()
                else:
                    self.fail("another process has been opening or closing it for too long")
        except TROUBLE as error:
            self.fail(error)
        except BaseException:
            self.locks.close()
            raise

    def _join(self) -> None:
        try:
            company = self.locks.join()
            if company is not Company.BARRED:
                alone = company is Company.ALONE
                prepare(self.files, self.directory)
                self._index = open_index(
                    self.files, self.directory, self.segments, self._map_bytes, alone=alone
                )
                self.read_only = alone and not self.locks.share()
            if self.read_only:
                self.fail(f"it is in use by {WHO_BARS}")
        finally:
            if self.read_only:
                # What cannot be written may still be read, as a reader does.
                if self._index is not None:
                    self._index.close()
                    self._index = None
                self.locks.leave()

    # Reading.

    @contextlib.contextmanager
    def read(self) -> Iterator[Tables]:
        """A short read transaction on the index; raises one of TROUBLE."""
        if self.pid != os.getpid():
            raise BadRecord("opened before a fork; open the store after it, or use spawn")
        if self.disabled:
            raise BadRecord(self.disabled)
        try:
            with (self._index or self._reader.index()).read() as tables:
                yield tables
        except BadIndex as error:
            self.fail(error)
            raise

    def quarantine(self, key: bytes, place: Place) -> None:
        """Remember a damaged block; the index learns it with the next commit."""
        if place not in self.bad:
            self.bad[place] = key
            self.counters.blocks_bad += 1

    def is_bad(self, key: bytes, tables: Tables) -> bool:
        """Say whether a block is known as damaged; also False when there is none."""
        entry = tables.block(key)
        return entry is not None and (entry.bad or entry.place in self.bad)

    def has_snapshot(self, key: bytes, tables: Tables) -> bool:
        """Say whether a block has a snapshot that is not known as damaged."""
        place = tables.snapshot(key)
        return place is not None and place not in self.bad

    def touch(self, key: bytes) -> None:
        """Remember one use of a block, whose path is from here on the one in use."""
        self.pins.use(key)
        if not self.read_only:
            self.touched[key] = (time.time(), self.touched.get(key, (0.0, 0))[1] + 1)

    def pin(self, key: bytes) -> None:
        """Keep a block's path, here and in other processes, until `unpin`."""
        if self.pid == os.getpid():
            self.pins.add(key)
            # Whoever drops by an older list of pins is done before this returns.
            self.change(lambda _core, index: index.wait_for_writers(), lambda _reason: None)

    def unpin(self, key: bytes) -> None:
        """Take one `pin` back."""
        if self.pid == os.getpid():
            self.pins.drop(key)

    # Writing and leaving.

    def fail(self, error: BaseException | str) -> None:
        """Write no more, unless `verify` can mend it; the first call leaves the one notice."""
        self.read_only |= not isinstance(error, BadIndex)
        if self.notice is None:
            end = "" if isinstance(error, BadIndex) else "; nothing new is stored"
            self.notice = f"prefix store {self.directory}: {told(error)}{end}"

    def change(self, change: Callable[[Core, Index], T], otherwise: Callable[[str], T]) -> T:
        """Run a change if this process may write; trouble ends its writing, with one notice."""
        with self.lock:
            if self.disabled:
                return otherwise("disabled")
            if self.read_only or self._index is None or self.pid != os.getpid():
                return otherwise("read_only")
            try:
                return change(self, self._index)
            except TROUBLE as error:
                self.fail(error)
                return otherwise("read_only" if self.read_only else "disabled")

    def publish(self, index: Index, change: Callable[[Tables], T]) -> T:
        """Run `change` in one write transaction, and write down what was only remembered: recency
        and damaged records."""
        touched, bad = dict(self.touched), dict(self.bad)

        def whole(tables: Tables) -> T:
            result = change(tables)
            for key, (last, hits) in touched.items():
                if tables.block(key) is not None:
                    before, old = tables.heat(key)
                    tables.put_heat(key, last, decayed(old, last - before) + hits)
            for place, key in bad.items():
                tables.mark_bad(key, place)
            return result

        result = index.write(whole)
        # Other threads go on matching and reading meanwhile.
        for key, use in touched.items():
            if self.touched.get(key) == use:
                del self.touched[key]
        for place in bad:
            del self.bad[place]
        return result

    def stop(self) -> None:
        """Close everything; the last process leaves a sum of the index. Never raises."""
        with self.lock:
            gone, self.disabled = self.disabled, "the store is closed"
            index, self._index = self._index, None
            with contextlib.suppress(*TROUBLE):
                if index and not self.read_only and (self.touched or self.bad):
                    self.publish(index, lambda tables: None)
            with contextlib.suppress(*TROUBLE):
                self.writer.finish()
            self.pins.close()
            with contextlib.suppress(*TROUBLE):
                self._reader.close()
            with contextlib.suppress(*TROUBLE):
                if index:
                    # A disk that does not answer is not read once more: this would wait for it.
                    self._leave(index, tidy=gone is None)
            self.locks.close()

    def _leave(self, index: Index, *, tidy: bool) -> None:
        try:
            with self.locks.opening() as is_ours:
                try:
                    if tidy and is_ours and self.locks.is_last():
                        clear(self.files, index, self.segments)
                        index.close()
                        index.seal()
                finally:
                    index.close()
                    # Whoever waits for OPEN would else find LOCK exclusive, and take no part.
                    self.locks.leave()
        finally:
            index.close()
