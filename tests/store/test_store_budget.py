"""The byte budget holds, leaves go first, and what is pinned or in use stays."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Anchor, Files

BUDGET = 3 << 20


def test_the_default_budget_is_the_smaller_of_10_gb_and_a_tenth_of_the_disk(
    kit: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for disk, expected in ((10**12, 10**10), (10**10, 10**9)):
        monkeypatch.setattr(Files, "disk_bytes", lambda self, path, disk=disk: disk)
        with kit.open(directory=tmp_path / str(disk)) as store:
            assert store.stats().max_bytes == expected


def test_free_space_is_probed_on_the_nearest_existing_parent(tmp_path: Path) -> None:
    assert Files().disk_bytes(tmp_path / "not" / "yet") == Files().disk_bytes(tmp_path)


def test_the_budget_holds_on_disk_and_every_commit_is_kept_at_first(kit: Any) -> None:
    store = kit.open(max_bytes=BUDGET)
    for seed in range(1, 60):
        ids = kit.ids(12, seed=seed)
        store.match(ids)
        assert kit.anchored(store, ids, f"session:{seed}").reason is None
        assert kit.bytes_on_disk() - 8192 <= BUDGET  # lock.mdb is no data
        assert kit.good_blocks(store, ids) == 12
    stats = store.stats()
    assert stats.bytes_on_disk <= BUDGET
    assert stats.blocks_evicted > 0
    assert stats.blocks > 100
    assert store.verify() == []


def test_leaves_go_first_and_no_hole_is_left(kit: Any) -> None:
    store = kit.open()
    ids = kit.ids(30)
    kit.commit(store, ids)
    other = kit.ids(2, seed=1)
    kit.commit(store, other)
    store.match(other)
    freed = store.evict(to_bytes=store.stats().bytes_on_disk - 9 * 8192)
    assert freed > 0
    left = kit.good_blocks(store, ids)
    assert 0 < left < 30
    assert store.stats().blocks == left + 2
    assert store.match(ids).reason == "evicted"
    assert store.verify() == []


def test_branches_nobody_points_at_go_before_the_others(kit: Any) -> None:
    store = kit.open()
    kept, lost = kit.ids(8, seed=1), kit.ids(8, seed=2)
    kit.anchored(store, kept, "session:kept")
    kit.commit(store, lost)
    for _ in range(5):
        store.match(lost)
    store.match([])
    kit.commit(store, kit.ids(1, seed=3))
    store.match(kit.ids(1, seed=3))
    store.evict(to_bytes=store.stats().bytes_on_disk - 6 * 8192)
    assert store.match(kept).blocks == 8
    assert store.match(lost).blocks == 2


def test_what_is_used_more_goes_later(kit: Any) -> None:
    store = kit.open()
    often, seldom = kit.ids(6, seed=1), kit.ids(6, seed=2)
    kit.commit(store, often)
    kit.commit(store, seldom)
    for _ in range(4):
        store.match(often)
    store.match(seldom)
    kit.commit(store, kit.ids(1, seed=3))
    store.match(kit.ids(1, seed=3))
    store.evict(to_bytes=store.stats().bytes_on_disk - 3 * 8192)
    assert store.match(often).blocks == 6
    assert store.match(seldom).blocks == 3


def test_recency_survives_a_restart(kit: Any) -> None:
    store = kit.open()
    often, seldom = kit.ids(6, seed=1), kit.ids(6, seed=2)
    kit.commit(store, often)
    kit.commit(store, seldom)
    for _ in range(4):
        store.match(often)
    store.close()
    store = kit.open()
    store.evict(to_bytes=store.stats().bytes_on_disk - 3 * 8192)
    assert store.match(often).blocks == 6
    assert store.match(seldom).blocks == 3


def test_pins_and_the_incoming_path_survive_any_eviction(kit: Any) -> None:
    store = kit.open()
    pinned, incoming, rest = (kit.ids(5, seed=s) for s in (1, 2, 3))
    kit.anchored(store, pinned, "warm", pinned=True)
    kit.commit(store, incoming)
    kit.commit(store, rest)
    store.match(incoming)
    store.evict(to_bytes=0)
    assert kit.good_blocks(store, pinned) == 5
    assert store.match(rest).blocks == 0
    assert store.stats().blocks == 10
    assert kit.good_blocks(store, incoming) == 5


def test_a_commit_that_cannot_fit_stores_what_fits_and_says_so(kit: Any) -> None:
    store = kit.open(max_bytes=1 << 20)
    ids = kit.ids(400)
    done = kit.commit(store, ids, anchors=[Anchor(store.hashes(ids)[-1], "session:x")])
    assert 0 < done.blocks < 400
    assert "budget" in done.reason
    assert store.anchors() == []
    assert kit.good_blocks(store, ids) == done.blocks
    assert store.stats().bytes_on_disk <= 1 << 20
    assert store.notice is None


def test_a_budget_of_nothing_stores_nothing(kit: Any) -> None:
    store = kit.open(max_bytes=0)
    done = kit.anchored(store, kit.ids(2), "x")
    assert done.blocks == 0
    assert "budget" in done.reason
    assert store.match(kit.ids(2)).blocks == 0


def test_a_smaller_budget_is_enforced_at_open(kit: Any) -> None:
    store = kit.open()
    for seed in range(1, 20):
        kit.commit(store, kit.ids(20, seed=seed))
    assert store.stats().bytes_on_disk > 2 << 20
    store.close()
    store = kit.open(max_bytes=2 << 20)
    assert store.stats().bytes_on_disk <= 2 << 20
    assert kit.bytes_on_disk() <= (2 << 20) + 8192
    assert store.verify() == []
    assert kit.good_blocks(store, kit.ids(20, seed=19)) > 0


def test_remove_drops_only_what_no_other_anchor_needs(kit: Any) -> None:
    store = kit.open()
    base = kit.ids(3)
    one, two = base + kit.ids(2, seed=1), base + kit.ids(4, seed=2)
    kit.anchored(store, base, "warm", pinned=True)
    kit.anchored(store, one, "session:one")
    kit.anchored(store, two[: 5 * 128], "session:two")
    kit.commit(store, two, 5)
    done = store.remove("session:one")
    assert (done.anchors, done.blocks) == (1, 2)
    assert done.bytes == 2 * 8192 + 4096
    assert store.match(one).blocks == 3
    done = store.remove("session:two")
    # The two blocks behind its last anchor go with it.
    assert (done.anchors, done.blocks) == (1, 4)
    assert store.match(two).blocks == 3
    assert store.remove("session:two").reason == "nothing is stored under that name"
    assert store.remove(store.hashes(base)[-1]).blocks == 3
    assert store.stats().blocks == 0
    assert store.anchors() == []
    assert store.verify() == []


def test_a_block_without_anchors_can_be_removed_by_its_hash(kit: Any) -> None:
    store = kit.open()
    ids = kit.ids(4)
    kit.anchored(store, ids[:256], "session:a")
    kit.commit(store, ids, 2)
    assert store.remove(store.hashes(ids)[2]).blocks == 2
    assert store.match(ids).blocks == 2
    assert store.remove(store.hashes(ids)[0]).blocks == 0
    assert store.match(ids).blocks == 2


def test_what_was_removed_stays_removed_when_the_index_is_rebuilt(kit: Any) -> None:
    store = kit.open()
    gone, kept = kit.ids(3, seed=1), kit.ids(3, seed=2)
    kit.anchored(store, gone, "session:gone")
    kit.anchored(store, kept, "session:kept")
    store.remove("session:gone")
    again = kit.ids(2, seed=3)
    kit.anchored(store, again, "session:again")
    store.remove("session:again")
    kit.anchored(store, again, "session:again")
    store.close()
    shutil.rmtree(kit.directory / "index")
    store = kit.open()
    assert store.match(gone).blocks == 0
    assert kit.good_blocks(store, kept) == 3
    assert kit.good_blocks(store, again) == 2
    assert sorted(a.label for a in store.anchors()) == ["session:again", "session:kept"]


def test_purge_takes_the_bytes_off_the_disk(kit: Any) -> None:
    store = kit.open()
    gone, kept = kit.ids(3, seed=1), kit.ids(3, seed=2)
    kit.anchored(store, gone, "session:gone", kind="secret")
    kit.anchored(store, kept, "session:kept")
    secret = kit.rows(gone)["k"][:64]
    assert any(secret in path.read_bytes() for path in kit.segments())
    store.remove("session:gone", purge=True)
    assert not any(secret in path.read_bytes() for path in kit.segments())
    assert kit.good_blocks(store, kept) == 3
    assert store.verify() == []
    store.close()
    shutil.rmtree(kit.directory / "index")
    store = kit.open()
    assert store.match(gone).blocks == 0
    assert kit.good_blocks(store, kept) == 3


def test_moving_records_leaves_damaged_ones_behind(kit: Any) -> None:
    store = kit.open()
    gone, kept = kit.ids(3, seed=1), kit.ids(4, seed=2)
    kit.anchored(store, gone, "session:gone")
    kit.anchored(store, kept, "session:kept")
    (segment,) = kit.segments()
    raw = bytearray(segment.read_bytes())
    start = raw.index(kit.rows(kept)["k"][2 * 1003 : 2 * 1003 + 64])
    raw[start] ^= 1
    segment.write_bytes(raw)
    store.remove("session:gone", purge=True)
    assert kit.good_blocks(store, kept) == 2
    assert store.match(kept).reason == "corrupt"
    kit.commit(store, kept)
    assert kit.good_blocks(store, kept) == 4
    assert store.verify() == []


def test_a_folder_keeps_the_budget_it_was_given(kit: Any) -> None:
    store = kit.open(max_bytes=50_000_000)
    store.close()
    with kit.open() as looked_into:
        assert looked_into.stats().max_bytes == 50_000_000
    with kit.open(max_bytes=20_000_000) as smaller:
        assert smaller.stats().max_bytes == 20_000_000
    with kit.open() as again:
        assert again.stats().max_bytes == 20_000_000
