"""Two processes on one store: locks held as by another one, and a stop between writing and
publishing in which another one acts."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Files, Store


def hold(path: Path) -> int:
    """Hold a file's lock as another process would; os.close gives it back."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


class Race:
    """This process, another one, and a stop between append and publish."""

    def __init__(self, kit: Any, other: Any, patch: pytest.MonkeyPatch) -> None:
        self.kit, self.other = kit, other
        self.store: Store = kit.open()
        other("store = kit.open()")
        self._acts: list[Callable[[], Any]] = []
        plain = Files.sync_data

        def stopped(files: Files, fd: int) -> None:
            plain(files, fd)
            acts, self._acts = self._acts, []
            for act in acts:
                act()

        patch.setattr(Files, "sync_data", stopped)

    def meanwhile(self, *acts: str) -> None:
        """Let the other process do this when the next records are synced, once."""
        self._acts = [functools.partial(self.other, f"{act} and 0") for act in acts]

    def begin(self, act: str) -> None:
        """Let the other process begin this; it goes on `meanwhile`, when its records are synced."""
        go = self.kit.directory.with_name("go")
        self.other(f"wait_at_sync({str(go)!r})")
        thread = threading.Thread(target=lambda: self.other(f"{act} and 0"), daemon=True)
        thread.start()
        ends = time.monotonic() + 20
        while not go.with_name("waiting").exists():
            assert thread.is_alive()
            assert time.monotonic() < ends
            time.sleep(0.005)

        def go_on() -> None:
            go.touch()
            thread.join(20)
            assert not thread.is_alive()

        self._go_on = go_on

    def go_on_meanwhile(self) -> None:
        """Let what has begun go on when the next records are synced, once."""
        self._acts = [self._go_on]

    def says(self) -> list[Any]:
        """All that the index says, beside places and recency."""
        with self.store._core.read() as tables:
            blocks = sorted((key, e.position, e.parent, e.bad) for key, e in tables.blocks())
            snapshots = [key for key, *_ in blocks if tables.snapshot(key)]
        return [blocks, snapshots, sorted(self.store.anchors(), key=repr)]

    def check(self) -> None:
        """The index is whole, and a rebuilt one says the same."""
        assert not self._acts
        assert self.store.verify() == []
        assert self.store.notice is None
        before = self.says()
        self.other("store.close()")
        self.store.close()
        shutil.rmtree(self.kit.directory / "index")
        self.store = self.kit.open()
        assert self.says() == before
        assert self.store.verify() == []
