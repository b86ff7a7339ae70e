"""The LMDB environment of the index: its transactions and its growth.

Several processes have it open for writing; LMDB's own lock puts their transactions in order. Knows
tables by name and nothing of their rows (rows.py does). Invariants: no memory of LMDB leaves a
transaction, and the map grows only while no transaction of this process is open.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import msgpack

from ced_kvstore import seal
from ced_kvstore.errors import BadIndex, BadRecord
from ced_kvstore.files import Files
from ced_kvstore.gate import Gate
from ced_kvstore.rows import Tables
from ced_kvstore.tables import TABLES

T = TypeVar("T")

MAP_BYTES = 1 << 30
"""First size of the map; it is address space, not disk."""

GROW_AT = 0.7
"""Share of the map in use at which it doubles."""

_NO_ROW = (
    struct.error,
    msgpack.UnpackException,
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    lmdb.BadValsizeError,
)
"""What comes of a row that the store cannot have written. Of an argument neither: whoever asks has
checked it."""

_NOT_OURS = "a row of its index is not one; what it is about is missed until `kv verify --fix`"


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
        """Open the index in `folder`, which `seal.check` has passed or another process has open.

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
        if writable:
            # From here on the file changes.
            seal.void(files, folder)
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
        """A short read transaction; everything taken out of it is a copy.

        Raises lmdb.Error, or BadIndex where a row is not one.
        """
        with self._guard(), self._transaction(write=False) as txn:
            try:
                yield Tables(txn, self._tables)
            except _NO_ROW as error:
                raise BadIndex(_NOT_OURS) from error

    def write(self, change: Callable[[Tables], T]) -> T:
        """Run `change` in one write transaction and publish it; it runs again if the map was full.

        Waits for the transactions of other processes. Raises OSError or lmdb.Error, BadIndex where
        a row is not one, or what `change` does; then nothing was changed.
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
            except _NO_ROW as error:
                raise BadIndex(_NOT_OURS) from error

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
        seal.leave(self._files, self._folder)
