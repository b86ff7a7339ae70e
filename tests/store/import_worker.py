"""Runs imports in child processes that kill themselves at every step, and checks what is left.

Usage: import_worker.py DIRECTORY MODE. MODE is before, after or torn (half of a write). Prints one
line per killed child; exits with an error when a promise was broken.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from conftest import spare_syncs
from crash_worker import STREAMS, Deadly, ids, open_store, rows

from ced_kvstore import Anchor, chunk

# Two chunks of blocks, so that there is something between them.
chunk.CHUNK_BYTES = 100_000
SEEDS = (2, 3, 4)


def fill(directory: Path, seeds: tuple[int, ...]) -> None:
    with open_store(directory) as store:
        for seed in seeds:
            path = ids(seed, 4)
            anchor = Anchor(store.hashes(path)[-1], f"session:{seed}")
            snapshots = {anchor.block_hash: b"s" * 3000}
            store.commit(
                path, first_block=0, rows=rows(seed, 0, 4), anchors=[anchor], snapshots=snapshots
            )


def check(directory: Path, archive: Path) -> int:
    """Open what a killed child left; return how many blocks there are."""
    with open_store(directory) as store:
        assert (store.notice, store.read_only) == (None, False), store.notice
        assert store.verify() == [], store.verify()
        assert store.match(ids(1, 4)).blocks == 4
        blocks = store.stats().blocks
        for again in (False, True):
            for seed in (1, *SEEDS):
                match = store.match(ids(seed, 4))
                buffers = {s.name: bytearray(match.blocks * s.block_bytes) for s in STREAMS}
                assert store.read(match, buffers) == match.blocks
                assert buffers == rows(seed, 0, match.blocks), f"wrong rows for {seed}"
                assert not again or match.blocks == 4
            # And the import run again completes.
            done = store.import_(archive)
            assert (done.left_out, done.reason) == (0, None), done
            assert (done.snapshots, done.anchors) == (3, 3)
        assert store.verify() == []
        return blocks


def main() -> None:
    spare_syncs(pytest.MonkeyPatch())
    base, mode = Path(sys.argv[1]), sys.argv[2]
    fill(base / "source", SEEDS)
    fill(base / "template", (1,))
    with open_store(base / "source") as store:
        assert store.export(base / "all.tar").blocks == 12
    for at in range(1, 10_000):
        here = base / f"kill{at}"
        shutil.copytree(base / "template", here)
        child = os.fork()
        if child == 0:
            with open_store(here, Deadly(at, mode)) as store:
                assert store.import_(base / "all.tar").blocks == 12
            os._exit(0)
        _, status = os.waitpid(child, 0)
        blocks = check(here, base / "all.tar")
        shutil.rmtree(here)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "the child failed"
            print(f"done: {at - 1} steps")
            return
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        print(f"killed {mode} step {at}: {blocks} blocks")


if __name__ == "__main__":
    main()
