"""What each process is using, told to whoever makes room: one small file per process.

The file is locked for life, so a lock that can be taken means that its process is dead. It holds
b"CEDP", a count (u32), so many block hashes, and the xxh3-128 of all that; it is written in place
and never synced. Invariant: what a live process pinned is seen whole, or the reader knows that it
is not.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
import threading
import time
from collections import Counter
from pathlib import Path

import xxhash

from ced_kvstore.files import Files

_HEAD = struct.Struct("<4sI")
_MAGIC = b"CEDP"
_SUM_BYTES = 16
_TRIES = 5
_PAUSE_S = 0.005


class Pins:
    """The pins of this process, and a look at those of others."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self._lock = threading.Lock()
        self._counts: Counter[bytes] = Counter()
        self._path: Path | None = None
        self._fd: int | None = None
        self._is_mute = False
        self.incoming: bytes | None = None
        """The block that the newest match ended in."""

    def add(self, key: bytes) -> None:
        """Keep a block and the path below it; calls are counted."""
        with self._lock:
            self._counts[key] += 1
            self._tell()

    def drop(self, key: bytes) -> None:
        """Take one `add` back."""
        with self._lock:
            self._counts[key] -= 1
            self._counts += Counter()
            self._tell()

    def use(self, key: bytes) -> None:
        """Keep this path instead of the one matched before."""
        if key != self.incoming:
            with self._lock:
                self.incoming = key
                self._tell()

    @property
    def own(self) -> set[bytes]:
        """What was pinned here with `add`."""
        with self._lock:
            return set(self._counts)

    def others(self) -> set[bytes] | None:
        """Return what other live processes use, None when one of them cannot be read whole.

        Files of dead processes are unlinked. Raises OSError.
        """
        found: set[bytes] = set()
        for name in self._files.names(self._folder):
            path = self._folder / name
            if path.suffix != ".pin" or path == self._path:
                continue
            keys = self._read(path)
            if keys is None:
                return None
            found |= keys
        return found

    def close(self) -> None:
        """Take the file away; never raises."""
        with self._lock:
            self._be_mute()

    def _be_mute(self) -> None:
        self._is_mute = True
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._files.unlink(self._path)
        if self._fd is not None:
            self._let_go(self._fd)
        self._path = self._fd = None

    def _let_go(self, fd: int) -> None:
        for step in (self._files.unlock, self._files.close):
            with contextlib.suppress(OSError):
                step(fd)

    def _tell(self) -> None:
        if self._is_mute:
            return
        keys = [*self._counts, *([self.incoming] if self.incoming else ())]
        body = _HEAD.pack(_MAGIC, len(keys)) + b"".join(keys)
        try:
            if self._fd is None:
                self._create()
            if self._fd is not None:
                self._files.pwritev(self._fd, [body + xxhash.xxh3_128_digest(body)], 0)
        except OSError:
            # A pin that is not told may cost a miss. A file that is not whole would keep all others
            # from making room.
            self._be_mute()

    def _create(self) -> None:
        # Whoever looks for dead processes may have the new file's lock first, and unlink it.
        for _ in range(_TRIES):
            path = self._folder / f"{secrets.token_hex(8)}.pin"
            fd = self._files.create(path)
            if fd is None:
                continue
            try:
                if self._files.lock(fd) and self._files.identity(path) == self._files.identity(fd):
                    self._path, self._fd = path, fd
                    return
            finally:
                if self._fd is None:
                    self._let_go(fd)

    def _read(self, path: Path) -> set[bytes] | None:
        """Return a live process's pins, none of a dead one, None for a file that is not whole."""
        try:
            fd = self._files.open(path)
        except FileNotFoundError:
            return set()
        except OSError:
            return None
        try:
            for attempt in range(_TRIES):
                if attempt:
                    time.sleep(_PAUSE_S)
                if self._files.lock(fd):
                    with contextlib.suppress(OSError):
                        self._files.unlink(path)
                    return set()
                keys = parse(self._files.read_small(path) or b"")
                if keys is not None:
                    return keys
            return None
        finally:
            self._files.close(fd)


def parse(raw: bytes) -> set[bytes] | None:
    """Return the block hashes in a pin file's bytes, None when they are not whole."""
    if len(raw) < _HEAD.size:
        return None
    magic, count = _HEAD.unpack_from(raw)
    end = _HEAD.size + 32 * count
    if magic != _MAGIC or raw[end : end + _SUM_BYTES] != xxhash.xxh3_128_digest(raw[:end]):
        return None
    return {raw[at : at + 32] for at in range(_HEAD.size, end, 32)}
