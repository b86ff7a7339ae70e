"""Trouble while a file is begun leaves no descriptor open, and no lock held."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Files


def still_open(folder: Path) -> list[str]:
    """Files in a folder that this process has open."""
    found = []
    for fd in os.listdir("/dev/fd"):
        try:
            path = os.readlink(f"/dev/fd/{fd}")
        except OSError:
            continue
        if path.startswith(f"{folder}{os.sep}"):
            found.append(path)
    return found


class Failing(Files):
    """A disk on which one step fails, for files of one kind."""

    def __init__(self, method: str, suffix: str) -> None:
        self.method, self.suffix = method, suffix

    def fail(self, method: str, what: Path | int) -> None:
        path = os.readlink(f"/dev/fd/{what}") if isinstance(what, int) else str(what)
        if method == self.method and path.endswith(self.suffix):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def sync_directory(self, path: Path) -> None:
        self.fail("sync_directory", path)
        super().sync_directory(path)

    def lock(self, fd: int, *, shared: bool = False) -> bool:
        self.fail("lock", fd)
        return super().lock(fd, shared=shared)

    def identity(self, path: Path | int) -> tuple[int, int] | None:
        self.fail("identity", path)
        return super().identity(path)

    def unlink(self, path: Path) -> None:
        self.fail("unlink", path)
        super().unlink(path)


pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="asks the kernel what is open"
)


@pytest.mark.parametrize(
    ("method", "suffix"),
    [("sync_directory", "seg"), ("lock", ".kvs"), ("identity", ".kvs")],
)
def test_a_segment_that_cannot_be_begun_is_let_go(kit: Any, method: str, suffix: str) -> None:
    store = kit.open(files=Failing(method, suffix))
    assert kit.commit(store, kit.ids(2)).reason == "read_only"
    store.close()
    assert still_open(kit.directory) == []
    assert kit.commit(kit.open(), kit.ids(2)).blocks == 2


@pytest.mark.parametrize("method", ["lock", "identity", "unlink"])
def test_a_pin_that_cannot_be_told_is_let_go(kit: Any, method: str) -> None:
    kit.fill()
    store = kit.open(files=Failing(method, ".pin"))
    assert store.match(kit.ids(4)).blocks == 4
    store.close()
    assert still_open(kit.directory) == []


def test_a_segment_that_cannot_be_claimed_is_let_go(kit: Any) -> None:
    kit.fill()
    store = kit.open(files=Failing("lock", ".kvs"))
    store.evict(0)
    assert store.read_only
    store.close()
    assert still_open(kit.directory) == []
