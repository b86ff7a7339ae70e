"""The file of a session: one JSON line per entry, each with a checksum, only ever appended to.

Knows lines and checksums, not what entries mean. `append` is durable when it returns; a damaged
last line is an append that never finished and is left out (and cut away when next written); a
damaged earlier line is an error. One process at a time holds a log, by `flock`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cedagent.errors import SessionError

Entry = dict[str, Any]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CRC = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
# No rights, no space, no such device: the session then goes on in memory.
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO)


def check_name(name: str) -> str:
    """Return the name if it can name a session; raises SessionError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(".results"):
        raise SessionError(
            f"session name {name!r}: expected letters, digits, '.', '_' and '-', "
            "at most 100, beginning with a letter or digit"
        )
    return name


def encode_line(entry: Mapping[str, Any]) -> bytes:
    """Return one line: the entry as compact JSON, its CRC-32 as the last key."""
    body = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()
    return body[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(body)


def decode_line(line: bytes) -> Entry | None:
    """Return the entry of a line without its line break, or None if it is damaged."""
    match = _CRC.fullmatch(line[-18:])
    if match is None:
        return None
    body = line[:-18] + b"}"
    if b"%08x" % zlib.crc32(body) != match[1]:
        return None
    try:
        entry = json.loads(body)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def read_entries(data: bytes, *, path: Path) -> tuple[list[Entry], int]:
    """Return the entries in `data` and where the last good one ends; raises SessionError."""
    entries: list[Entry] = []
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        line = data[start:end] if end >= 0 else data[start:]
        entry = decode_line(line) if end >= 0 else None
        if entry is None:
            # Text after a checksum means that a line break was damaged, and not the last one.
            inner = _CRC.search(line)
            if 0 <= end < len(data) - 1 or (inner and inner.end() + 1 < len(line)):
                raise SessionError(
                    f"session {path.stem}: line {len(entries) + 1} of {path} is damaged; expected "
                    "an intact log, restore it from a copy or begin another session"
                )
            break
        entries.append(entry)
        start = end + 1
    return entries, start


class LogFile:
    """An open log, locked against other processes; `notice` says if it cannot be written."""

    def __init__(self, path: Path, *, begins: bytes = b"", to_remove: bool = False) -> None:
        """Open or create; raises SessionError if another process holds it or it is damaged.

        Every log begins with the bytes `begins`: a file that does not is none, and stays as it is.
        What is only held `to_remove` it is not read, so it may be damaged.
        """
        self.path = path
        self.notice: str | None = None
        self.say: Callable[[str], None] | None = None
        """Told the notice if writing fails later."""
        self.entries: list[Entry] = []
        self.dropped_bytes = 0
        """Bytes after the last good entry: an append that never finished."""
        self._end = 0
        fd = self._open()
        self._fd: int | None = fd
        if fd is None or to_remove:
            return
        try:
            size = os.fstat(fd).st_size
            with os.fdopen(os.dup(fd), "rb") as file:
                data = file.read()
            self.entries, self._end = read_entries(data, path=path)
            if data and not self.entries and not _is_torn_start(data, begins):
                raise SessionError(
                    f"session {path.stem}: {path} is no session log; expected one, or no such "
                    "file: move it away or take another name"
                )
            self.dropped_bytes = size - self._end
        except BaseException:
            self.close()
            raise

    @property
    def is_writable(self) -> bool:
        """False once the file cannot be written: what follows is kept in memory alone."""
        return self._fd is not None and self.notice is None

    def append(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Write entries and wait until they are on the disk; on failure `notice` is set."""
        if self._fd is None or self.notice is not None:
            return
        data = b"".join(encode_line(entry) for entry in entries)
        is_new = self._end == 0
        try:
            os.ftruncate(self._fd, self._end)
            write_all(self._fd, data, offset=self._end)
            os.fsync(self._fd)
            if is_new:
                _sync_folder(self.path.parent)
        except OSError as error:
            self._unsaved(error)
            try:
                os.ftruncate(self._fd, self._end)
            except OSError:
                return
            return
        self._end += len(data)

    def close(self) -> None:
        """Give up the lock; a log into which nothing was written disappears."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        if self._end == 0 and not self.entries:
            try:
                if os.fstat(fd).st_size == 0:
                    self.path.unlink(missing_ok=True)
            except OSError:
                pass
        os.close(fd)

    def __del__(self) -> None:
        # A session that was never closed must not keep its lock.
        if getattr(self, "_fd", None) is not None:
            self.close()

    def _open(self) -> int | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        while True:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                fd = os.open(self.path, flags, 0o600)
            except OSError as error:
                if error.errno not in _UNWRITABLE:
                    raise SessionError(f"session log {self.path}: {error.strerror}") from None
                self._unsaved(error)
                found = self._open_to_read()
                if found is None:
                    return None
                fd = found
            if self._lock(fd):
                return fd

    def _open_to_read(self) -> int | None:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SessionError(f"session log {self.path}: {error.strerror}") from None

    def _lock(self, fd: int) -> bool:
        """Take the lock; False if the file was removed in the meantime."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.fstat(fd)
            now = os.stat(self.path)
        except BlockingIOError:
            os.close(fd)
            raise SessionError(
                f"session {self.path.stem} is open in another place; close it there, "
                "or fork it under another name"
            ) from None
        except FileNotFoundError:
            os.close(fd)
            return False
        if (held.st_dev, held.st_ino) != (now.st_dev, now.st_ino):
            os.close(fd)
            return False
        return True

    def _unsaved(self, error: OSError) -> None:
        self.notice = (
            f"session log {self.path} cannot be written ({error.strerror}); "
            "this session goes on unsaved"
        )
        if self.say is not None:
            self.say(self.notice)


def _is_torn_start(data: bytes, begins: bytes) -> bool:
    """Tell whether data may be a first append that never finished."""
    return b"\n" not in data and data[: len(begins)] == begins[: len(data)]


def write_all(fd: int, data: bytes, *, offset: int) -> None:
    """Write all bytes at an offset; raises OSError."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
