"""The LMDB environment of the index: transactions, growth, and whether its file can be trusted.

Several processes have it open for writing; LMDB's own lock puts their transactions in order. Knows
tables by name and nothing of their rows (rows.py does). Invariants: no memory of LMDB leaves a
transaction, and the map grows only while no transaction of this process is open.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import xxhash

from ced_kvstore.errors import BadRecord
from ced_kvstore.files import Files
from ced_kvstore.gate import Gate
from ced_kvstore.rows import Tables
from ced_kvstore.tables import TABLES

T = TypeVar("T")

MAP_BYTES = 1 << 30
"""First size of the map; it is address space, not disk."""

GROW_AT = 0.7
"""Share of the map in use at which it doubles."""

_CHECK = "CHECK"


class Index:
    """One open environment. One per process and directory, as LMDB requires."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        *,
        writable: bool,
        map_bytes: int = MAP_BYTES,
        locked: bool = True,
        guard: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """Open the index in `folder`, which `check` has passed or another process has open.

        Raises BadRecord when it is no index, else OSError or lmdb.Error.

        With `locked=False` (a folder this user cannot write to) LMDB cannot register its readers;
        every transaction then runs inside `guard()`, which must keep writers out.
        """
        self._files = files
        self._folder = folder
        self._gate = Gate()
        self._guard = guard
        data = folder / "data.mdb"
        if not writable and not files.size(data):
            raise BadRecord("there is no index")
        if writable and files.read_small(folder / _CHECK) is not None:
            # From here on the file changes, so its sum is void until `seal` writes a new one.
            files.unlink(folder / _CHECK)
            files.sync_directory(folder)
        self._env = files.open_index(
            folder,
            map_size=max(map_bytes, 2 * files.size(data)),
            max_dbs=len(TABLES),
            mode=0o600,
            readonly=not writable,
            lock=locked,
            create=writable,
            readahead=False,
            max_spare_txns=4,
        )
        try:
            if writable:
                for name in ("data.mdb", "lock.mdb"):
                    files.make_private(folder / name)
            with guard():
                self._tables = self._open_tables(writable=writable)
        except BaseException:
            self._env.close()
            raise

    def _open_tables(self, *, writable: bool) -> dict[str, Any]:
        def opened(**options: Any) -> dict[str, Any]:
            return {
                name: self._env.open_db(name.encode(), create=writable, **options, **flags)
                for name, flags in TABLES.items()
            }

        try:
            if not writable:
                return opened()
            # One transaction for all, which may have to wait for another process's.
            with self._transaction(write=True) as txn:
                tables = opened(txn=txn)
                txn.commit()
                return tables
        except lmdb.NotFoundError:
            raise BadRecord("the index has not all its tables") from None

    @contextlib.contextmanager
    def read(self) -> Iterator[Tables]:
        """A short read transaction; everything taken out of it is a copy."""
        with self._guard(), self._transaction(write=False) as txn:
            yield Tables(txn, self._tables)

    def write(self, change: Callable[[Tables], T]) -> T:
        """Run `change` in one write transaction and publish it; it runs again if the map was full.

        Waits for the transactions of other processes. Raises OSError or lmdb.Error, or what
        `change` does; then nothing was changed.
        """
        # A reader that was killed would keep old pages from being used again.
        self._env.reader_check()
        self._grow_in_time()
        while True:
            try:
                with self._transaction(write=True) as txn:
                    result = change(Tables(txn, self._tables))
                    self._files.publish(txn.commit)
                    return result
            except lmdb.MapFullError:
                self._double()

    def wait_for_writers(self) -> None:
        """Return when every write transaction begun before has ended, in all processes."""
        with self._transaction(write=True):
            pass

    @contextlib.contextmanager
    def _transaction(self, *, write: bool) -> Iterator[lmdb.Transaction]:
        """One transaction, undone unless it was committed."""
        txn = self._begin(write=write)
        try:
            yield txn
        finally:
            with contextlib.suppress(lmdb.Error):
                txn.abort()
            self._gate.leave()

    def _begin(self, *, write: bool) -> lmdb.Transaction:
        """Go through the gate and begin; the caller leaves it."""
        while True:
            self._gate.enter()
            try:
                return self._env.begin(write=write)
            except lmdb.MapResizedError:
                self._gate.leave()
            except BaseException:
                self._gate.leave()
                raise
            # Another process has grown the map; take over its size.
            with self._gate.alone():
                self._env.set_mapsize(0)

    def _grow_in_time(self) -> None:
        info = self._env.info()
        used = (info["last_pgno"] + 1) * self._env.stat()["psize"]
        if used > GROW_AT * info["map_size"]:
            self._double()

    def _double(self) -> None:
        with self._gate.alone():
            self._env.set_mapsize(2 * self._env.info()["map_size"])

    def used_bytes(self) -> int:
        """Bytes of the index on disk."""
        return self._files.size(self._folder / "data.mdb")

    def close(self) -> None:
        """Close the environment."""
        with self._gate.alone():
            self._env.close()

    def seal(self) -> None:
        """Leave a sum of the file behind; it was closed, and no other process writes."""
        self._files.write_small(self._folder / _CHECK, _sum(self._files, self._folder / "data.mdb"))


def erase(files: Files, folder: Path) -> None:
    """Remove an index that is to be rebuilt."""
    for name in ("data.mdb", "lock.mdb", _CHECK):
        files.unlink(folder / name)


def _sum(files: Files, path: Path) -> bytes:
    # 574 MB that the system has in memory take 0.2 s; a map instead of reads was no faster, and
    # would die of a file that somebody truncates.
    digest, buffer, offset = xxhash.xxh3_128(), memoryview(bytearray(1 << 20)), 0
    fd = files.open(path)
    try:
        while got := files.preadv(fd, [buffer], offset):
            digest.update(buffer[:got])
            offset += got
    finally:
        files.close(fd)
    return digest.hexdigest().encode() + b"\n"


def check(files: Files, folder: Path, *, walk: bool) -> None:
    """Raise BadRecord for a file that LMDB must not map: it trusts every page it finds.

    After a clean close the sum of the whole file decides. Without one, `walk` says that no process
    has the index open: the last one was killed. Nothing that LMDB committed can be torn by that,
    and its pages are synced before they are named, so what remains is a disk that lies when the
    power goes, and damage by other hands; both can make LMDB die of a signal, and nothing short of
    reading every page finds them. So every page is walked, in Python: some 4 s of processor time
    for a million blocks, which few stores have (10 GB of a model's rows are some 10,000), and no
    more than it would take to build the index anew.
    """
    data = folder / "data.mdb"
    if not files.size(data):
        return
    sealed = files.read_small(folder / _CHECK)
    if sealed is not None:
        # A writer may have begun between a reader's two reads; then the sum is gone by now.
        if sealed == _sum(files, data) or (not walk and files.read_small(folder / _CHECK) is None):
            return
        raise BadRecord("the index is damaged")
    if not walk:
        return
    try:
        verifier = importlib.import_module("lmdb.verify")
    except ImportError:  # py-lmdb before 3.0 has none; LMDB's own checks must do.
        return
    try:
        problems = verifier.verify(str(data))
    except (verifier.VerifyError, OSError) as error:
        raise BadRecord(f"the index is damaged: {error}") from None
    if problems:
        raise BadRecord(f"the index is damaged: {problems[0]}")
