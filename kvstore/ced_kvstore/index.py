"""The LMDB environment of the index: transactions, growth, and whether its file can be trusted.

Knows tables by name and nothing of their rows (rows.py does). Invariants: no memory of LMDB leaves
a transaction, the map grows only while no transaction of this process is open, and a file that does
not pass its check is never mapped.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import lmdb
import xxhash

from ced_kvstore.errors import BadRecord
from ced_kvstore.files import Files
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
        """Open the index in `folder`.

        Raises BadRecord when it is damaged or not there, else OSError or lmdb.Error.

        With `locked=False` (a folder this user cannot write to) LMDB cannot register its readers;
        every transaction then runs inside `guard()`, which must keep writers out.
        """
        self._files = files
        self._folder = folder
        self._gate = threading.Lock()
        self._guard = guard
        data = folder / "data.mdb"
        if not writable and not files.size(data):
            raise BadRecord("there is no index")
        if files.size(data):
            _check(files, folder, walk=writable)
        if writable:
            # From here on the file changes, so its sum is void until close() writes a new one.
            files.unlink(folder / _CHECK)
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
                # Slots of killed readers would keep old pages from being used again.
                self._env.reader_check()
            self._tables = {
                name: self._env.open_db(name.encode(), create=writable, **flags)
                for name, flags in TABLES.items()
            }
        except lmdb.NotFoundError:
            self._env.close()
            raise BadRecord("the index has not all its tables") from None
        except BaseException:
            self._env.close()
            raise

    @contextlib.contextmanager
    def read(self) -> Iterator[Tables]:
        """A short read transaction; everything taken out of it is a copy."""
        with self._gate, self._guard():
            try:
                txn = self._env.begin()
            except lmdb.MapResizedError:
                # Another process has grown the map; take over its size.
                self._env.set_mapsize(0)
                txn = self._env.begin()
            try:
                yield Tables(txn, self._tables)
            finally:
                txn.abort()

    def write(self, change: Callable[[Tables], T]) -> T:
        """Run `change` in one write transaction and publish it; it runs again if the map was full.

        Raises OSError or lmdb.Error; then nothing was changed.
        """
        with self._gate:
            self._grow_in_time()
            while True:
                txn = self._env.begin(write=True)
                try:
                    result = change(Tables(txn, self._tables))
                    self._files.publish(txn.commit)
                    return result
                except lmdb.MapFullError:
                    txn.abort()
                    self._double()
                except BaseException:
                    with contextlib.suppress(lmdb.Error):
                        txn.abort()
                    raise

    def _grow_in_time(self) -> None:
        info = self._env.info()
        used = (info["last_pgno"] + 1) * self._env.stat()["psize"]
        if used > GROW_AT * info["map_size"]:
            self._double()

    def _double(self) -> None:
        self._env.set_mapsize(2 * self._env.info()["map_size"])

    @property
    def map_bytes(self) -> int:
        """Size of the map now."""
        return self._env.info()["map_size"]

    def used_bytes(self) -> int:
        """Bytes of the index on disk."""
        return self._files.size(self._folder / "data.mdb")

    def close(self, *, seal: bool) -> None:
        """Close the environment; with `seal` (the writer) leave a sum of the file behind."""
        with self._gate:
            self._env.close()
        if seal:
            self._files.write_small(self._folder / _CHECK, _sum(self._folder / "data.mdb"))


def erase(files: Files, folder: Path) -> None:
    """Remove an index that is to be rebuilt."""
    for name in ("data.mdb", "lock.mdb", _CHECK):
        files.unlink(folder / name)


def _sum(path: Path) -> bytes:
    digest = xxhash.xxh3_128()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest().encode() + b"\n"


def _check(files: Files, folder: Path, *, walk: bool) -> None:
    """Raise BadRecord for a file that LMDB must not map: it trusts every page it finds.

    After a clean close the sum of the whole file decides. Without one (a killed writer, or one that
    is running) the writer walks the pages; a reader takes a running writer's file as it is.
    """
    data = folder / "data.mdb"
    sealed = files.read_small(folder / _CHECK)
    if sealed is not None:
        # A writer may have begun between the two reads of a reader; then the sum is gone by now.
        if sealed == _sum(data) or (not walk and files.read_small(folder / _CHECK) is None):
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
