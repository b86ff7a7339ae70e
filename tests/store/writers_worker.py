"""One of several processes that use a store at once: commits, reads, drops, closes and opens again.

Usage: writers_worker.py DIRECTORY SEED SECONDS [drop]. Waits for a line on stdin, so that all begin
together, and ends before its time when there is a file `stop` beside the directory. With drop the
budget is small and everybody drops what others may want. Prints the paths whose commit was
acknowledged, and counts; ends with an error when a promise was broken.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

from store_model import Path_, ids, look, open_store, rows

from ced_kvstore import Anchor, Store


def good_blocks(store: Store, path: Path_) -> int:
    return look(store, path)[1]


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
        stop = self.directory.with_name("stop")
        while time.monotonic() < ends and not stop.exists():
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
