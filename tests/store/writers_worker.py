"""One of several processes that use a store at once: commits, reads, drops, closes and opens again.

Usage: writers_worker.py DIRECTORY SEED SECONDS [drop]. Waits for a line on stdin, so that all begin
together. With drop the budget is small and everybody drops what others may want. Prints the paths
whose commit was acknowledged, and counts; ends with an error when a promise was broken.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

from ced_kvstore import Anchor, Store, Stream

STREAMS = (Stream("k", 3000), Stream("e_out", 7001))
Path_ = tuple[int, ...]


def open_store(directory: Path, max_bytes: int) -> Store:
    return Store.open(
        directory, fingerprint={"a": 1}, streams=STREAMS, max_bytes=max_bytes, map_bytes=1 << 17
    )


def ids(path: Path_) -> list[int]:
    """Number n at depth d stands for one block of ids."""
    return [1000 * number + i for number in path for i in range(128)]


def rows(path: Path_, first: int) -> dict[str, bytes]:
    return {
        s.name: b"".join(
            (repr((path[: end + 1], s.name)).encode() * 500)[: s.block_bytes]
            for end in range(first, len(path))
        )
        for s in STREAMS
    }


def good_blocks(store: Store, path: Path_) -> int:
    """Match and read; what counts as good must be right."""
    match = store.match(ids(path))
    buffers = {s.name: bytearray(match.blocks * s.block_bytes) for s in STREAMS}
    good = store.read(match, buffers)
    expected = rows(path[:good], 0)
    for s in STREAMS:
        assert buffers[s.name][: good * s.block_bytes] == expected[s.name], (path, good)
    return good


class Worker:
    def __init__(self, directory: Path, seed: int, drops: bool) -> None:
        self.directory, self.seed, self.drops = directory, seed, drops
        self.random = random.Random(seed)
        self.max_bytes = 2 << 20 if drops else 1 << 30
        self.store = open_store(directory, self.max_bytes)
        self.counts: Counter[str] = Counter()
        self.acknowledged: set[Path_] = set()

    def commit(self) -> None:
        path = tuple(self.random.choices(range(3), k=self.random.randrange(1, 9)))
        store, keys = self.store, self.store.hashes(ids(path))
        good = good_blocks(store, path)
        # What is pinned stays from here on, however others drop.
        store.pin(keys[-1])
        anchor = Anchor(keys[-1], f"session:{self.seed}:{self.random.randrange(6)}")
        snapshots = {keys[-1]: repr(path).encode() * 50}
        first = self.random.choice([0, good])
        done = store.commit(
            ids(path), first_block=first, rows=rows(path, first), anchors=[anchor],
            snapshots=snapshots,
        )  # fmt: skip
        self.counts[done.reason or "committed"] += 1
        assert done.reason is None or self.drops, done
        if done.reason is None:
            assert good_blocks(store, path) == len(path), path
            assert store.read_snapshot(keys[-1]) in (None, repr(path).encode() * 50)
            self.acknowledged.add(path)
        store.unpin(keys[-1])

    def drop(self) -> None:
        store, what = self.store, self.random.randrange(5)
        if what == 0:
            label = f"session:{self.random.randrange(3)}:{self.random.randrange(6)}"
            store.remove(label, purge=self.random.random() < 0.5)
        elif what == 1:
            store.evict(int(store.stats().bytes_on_disk * 0.7))
        elif what == 2:
            store.gc()
        elif what == 3:
            store.compact()
        else:
            assert store.verify() == [], store.verify()
        self.counts["dropped"] += 1

    def reopen(self) -> None:
        self.store.close()
        self.store = open_store(self.directory, self.max_bytes)
        self.counts["reopened"] += 1

    def run(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            chance = self.random.random()
            if chance < 0.03:
                self.reopen()
            elif chance < 0.2 and self.drops:
                self.drop()
            else:
                self.commit()
            assert (self.store.notice, self.store.read_only) == (None, False), self.store.notice
            stats = self.store.stats()
            assert stats.bytes_on_disk <= self.max_bytes, stats
        self.store.close()


def main() -> None:
    directory, seed, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    worker = Worker(directory, seed, "drop" in sys.argv)
    print("ready", flush=True)
    sys.stdin.readline()
    worker.run(seconds)
    print(json.dumps([sorted(worker.acknowledged), worker.counts]))


if __name__ == "__main__":
    main()
