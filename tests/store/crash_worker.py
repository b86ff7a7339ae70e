"""Runs commits in child processes that kill themselves at every step, and checks what is left.

Usage: crash_worker.py DIRECTORY MODE COMMITS [rebuild]. MODE is before, after or torn (half
of a write); with rebuild the index is gone at the start. Prints one line per killed child; exits
with an error when a promise was broken.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ced_kvstore import Anchor, Files, Store, Stream

STREAMS = [Stream("k", 5000), Stream("v", 3001)]
STEPS = ("make_directory", "open", "pwritev", "sync_data", "sync_directory", "write_small")
STEPS = (*STEPS, "unlink", "publish", "open_index")


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


def work(directory: Path, files: Files, commits: int) -> None:
    """Some commits, each acknowledged in a file of its own once it returned."""
    with open_store(directory, files) as store:
        for seed in range(2, 2 + commits):
            path = ids(seed, 6)
            anchor = Anchor(store.hashes(path)[-1], f"session:{seed}")
            snapshots = {anchor.block_hash: b"s" * 3000}
            store.match(path)
            done = store.commit(
                path, first_block=0, rows=rows(seed, 0, 6), anchors=[anchor], snapshots=snapshots
            )
            assert done.reason is None, done
            (directory.parent / f"done{seed}").touch()
            if seed == 4:
                store.remove("session:3", purge=True)


def check(directory: Path, base: Path) -> int:
    """Open what a killed child left; return how many blocks there are."""
    acknowledged = [seed for seed in range(2, 12) if (base / f"done{seed}").exists()]
    with open_store(directory) as store:
        assert (store.notice, store.read_only) == (None, False), store.notice
        assert store.verify() == [], store.verify()
        for seed in range(1, 12):
            path = ids(seed, 6)
            match = store.match(path)
            buffers = {s.name: bytearray(match.blocks * s.block_bytes) for s in STREAMS}
            assert store.read(match, buffers) == match.blocks
            assert buffers == rows(seed, 0, match.blocks), f"wrong rows for {seed}"
        # What was acknowledged last is there: only the open commit may be lost.
        if acknowledged:
            assert store.match(ids(acknowledged[-1], 6)).blocks == 6, acknowledged
        assert store.match(ids(1, 4)).blocks == 4
        # And the store goes on.
        again = ids(77, 3)
        assert store.commit(again, first_block=0, rows=rows(77, 0, 3)).blocks == 3
        assert store.match(again).blocks == 3
        assert store.verify() == []
        return store.stats().blocks


def main() -> None:
    base, mode, commits = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    template = base / "template"
    with open_store(template) as store:
        path = ids(1, 4)
        anchor = Anchor(store.hashes(path)[-1], "pinned", pinned=True)
        store.commit(path, first_block=0, rows=rows(1, 0, 4), anchors=[anchor])
    for at in range(1, 10_000):
        here = base / f"kill{at}"
        here.mkdir()
        shutil.copytree(template, here / "kv")
        if "rebuild" in sys.argv:
            shutil.rmtree(here / "kv" / "index")
        child = os.fork()
        if child == 0:
            work(here / "kv", Deadly(at, mode), commits)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        blocks = check(here / "kv", here)
        shutil.rmtree(here)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "the child failed"
            print(f"done: {at - 1} steps")
            return
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        print(f"killed {mode} step {at}: {blocks} blocks")


if __name__ == "__main__":
    main()
