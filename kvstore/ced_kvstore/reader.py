"""The index as a process sees it that does not write: opened when needed, followed when replaced.

Knows who writes (locks.py) and no rows. Invariant: an index that nobody has checked is not mapped.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from ced_kvstore.errors import BadRecord
from ced_kvstore.files import Files
from ced_kvstore.index import Index
from ced_kvstore.locks import Company, Locks
from ced_kvstore.seal import check


class Reader:
    """One directory's index, for reading."""

    def __init__(self, files: Files, directory: Path, map_bytes: int, locks: Locks) -> None:
        self._files = files
        self._folder = directory / "index"
        self._map_bytes = map_bytes
        self._locks = locks
        self._lock = threading.Lock()
        self._index: Index | None = None
        self._identity: tuple[int, int] | None = None

    def index(self) -> Index:
        """Return the index there is now; raises one of errors.TROUBLE."""
        # A writer that comes alone replaces an index that it has to build anew.
        with self._lock:
            identity = self._files.identity(self._folder / "data.mdb")
            if self._index is not None and identity != self._identity:
                self._index.close()
                self._index = None
            if self._index is None:
                self._index = self._open()
                self._identity = identity
            return self._index

    def close(self) -> None:
        """Let the index go; raises lmdb.Error."""
        with self._lock:
            if self._index is not None:
                self._index.close()
            self._index = None

    def _open(self) -> Index:
        company = self._locks.look()
        if company is Company.BARRED:
            raise BadRecord("another process is opening the store")
        check(self._files, self._folder, walk=company is Company.ALONE)
        locked = self._files.is_writable(self._folder / "lock.mdb")
        return Index(
            self._files,
            self._folder,
            writable=False,
            map_bytes=self._map_bytes,
            locked=locked,
            guard=contextlib.nullcontext if locked else self._locks.without_writers,
        )
