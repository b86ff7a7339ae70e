"""What several of the store's tests make: a store with forks, reads from memory, empty buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ced_kvstore import Anchor, Files, Store


def forked(kit: Any) -> Store:
    """A store with two sessions that share two blocks, a pin, snapshots, an anchor at the root."""
    store: Store = kit.open()
    for ids, label in ((kit.ids(6), "session:a"), (kit.ids(2) + kit.ids(3, seed=4), "session:b")):
        hashes = store.hashes(ids)
        anchors = [
            Anchor(hashes[-1], label, "output", created=1000.5, n_tokens=len(ids) + 7),
            Anchor(hashes[1], label, "fork", pinned=label == "session:a", created=3.0),
        ]
        snapshots = {hashes[at]: label.encode() * 50 for at in (1, -1)}
        kit.commit(store, ids, anchors=anchors, snapshots=snapshots)
    kit.commit(store, [], anchors=[Anchor(store.root, "session:short", created=4.0, n_tokens=5)])
    return store


def from_memory(fd: int, pieces: Sequence[memoryview], offset: int) -> bool:
    """`preadv_cached` on a file system that can always tell; some that tests run on cannot."""
    return Files().preadv(fd, pieces, offset) == sum(map(len, pieces))


def buffers_of(kit: Any, n_blocks: int) -> dict[str, bytearray]:
    """Memory for so many blocks, in which nothing is zero by chance."""
    return {s.name: bytearray(b"\xaa" * n_blocks * s.block_bytes) for s in kit.streams}
