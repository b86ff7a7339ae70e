"""How room is made: seldom by looking for what to drop, never by filling the disk, for good, and
for one budget, whichever process was given it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Anchor, Files, drop, remove
from ced_kvstore.evict import FULL, TOO_SMALL
from ced_kvstore.tree import Node, load, paths


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every look at the whole tree."""
    found: list[int] = []

    def counted(tables: Any) -> dict[bytes, Node]:
        nodes = load(tables)
        found.append(len(nodes))
        return nodes

    monkeypatch.setattr(drop, "load", counted)
    monkeypatch.setattr(remove, "load", counted)
    return found


def test_sessions_that_grow_in_turn_seldom_look_for_what_to_drop(
    kit: Any, looks: list[int]
) -> None:
    store = kit.open(max_bytes=1 << 20)
    sessions = [kit.ids(12, seed=seed) for seed in range(1, 12)]
    counts: list[int] = []
    for blocks in range(1, 13):
        for ids in sessions:
            path, before = ids[: blocks * 128], len(looks)
            done = kit.anchored(store, path, f"session:{ids[0]}")
            assert done.reason is None
            counts.append(len(looks) - before)
    assert store.stats().blocks_evicted > 0
    steady = counts[counts.index(1) :]
    assert len(steady) > 40
    assert sum(steady) < len(steady) / 2
    assert store.verify() == []


def test_what_is_full_of_pins_is_looked_through_again_only_when_something_changed(
    kit: Any, looks: list[int]
) -> None:
    store, in_use = kit.open(max_bytes=1 << 20), kit.ids(6)
    store.pin(store.hashes(in_use)[-1])
    kit.commit(store, in_use)
    seeds = iter(range(1, 1000))

    def stored() -> int:
        seed = next(seeds)
        return kit.anchored(store, kit.ids(1, seed=seed), f"warm:{seed}", pinned=True).blocks

    while stored():
        pass
    before = len(looks)
    assert [stored() for _ in range(8)] == [0] * 8
    assert len(looks) == before
    store.unpin(store.hashes(in_use)[-1])
    assert stored() == 1
    assert len(looks) > before
    assert store.match(in_use).blocks == 0


def test_dead_bytes_are_given_back_without_a_look_at_the_tree(kit: Any, looks: list[int]) -> None:
    store = kit.open()
    kit.anchored(store, kit.ids(20), "session:a")
    kit.anchored(store, kit.ids(4, seed=1), "session:b")
    store.remove("session:a")
    looks.clear()
    assert store.evict(store.stats().bytes_index + 6 * 8192) > 20 * 8192
    assert looks == []
    assert kit.good_blocks(store, kit.ids(4, seed=1)) == 4


def test_many_are_removed_by_one_look(kit: Any, looks: list[int]) -> None:
    store = kit.open()
    for seed in range(5):
        kit.anchored(store, kit.ids(3, seed=seed), f"session:{seed}")
    at = store.hashes(kit.ids(3, seed=3))[-1]
    done = store.remove("session:0", "session:1", at)
    assert (done.anchors, done.blocks, done.reason) == (3, 9, None)
    assert len(looks) == 1
    assert sorted(anchor.label for anchor in store.anchors()) == ["session:2", "session:4"]
    assert store.verify() == []


def test_a_path_that_many_share_is_followed_once() -> None:
    class Counted(dict[bytes, Node]):
        looked_up = 0

        def __getitem__(self, key: bytes) -> Node:
            self.looked_up += 1
            return super().__getitem__(key)

    keys = [bytes([i]) * 32 for i in range(200)]
    nodes = Counted()
    for i, key in enumerate(keys):
        nodes[key] = Node(key, keys[i - 1] if i else b"root", i * 128, 1)
    assert paths(nodes, keys) == {*keys}
    assert nodes.looked_up == 200


def test_a_budget_that_another_process_was_given_is_kept_at_once(kit: Any) -> None:
    store = kit.open(max_bytes=4 << 20)
    kit.commit(store, kit.ids(100))
    store._core._index.write(lambda tables: tables.put_meta("budget", (1 << 19) + 1))
    assert store.stats().max_bytes == 1 << 19
    assert kit.commit(store, kit.ids(10, seed=1)).blocks == 10
    assert store.stats().bytes_on_disk <= 1 << 19


@pytest.mark.slow
def test_the_budget_last_given_counts_for_every_process(kit: Any, peer: Any) -> None:
    store, other = kit.open(max_bytes=4 << 20), peer()
    kit.commit(store, kit.ids(200))
    other(f"store = kit.open(max_bytes={1 << 20})")
    assert store.stats().max_bytes == 1 << 20
    for seed in range(1, 8):
        kit.commit(store, kit.ids(40, seed=seed))
        assert store.stats().bytes_on_disk <= 1 << 20
    assert other("store.stats().max_bytes") == 1 << 20
    assert store.notice is None


def test_a_folder_keeps_a_budget_of_nothing(kit: Any) -> None:
    kit.open(max_bytes=0).close()
    with kit.open() as store:
        assert store.stats().max_bytes == 0
        assert kit.commit(store, kit.ids(1)).blocks == 0


def test_what_the_disk_has_no_room_for_is_not_moved(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kit.open()
    kit.anchored(store, kit.ids(30), "session:gone")
    kit.anchored(store, kit.ids(20, seed=1), "session:kept")
    monkeypatch.setattr(Files, "free_bytes", lambda files, path: 100_000)
    done = store.remove("session:gone", purge=True)
    assert done.blocks == 30
    assert "there is room to move what else is in it" in str(done.reason)
    assert (store.compact(), store.gc().segments) == (0, 0)
    assert kit.good_blocks(store, kit.ids(20, seed=1)) == 20
    # A segment in which nothing is live needs no room.
    assert store.remove("session:kept", purge=True).reason is None
    assert store.notice is None


def test_a_purged_segment_is_gone_from_its_folder_for_good(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a power cut: the folder is synced once the file is unlinked."""
    store, steps = kit.open(), []
    kit.anchored(store, kit.ids(3), "session:gone")
    kit.commit(store, kit.ids(3, seed=1), anchors=[Anchor(store.root, "kept")])
    unlink, sync = Files.unlink, Files.sync_directory

    def unlinked(files: Files, path: Path) -> None:
        unlink(files, path)
        steps.append(path.name)

    def synced(files: Files, path: Path) -> None:
        sync(files, path)
        steps.append(path.name)

    monkeypatch.setattr(Files, "unlink", unlinked)
    monkeypatch.setattr(Files, "sync_directory", synced)
    store.remove("session:gone", purge=True)
    assert steps[steps.index("000001.kvs") :] == ["000001.kvs", "seg"]


@pytest.mark.parametrize("max_bytes", [70_000, 0])
def test_a_budget_too_small_for_a_block_is_not_called_full(kit: Any, max_bytes: int) -> None:
    with kit.open(max_bytes=max_bytes) as store:
        assert kit.commit(store, kit.ids(1)).reason == TOO_SMALL
    with kit.open(max_bytes=1 << 20) as store:
        assert kit.commit(store, kit.ids(200)).reason == FULL
