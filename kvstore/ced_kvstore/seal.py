"""The sum that the last process leaves of the index: whether its file can be trusted.

Knows the file as bytes and, without a sum, as pages. Invariant: where the sum fits, the file is as
LMDB left it.
"""

from __future__ import annotations

import importlib
import struct
from pathlib import Path

import xxhash

from ced_kvstore.errors import BadRecord
from ced_kvstore.files import Files

_CHECK = "CHECK"


def void(files: Files, folder: Path) -> None:
    """Take the sum away, durably, before the file changes."""
    if files.read_small(folder / _CHECK) is not None:
        files.unlink(folder / _CHECK)
        files.sync_directory(folder)


def leave(files: Files, folder: Path) -> None:
    """Leave a sum of the file, which was closed and which nobody writes."""
    files.write_small(folder / _CHECK, _sum(files, folder / "data.mdb"))


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
    # Few openings need it.
    verifier = importlib.import_module("lmdb.verify")
    try:
        problems = verifier.verify(str(data))
    except (verifier.VerifyError, OSError, struct.error, ValueError, LookupError) as error:
        raise BadRecord(f"the index is damaged: {error}") from None
    if problems:
        raise BadRecord(f"the index is damaged: {problems[0]}")
