"""Runs a writer in child processes that kill themselves at every step, and checks what is left.

Usage: crash_worker.py DIRECTORY MODE COMMITS [none|empty] [rebuild] [drop] [beside]. MODE is
before, after or torn (half of a write). With none there is no folder at the start, with empty one
that others may look into; with rebuild the index is gone; with drop the writer then removes,
evicts, collects and compacts; with beside another process has the store open all the time, and
looks at it before anybody opens it again. Prints one line per killed child; exits with an error
when a promise was broken.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import spare_syncs
from test_store_folder import check_modes

from ced_kvstore import Anchor, Files, Store, Stream

STREAMS = [Stream("k", 5000), Stream("v", 3001)]
STEPS = ("make_directory", "open", "create", "pwritev", "sync_data", "sync_directory")
STEPS = (*STEPS, "write_small", "replace", "unlink", "publish", "open_index", "make_private")
PINNED, BESIDE, AFTER = 1, 50, 77


def rows(seed: int, first: int, last: int) -> dict[str, bytes]:
    return {
        s.name: b"".join(bytes([seed, b % 251]) * s.block_bytes for b in range(first, last))[
            : (last - first) * s.block_bytes
        ]
        for s in STREAMS
    }


def ids(seed: int, n_blocks: int) -> list[int]:
    return [seed * 1_000_000 + i for i in range(n_blocks * 128)]


class Deadly(Files):
    """Kills the process at the n-th step."""

    def __init__(self, at: int, mode: str) -> None:
        self.at, self.mode, self.count = at, mode, 0

    def step(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.count += 1
        is_last = self.count == self.at
        if is_last and self.mode == "torn" and name == "pwritev":
            fd, pieces, offset = args
            whole = b"".join(pieces)
            os.pwrite(fd, whole[: len(whole) // 2 + 77], offset)
        if is_last and self.mode != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*args, **options)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def _deadly(name: str) -> Callable[..., Any]:
    plain = getattr(Files, name)

    def method(self: Deadly, *args: Any, **options: Any) -> Any:
        return self.step(name, plain.__get__(self), *args, **options)

    return method


for _name in STEPS:
    setattr(Deadly, _name, _deadly(_name))


def open_store(directory: Path, files: Files | None = None) -> Store:
    # A budget that makes the last commits evict and move records.
    return Store.open(
        directory, fingerprint={"a": 1}, streams=STREAMS, max_bytes=1 << 20, files=files
    )


def fill(directory: Path) -> None:
    """One path that stays, in a store that may be new."""
    with open_store(directory) as store:
        assert (store.notice, store.read_only) == (None, False), store.notice
        path = ids(PINNED, 4)
        anchor = Anchor(store.hashes(path)[-1], "pinned", pinned=True)
        done = store.commit(path, first_block=0, rows=rows(PINNED, 0, 4), anchors=[anchor])
        assert (done.blocks, done.reason) == (4, None), done


def work(directory: Path, files: Files, commits: int, drops: bool) -> None:
    """Some commits, each acknowledged in a file of its own once it returned."""
    done = directory.parent
    with open_store(directory, files) as store:
        for seed in range(2, 2 + commits):
            path = ids(seed, 6)
            anchor = Anchor(store.hashes(path)[-1], f"session:{seed}")
            snapshots = {anchor.block_hash: b"s" * 3000}
            store.match(path)
            result = store.commit(
                path, first_block=0, rows=rows(seed, 0, 6), anchors=[anchor], snapshots=snapshots
            )
            assert result.reason is None, result
            (done / f"done{seed}").touch()
            if seed == 4:
                store.remove("session:3", purge=True)
                (done / "removed3").touch()
        if drops:
            store.commit(ids(9, 3), first_block=0, rows=rows(9, 0, 3))
            assert store.remove("session:2").blocks == 6
            (done / "removed2").touch()
            store.match(ids(1 + commits, 6))
            assert store.evict(store.stats().bytes_on_disk - 30_000)
            store.gc()
            store.compact()


def look(store: Store, base: Path) -> None:
    """What every process must find, whatever became of another one."""
    acknowledged = [seed for seed in range(2, 12) if (base / f"done{seed}").exists()]
    removed = [seed for seed in range(2, 12) if (base / f"removed{seed}").exists()]
    assert (store.notice, store.read_only) == (None, False), store.notice
    assert store.verify() == [], store.verify()
    for seed in range(1, 12):
        path = ids(seed, 6)
        match = store.match(path)
        buffers = {s.name: bytearray(match.blocks * s.block_bytes) for s in STREAMS}
        assert store.read(match, buffers) == match.blocks
        assert buffers == rows(seed, 0, match.blocks), f"wrong rows for {seed}"
    # What was acknowledged last is there: only the open commit may be lost.
    if acknowledged and acknowledged[-1] not in removed and len(removed) < 2:
        assert store.match(ids(acknowledged[-1], 6)).blocks == 6, acknowledged
    for seed in removed:
        assert store.match(ids(seed, 6)).blocks == 0, f"{seed} was removed"
    assert store.match(ids(PINNED, 4)).blocks == 4
    # And the store goes on.
    again = ids(AFTER, 3)
    assert store.commit(again, first_block=0, rows=rows(AFTER, 0, 3)).reason is None
    assert store.match(again).blocks == 3
    assert store.verify() == []


Said = tuple[set[Any], set[bytes], set[Any]]


def says(store: Store) -> Said:
    with store._core.read() as tables:
        blocks = {(key, entry.position, entry.parent) for key, entry in tables.blocks()}
        snapshots = {key for key, _, _ in blocks if tables.snapshot(key)}
    return blocks, snapshots, {dataclasses.astuple(anchor) for anchor in store.anchors()}


def check(directory: Path, base: Path, before: Said | None) -> int:
    """Open what a killed child left, or what a bystander said last; return how many blocks."""
    if before is None:
        with open_store(directory) as store:
            look(store, base)
            before = says(store)
    shutil.rmtree(directory / "index")
    with open_store(directory) as store:
        # What was evicted may come back from the dead, what was removed not.
        for ours, rebuilt in zip(before, says(store), strict=True):
            assert ours <= rebuilt, "a rebuilt index has less"
        look(store, base)
    return len(before[0])


class Bystander:
    """Another process, which has the store open while a child is killed."""

    def __init__(self, directory: Path) -> None:
        asked, self._ask = os.pipe()
        self._ready, ready = os.pipe()
        self._said = directory.with_name("said")
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._ask)
            with open_store(directory) as store:
                path = ids(BESIDE, 2)
                anchor = Anchor(store.hashes(path)[-1], "beside", pinned=True)
                store.commit(path, first_block=0, rows=rows(BESIDE, 0, 2), anchors=[anchor])
                os.write(ready, b"y")
                os.read(asked, 1)
                look(store, directory.parent)
                assert store.match(path).blocks == 2
                directory.with_name("said").write_text(repr(says(store)))
            os._exit(0)
        os.close(ready)
        os.close(asked)
        assert os.read(self._ready, 1) == b"y", "the bystander failed to open"

    def finish(self) -> Said:
        """Have it look and close, and return what it found."""
        os.write(self._ask, b"y")
        _, status = os.waitpid(self._pid, 0)
        assert status == 0, "the bystander found something"
        os.close(self._ask)
        os.close(self._ready)
        said: Said = ast.literal_eval(self._said.read_text())
        return said


def main() -> None:
    spare_syncs(pytest.MonkeyPatch())
    base, mode, commits, flags = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    template = base / "template"
    os.umask(0)
    if "empty" in flags:
        template.mkdir(mode=0o755)
    elif "none" not in flags:
        fill(template)
    for at in range(1, 10_000):
        here = base / f"kill{at}"
        here.mkdir()
        if template.exists():
            shutil.copytree(template, here / "kv")
        if "rebuild" in flags:
            shutil.rmtree(here / "kv" / "index")
        bystander = Bystander(here / "kv") if "beside" in flags else None
        child = os.fork()
        if child == 0:
            work(here / "kv", Deadly(at, mode), commits, "drop" in flags)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        said = None
        if bystander is not None:
            said = bystander.finish()
            assert (here / "kv" / "index" / "CHECK").exists(), "the last one left no sum"
        if "none" in flags or "empty" in flags:
            fill(here / "kv")
            check_modes(here / "kv", {"VERSION"})
        blocks = check(here / "kv", here, said)
        shutil.rmtree(here)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "the child failed"
            print(f"done: {at - 1} steps")
            return
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        print(f"killed {mode} step {at}: {blocks} blocks")


if __name__ == "__main__":
    main()
