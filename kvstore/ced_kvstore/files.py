"""The one layer through which the store touches the operating system.

Every call that reads or changes a disk goes through a method of `Files`, LMDB's own writes included
(`open_index`, `publish`). It knows no format. To see how a caller behaves on a full or read-only
disk, replace a method of the class or pass a subclass to `Store.open(..., files=...)`:

    def full(*args): raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(ced_kvstore.Files, "pwritev", full)
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lmdb

IOV_MAX = 1024
"""Most pieces that one preadv or pwritev takes on Linux and macOS."""


class Files:
    """Thin calls of the operating system; each raises OSError (the index: also lmdb.Error)."""

    def make_directory(self, path: Path) -> bool:
        """Create a private directory and its missing parents; False when it was there."""
        try:
            path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            if not path.is_dir():
                raise
            return False
        # The umask may have taken bits away; the mode is what we promise.
        path.chmod(0o700)
        return True

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """Return a file descriptor; a created file is private whatever the umask.

        What is written to or created is never a symbolic link: somebody may have planted it.
        """
        flags = os.O_RDWR if write else os.O_RDONLY
        if write or create:
            flags |= os.O_NOFOLLOW
        fd = os.open(path, flags | (os.O_CREAT if create else 0) | os.O_CLOEXEC, 0o600)
        if create:
            try:
                os.fchmod(fd, 0o600)
            except OSError:
                os.close(fd)
                raise
        return fd

    def create(self, path: Path) -> int | None:
        """Return a descriptor of a new private file, None when the name is taken."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return None
        try:
            os.fchmod(fd, 0o600)
        except OSError:
            os.close(fd)
            raise
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def preadv(self, fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        """Fill the pieces one after the other; return the bytes read, fewer only at the end."""
        return _transfer(os.preadv, fd, pieces, offset)

    def preadv_cached(self, fd: int, pieces: Sequence[memoryview], offset: int) -> bool:
        """Fill the pieces from what the system has in memory, without ever waiting for a disk.

        False when not all of it is there, or that cannot be told (macOS, file systems without
        RWF_NOWAIT such as tmpfs); what the pieces hold is undefined then, and trouble is for
        `preadv` to find.
        """
        flags = getattr(os, "RWF_NOWAIT", None)
        if flags is None:
            return False
        try:
            for start in range(0, len(pieces), IOV_MAX):
                part = pieces[start : start + IOV_MAX]
                size = sum(map(len, part))
                if os.preadv(fd, part, offset, flags) != size:
                    return False
                offset += size
        except (OSError, OverflowError):
            return False
        return True

    def pwritev(self, fd: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
        """Write all pieces one after the other."""
        views = [memoryview(piece) for piece in pieces]
        if _transfer(os.pwritev, fd, views, offset) != sum(len(view) for view in views):
            raise OSError(errno.EIO, "short write")

    def sync_data(self, fd: int) -> None:
        """Make the file's data durable."""
        getattr(os, "fdatasync", os.fsync)(fd)

    def sync_directory(self, path: Path) -> None:
        """Make created and removed names durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def size(self, path: Path) -> int:
        """Return the file's size in bytes, 0 when it does not exist."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory."""
        return sorted(os.listdir(path))

    def read_small(self, path: Path) -> bytes | None:
        """Return a small file's bytes, None when it does not exist."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def write_small(self, path: Path, content: bytes) -> None:
        """Replace a small file durably: it has the old or the new bytes after a crash."""
        beside = path.with_name(path.name + ".new")
        fd = self.open(beside, write=True, create=True)
        try:
            os.ftruncate(fd, 0)
            self.pwritev(fd, [content], 0)
            self.sync_data(fd)
        finally:
            self.close(fd)
        self.replace(beside, path)

    def replace(self, beside: Path, path: Path) -> None:
        """Give a whole file another's name, durably."""
        os.replace(beside, path)
        self.sync_directory(path.parent)

    def identity(self, path: Path | int) -> tuple[int, int] | None:
        """Return what stays the same while a name means the same file; None when it is gone.

        Takes a descriptor, too, to tell whether a name still means the file that is open.
        """
        try:
            info = os.stat(path)
        except FileNotFoundError:
            return None
        return info.st_dev, info.st_ino

    def is_writable(self, path: Path) -> bool:
        """Say whether this user may write to an existing file."""
        return os.access(path, os.W_OK)

    def make_private(self, path: Path) -> None:
        """Take the group's and the others' permissions away; a link's target is left alone."""
        _refuse_link(path)
        path.chmod(0o700 if path.is_dir() else 0o600)

    def unlink(self, path: Path) -> None:
        """Remove a name if it is there; open descriptors stay readable."""
        path.unlink(missing_ok=True)

    def lock(self, fd: int, *, shared: bool = False) -> bool:
        """Take the file's lock without waiting; False when another holder is in the way."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, fd: int) -> None:
        """Give the file's lock back."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def disk_bytes(self, path: Path) -> int:
        """Return the size of the disk that holds `path`, or its nearest existing parent."""
        info = os.statvfs(_existing(path))
        return info.f_blocks * info.f_frsize

    def free_bytes(self, path: Path) -> int:
        """Return what this user may still write to the disk of `path` or its nearest existing
        parent."""
        info = os.statvfs(_existing(path))
        return info.f_bavail * info.f_frsize

    def open_index(self, path: Path, **options: Any) -> lmdb.Environment:
        """Open the LMDB environment in a directory; one of its own, as LMDB follows links."""
        for each in (path, path / "data.mdb", path / "lock.mdb"):
            _refuse_link(each)
        return lmdb.open(str(path), **options)

    def publish(self, commit: Callable[[], None]) -> None:
        """Run the commit of one LMDB write transaction: the moment a change becomes visible."""
        commit()


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _transfer(
    call: Callable[[int, list[memoryview], int], int],
    fd: int,
    pieces: Sequence[memoryview],
    offset: int,
) -> int:
    """Repeat a vectored call until everything went through or it returns 0."""
    # macOS refuses more than 2 GiB in one call, and both systems may stop early.
    rest, done = list(pieces), 0
    while rest:
        try:
            moved = call(fd, rest[:IOV_MAX], offset + done)
        except OverflowError:
            raise OSError(errno.EOVERFLOW, os.strerror(errno.EOVERFLOW)) from None
        if moved <= 0:
            break
        done += moved
        used = 0
        while used < len(rest) and moved >= len(rest[used]):
            moved -= len(rest[used])
            used += 1
        rest = rest[used:]
        if rest and moved:
            rest[0] = rest[0][moved:]
    return done


def is_supported() -> bool:
    """Say whether this platform has what the store needs (vectored reads at an offset)."""
    return sys.platform != "win32" and hasattr(os, "preadv")
