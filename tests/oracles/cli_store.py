"""A store as the tests of the command line fill it: one stream, whatever ids, rows of zeros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ced_kvstore import Anchor, Store, Stream


def ids(*numbers: int) -> list[int]:
    """The ids of some blocks, by number."""
    return [1000 * number + i for number in numbers for i in range(128)]


def opened(folder: Path, block_bytes: int = 700, **options: Any) -> Store:
    """The store in a folder, whose blocks have so many bytes of rows."""
    streams = [Stream("k", block_bytes)]
    return Store.open(folder, fingerprint={"model": "a"}, streams=streams, **options)


def commit(
    store: Store, path: list[int], *labels: str, snapshot: bytes = b"", **options: Any
) -> None:
    """Store a path, with anchors of these labels and perhaps a snapshot at its end."""
    at = store.hashes(path)[-1] if path else store.root
    rows = {s.name: bytes(len(path) // 128 * s.block_bytes) for s in store.streams}
    done = store.commit(
        path,
        first_block=0,
        rows=rows,
        anchors=[Anchor(at, label, **options) for label in labels],
        snapshots={at: snapshot} if snapshot else {},
    )
    assert done.reason is None


def fill(folder: Path, block_bytes: int) -> None:
    """Make a store of two labels that share a block, and two blocks of nobody's."""
    with opened(folder, block_bytes) as store:
        commit(store, ids(0, 1), "s:a")
        commit(store, ids(0, 2, 3), "s:b")
        commit(store, ids(7, 8))
