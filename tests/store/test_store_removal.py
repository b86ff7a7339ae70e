"""The record of a removal: what it names stays away after a rebuild, however much it is."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from store_race import hold

from ced_kvstore import Anchor, Store
from ced_kvstore.rebuild import _SMALL as SMALL
from ced_kvstore.remove import KEYS_PER_RECORD
from ced_kvstore.remove import _Doomed as Doomed
from ced_kvstore.remove import _records as removal_records


def rebuilt(kit: Any, store: Store) -> Store:
    """The store once its index was lost."""
    store.close()
    shutil.rmtree(kit.directory / "index")
    again: Store = kit.open()
    return again


def test_a_removal_in_many_records_holds_after_a_rebuild(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ced_kvstore.remove.KEYS_PER_RECORD", 3)
    store, ids = kit.open(), kit.ids(4)
    key = store.hashes(ids)[0]
    kit.commit(store, ids, anchors=[Anchor(key, f"session:{number}") for number in range(8)])
    done = store.remove(key)
    assert (done.anchors, done.blocks) == (8, 4)
    store = rebuilt(kit, store)
    assert (store.match(ids).blocks, store.anchors()) == (0, [])


def test_a_label_stays_removed_where_another_one_keeps_its_block(kit: Any) -> None:
    store, ids = kit.open(), kit.ids(2)
    key = store.hashes(ids)[-1]
    kit.commit(store, ids, anchors=[Anchor(key, "session:gone"), Anchor(key, "session:kept")])
    done = store.remove("session:gone")
    assert (done.anchors, done.blocks) == (1, 0)
    store = rebuilt(kit, store)
    assert [anchor.label for anchor in store.anchors()] == ["session:kept"]
    assert kit.good_blocks(store, ids) == 2


def test_what_is_removed_after_a_rebuild_stays_removed_after_the_next_one(kit: Any) -> None:
    store = kit.open()
    for seed in range(3):
        kit.anchored(store, kit.ids(2, seed=seed), f"session:{seed}")
    store = rebuilt(kit, store)
    assert store.remove("session:2").blocks == 2
    store = rebuilt(kit, store)
    assert store.match(kit.ids(2, seed=2)).blocks == 0
    assert [anchor.label for anchor in store.anchors()] == ["session:0", "session:1"]


def test_what_was_moved_before_its_removal_stays_removed_when_that_is_moved(kit: Any) -> None:
    store, gone = kit.open(), kit.ids(3)
    kit.anchored(store, kit.ids(1, seed=1), "session:first")
    kit.anchored(store, gone, "session:gone")
    kit.anchored(store, kit.ids(9, seed=2), "session:kept")
    store.remove("session:first", purge=True)
    (moved,) = kit.segments()
    store.close()
    # Another process goes on in this one, so the removal gets into another.
    fd = hold(moved)
    store = kit.open()
    kit.anchored(store, kit.ids(1, seed=3), "session:last")
    assert store.remove("session:gone").blocks == 3
    (_, with_removal) = kit.segments()
    assert store.remove("session:last", purge=True).reason is None
    assert (moved.exists(), with_removal.exists()) == (True, False)
    os.close(fd)
    store = rebuilt(kit, store)
    assert store.match(gone).blocks == 0
    assert [anchor.label for anchor in store.anchors()] == ["session:kept"]


def test_the_longest_record_of_a_removal_is_read_by_a_rebuild() -> None:
    anchors = [Anchor(bytes(32), f"{number:0512}") for number in range(KEYS_PER_RECORD)]
    keys = [b"k" * 32] * KEYS_PER_RECORD
    (record,) = removal_records(Doomed(anchors, keys, 0))
    assert record.length <= SMALL
