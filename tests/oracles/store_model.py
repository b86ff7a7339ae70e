"""What a store must hold, as a function of paths, and one process's hands on such a store.

A path is a tuple of small numbers; number n stands for one block of ids, and the block's rows are a
function of the whole path up to it. What `Hands` take and return can be written down in a line,
so that another process can be told and answer.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ced_kvstore import Anchor, Store, Stream

STREAMS = (Stream("k", 3000), Stream("e_out", 7001))
BLOCK_SPAN = 12288
"""Bytes on disk of one block's record."""

Path_ = tuple[int, ...]


def open_store(directory: Path, max_bytes: int) -> Store:
    """A map so small that it grows under whoever else has it open."""
    return Store.open(
        directory, fingerprint={"a": 1}, streams=STREAMS, max_bytes=max_bytes, map_bytes=1 << 17
    )


def ids(path: Path_) -> list[int]:
    return [1000 * number + i for number in path for i in range(128)]


def rows(path: Path_, first: int) -> dict[str, bytes]:
    return {
        s.name: b"".join(
            (repr((path[: end + 1], s.name)).encode() * 500)[: s.block_bytes]
            for end in range(first, len(path))
        )
        for s in STREAMS
    }


def prefixes(path: Path_) -> set[Path_]:
    return {path[:end] for end in range(1, len(path) + 1)}


def snapshot(path: Path_) -> bytes:
    return repr(path).encode() * 50


def look(store: Store, path: Path_) -> tuple[int, int]:
    """Match and read; return both numbers of blocks. What counts as good must be right."""
    match = store.match(ids(path))
    buffers = {s.name: bytearray(match.blocks * s.block_bytes) for s in STREAMS}
    good = store.read(match, buffers)
    expected = rows(path[:good], 0)
    for s in STREAMS:
        assert buffers[s.name][: good * s.block_bytes] == expected[s.name], (path, good)
    return match.blocks, good


def segments(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / "seg").iterdir() if path.stat().st_size)


def damage(file: Path, at: int, how: str) -> None:
    """Flip a bit, zero a page or cut the file."""
    raw = bytearray(file.read_bytes())
    if how == "flip":
        raw[at] ^= 1 << at % 8
    elif how == "zero":
        page = slice(at // 4096 * 4096, at // 4096 * 4096 + 4096)
        raw[page] = bytes(len(raw[page]))
    else:
        del raw[at:]
    # In place: who has it open sees it, too.
    with file.open("r+b") as open_file:
        open_file.write(raw)
        open_file.truncate()


class Hands:
    """One process's store, opened and closed as often as one likes."""

    def __init__(self, directory: str, max_bytes: int) -> None:
        self.directory, self.max_bytes = Path(directory), max_bytes
        self.open()

    def open(self) -> None:
        self.store = open_store(self.directory, self.max_bytes)

    def close(self, *, lose_index: bool = False) -> None:
        self.store.close()
        if lose_index:
            shutil.rmtree(self.directory / "index")

    def key(self, path: Path_) -> bytes:
        return self.store.hashes(ids(path))[-1]

    def look(self, path: Path_) -> tuple[int, int]:
        found = self.store.read_snapshot(self.key(path))
        assert found in (None, snapshot(path))
        return look(self.store, path)

    def found(self, paths: Sequence[Path_]) -> list[int]:
        """Blocks that are stored of each path; nothing counts as used by that."""
        return [self.store.explain(ids(path)).blocks for path in paths]

    def commit(
        self, path: Path_, first: int, label: str, pinned: bool, with_snapshot: bool
    ) -> str | None:
        key = self.key(path)
        done = self.store.commit(
            ids(path),
            first_block=first,
            rows=rows(path, first),
            anchors=[Anchor(key, label, pinned=pinned)] if label else [],
            snapshots={key: snapshot(path)} if with_snapshot else {},
        )
        return done.reason

    def pin(self, path: Path_) -> None:
        self.store.pin(self.key(path))

    def unpin(self, path: Path_) -> None:
        self.store.unpin(self.key(path))

    def evict(self, share: float) -> None:
        before = self.store.stats().bytes_on_disk
        freed = self.store.evict(int(before * share))
        assert self.store.stats().bytes_on_disk == before - freed

    def compact(self) -> None:
        self.store.compact()

    def gc(self) -> str | None:
        return self.store.gc().reason

    def remove(self, label: str, purge: bool) -> str | None:
        return self.store.remove(label, purge=purge).reason

    def anchors(self) -> dict[str, bool]:
        """Label -> is pinned."""
        return {anchor.label: anchor.pinned for anchor in self.store.anchors()}

    def dropped(self) -> int:
        """Blocks that this process dropped since it opened the store."""
        return self.store.stats().blocks_evicted

    def mend(self) -> None:
        self.store.verify(fix=True)

    def problems(self) -> list[str]:
        return [str(problem) for problem in self.store.verify()]

    def check(self) -> None:
        """Hold of every store at any time: the budget, and no block without its path."""
        stats = self.store.stats()
        assert (stats.notice, stats.read_only) == (None, False), stats.notice
        sizes = [path.stat().st_size for path in (self.directory / "seg").iterdir()]
        assert max(stats.bytes_on_disk, sum(sizes) + stats.bytes_index) <= self.max_bytes, stats
        with self.store._core.read() as tables:
            blocks = dict(tables.blocks())
        for entry in blocks.values():
            assert not entry.position or entry.position - 128 == blocks[entry.parent].position
