"""The tar around an archive: headers to write, and members read where they lie, never unpacked.

Knows plain tar (ustar) with regular files and nothing else of that format's fifty years: links,
devices, folders, long names, sparse and extended headers are all refused. Invariant: a member that
was returned lies inside the file, and every byte between members was checked to be what it must be.
"""

from __future__ import annotations

import re
import struct
import tarfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from ced_kvstore.errors import StoreError
from ced_kvstore.files import Files
from ced_kvstore.schema import fault, refuse, shown

BLOCK = 512
END = bytes(2 * BLOCK)
"""What comes after the last member."""

MAX_PADDING = 1 << 20
"""Most zeros behind the end; tar programs fill up to some record size."""

# name, mode uid gid, size, mtime, chksum, type, linkname, magic and version, uname gname devmajor
# devminor, prefix and what fills the block
_HEADER = struct.Struct("<100s24s12s12s8sc100s8s80s167s")
_MAGIC = (b"ustar\x0000", b"ustar  \x00")
_OCTAL = re.compile(rb"[0-7]{11}[ \x00]")


@dataclass(frozen=True, slots=True)
class Member:
    """One regular file in the tar."""

    name: str
    offset: int
    """Where its bytes begin."""
    size: int

    @property
    def end(self) -> int:
        """Where the next header begins."""
        return self.offset + self.size + -self.size % BLOCK


def header(name: str, size: int) -> bytes:
    """Return the header of a private regular file, the same for the same arguments."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info.tobuf(tarfile.USTAR_FORMAT)


class Tape:
    """A tar open for reading. Every method raises StoreError: the file is what was handed in."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        # A pipe or a device could make us wait for ever.
        if not path.is_file():
            other = "it is no regular file" if path.exists() else "there is none; check the path"
            raise StoreError(f"expected an archive file, but {other}")
        try:
            self.size = files.size(path)
            self._fd = files.open(path)
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}") from None

    def __enter__(self) -> Tape:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.close(self._fd)

    def first(self, name: str, max_bytes: int) -> Member:
        """Return the first member, which must have this name and at most this size."""
        found = self._member(0)
        if found is None or found.name != name:
            fault("the tar", f"{name} as its first file", f"it is {shown(found and found.name)}")
        if found.size > max_bytes:
            refuse(name, f"at most {max_bytes} bytes", found.size)
        return found

    def rest(self, first: Member, names: Collection[str]) -> dict[str, Member]:
        """Return the members behind the first one: exactly these names, in any order."""
        members: dict[str, Member] = {}
        at = first.end
        while (member := self._member(at)) is not None:
            if member.name not in names or member.name in members:
                refuse("the tar", "each file of the manifest once and no other", member.name)
            members[member.name] = member
            at = member.end
        missing = sorted(set(names) - members.keys())
        if missing:
            fault("the tar", f"the file {missing[0]}", "it is missing")
        if self.size - at > MAX_PADDING or any(self._read(at, self.size - at)):
            fault("the tar", "some zeros behind its last file", "there is more")
        return members

    def read(self, member: Member) -> memoryview:
        """Return all bytes of a member; whoever calls knows that they are not too many."""
        return memoryview(self._read(member.offset, member.size))

    def _member(self, at: int) -> Member | None:
        """Return the member whose header is at an offset, None at the end of the tar."""
        where = f"the tar at byte {at}"
        if at + BLOCK > self.size:
            self._cut(where, "a header or the end mark")
        raw = self._read(at, BLOCK)
        if not any(raw):
            if at + len(END) > self.size:
                self._cut(where, "an end mark of two blocks")
            return None
        name, _owner, size, _mtime, check, kind, link, magic, _names, prefix = _HEADER.unpack(raw)
        # The sum is taken with its own field as spaces.
        if check != b"%06o\0 " % (sum(raw) - sum(check) + 8 * ord(" ")):
            fault(where, "a header of a plain, uncompressed tar", "its sum does not fit")
        if kind != b"0" or magic not in _MAGIC or any(link) or any(prefix):
            fault(where, "a regular file of a plain tar", f"it is of type {shown(kind)}")
        plain, _, behind = name.partition(b"\0")
        if not plain.isascii() or any(behind):
            refuse(where, "a name of ASCII letters", plain)
        if _OCTAL.fullmatch(size) is None:
            refuse(f"{where}: size", "octal digits", size)
        member = Member(plain.decode(), at + BLOCK, int(size[:-1], 8))
        if member.end > self.size:
            self._cut(where, f"{member.size} bytes of {shown(member.name)}")
        behind_it = member.offset + member.size
        if any(self._read(behind_it, member.end - behind_it)):
            fault(f"the tar at byte {behind_it}", "zeros up to a header", "there is more")
        return member

    def _read(self, offset: int, size: int) -> bytearray:
        raw = bytearray(size)
        try:
            got = self._files.preadv(self._fd, [memoryview(raw)], offset)
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}") from None
        if got != size:
            fault(f"the file at byte {offset}", f"{size} bytes", f"only {got} could be read")
        return raw

    def _cut(self, where: str, expected: str) -> NoReturn:
        fault(where, expected, f"the archive is cut off: the file ends at {self.size}")
