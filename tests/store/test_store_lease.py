"""Making room: one process at a time, never in another one's segment, and what it gives back."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from store_race import hold

from ced_kvstore import Anchor, Files, locks
from ced_kvstore.locks import BUSY


@pytest.fixture
def busy(kit: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another process has the lease, and keeps it."""
    monkeypatch.setattr(locks, "LEASE_WAIT_S", 0.03)
    kit.open(max_bytes=1 << 20)
    fd = hold(kit.directory / "LEASE")
    yield
    os.close(fd)


def test_without_the_lease_nothing_is_dropped_or_moved(kit: Any, busy: None) -> None:
    store = kit.open()
    kit.anchored(store, kit.ids(3), "session:a")
    kit.commit(store, kit.ids(3, seed=1))
    assert store.remove("session:a").reason == BUSY
    assert store.gc().reason == BUSY
    assert (store.evict(0), store.compact()) == (0, 0)
    (segment,) = kit.segments()
    kit.flip(segment, kit.block_offset(segment, 2) + 3000)
    found = store.verify(fix=True)
    assert [(problem.kind, problem.fixed) for problem in found] == [
        ("busy", False),
        ("corrupt", False),
    ]
    assert store.stats().blocks == 6
    assert (store.notice, store.read_only) == (None, False)


def test_without_the_lease_no_dead_byte_is_given_back(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "LEASE_WAIT_S", 0.03)
    store = kit.open()
    kit.anchored(store, kit.ids(9), "session:gone")
    kit.anchored(store, kit.ids(1, seed=1), "session:kept")
    store.remove("session:gone")
    fd = hold(kit.directory / "LEASE")
    assert store.compact() == 0
    os.close(fd)
    assert store.compact() > 9 * 8192


def test_two_processes_never_have_the_lease_at_once(kit: Any, peer: Any) -> None:
    store, other = kit.open(), peer()
    other("from ced_kvstore import locks")
    other("locks.LEASE_WAIT_S = 0.03")
    other("store = kit.open()")
    with store._core.locks.lease() as is_ours:
        assert is_ours
        assert other("store.gc().reason") == BUSY
    assert other("store.gc().reason") is None


def test_without_the_lease_a_commit_stores_what_fits(kit: Any, busy: None) -> None:
    store = kit.open()
    for seed in range(1, 4):
        assert kit.commit(store, kit.ids(25, seed=seed)).reason is None
    done = kit.commit(store, kit.ids(60, seed=9))
    assert 0 < done.blocks < 60
    assert done.reason == BUSY
    assert store.stats().bytes_on_disk <= 1 << 20
    assert kit.good_blocks(store, kit.ids(60, seed=9)) == done.blocks


def test_gc_drops_what_nobody_points_at_and_gives_the_bytes_back(kit: Any) -> None:
    store = kit.open()
    kit.anchored(store, kit.ids(4), "session:a")
    for seed in range(1, 4):
        kit.commit(store, kit.ids(6, seed=seed))
    kit.commit(store, kit.ids(6), 4)
    before = kit.bytes_on_disk()
    done = store.gc()
    assert (done.blocks, done.segments, done.reason) == (3 * 6 + 2, 1, None)
    assert 0 < done.bytes == before - kit.bytes_on_disk()
    assert kit.good_blocks(store, kit.ids(6)) == 4
    assert store.stats().evicted == {"nobody pointed at it": 20}
    assert store.explain(kit.ids(1, seed=1)).stored == "nobody pointed at it"
    assert store.verify() == []
    # There is nothing left to do.
    done = store.gc()
    assert (done.blocks, done.segments, done.bytes) == (0, 0, 0)


def test_compact_moves_out_of_segments_under_half_live_and_no_others(kit: Any) -> None:
    store = kit.open()
    kit.anchored(store, kit.ids(6), "session:a")
    kit.anchored(store, kit.ids(7, seed=1), "session:b")
    assert store.remove("session:a").blocks == 6
    assert store.compact() == 0
    kit.anchored(store, kit.ids(1, seed=2), "session:c")
    assert store.remove("session:b").blocks == 7
    before = kit.bytes_on_disk()
    assert store.compact() == before - kit.bytes_on_disk() > 13 * 8192
    assert kit.good_blocks(store, kit.ids(1, seed=2)) == 1
    assert store.verify() == []


def test_a_segment_that_another_process_writes_is_left_to_it(kit: Any, peer: Any) -> None:
    store, other = kit.open(), peer()
    other("store = kit.open()")
    other("kit.anchored(store, kit.ids(6), 'session:a') and 0")
    other("store.match(kit.ids(6, seed=9)).blocks")
    (segment,) = kit.segments()
    secret = kit.rows(kit.ids(6))["k"][:64]
    done = store.remove("session:a", purge=True)
    assert (done.blocks, secret in segment.read_bytes()) == (6, True)
    assert "another process is done with their segment" in str(done.reason)
    assert store.compact() == 0
    # The purge is not forgotten: its next commit empties the segment.
    assert other("kit.commit(store, kit.ids(2, seed=1)).blocks") == 2
    assert not any(secret in path.read_bytes() for path in kit.segments())
    assert kit.good_blocks(store, kit.ids(2, seed=1)) == 2
    assert store.verify() == []


def test_leftovers_of_killed_processes_are_swept(kit: Any) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(2))
    (segment,) = kit.segments()
    stray, begun = segment.with_name("000007.kvs"), segment.with_name("000008.kvs")
    for path in (stray, begun):
        path.write_bytes(segment.read_bytes()[:8192])
    # A live process has just begun this one.
    fd = hold(begun)
    store.gc()
    assert (stray.exists(), begun.exists()) == (False, True)
    os.close(fd)
    # Its number is not given to another file.
    store.close()
    store = kit.open()
    assert not begun.exists()


def test_a_segment_number_is_never_used_twice(kit: Any, peer: Any) -> None:
    store, other = kit.open(), peer()
    kit.anchored(store, kit.ids(1), "session:a")
    for number in (2, 3):
        other("store = kit.open()")
        other(f"kit.anchored(store, kit.ids(2, seed={number}), 'session:b') and 0")
        assert kit.segments()[-1].name == f"00000{number}.kvs"
        other("store.close()")
        store.remove("session:b")
        assert [path.name for path in kit.segments()] == ["000001.kvs"]


def test_a_removal_is_kept_while_any_segment_is_older_than_it(kit: Any, peer: Any) -> None:
    """Its own segment may go first when several processes write."""
    store, other = kit.open(), peer()
    other("store = kit.open()")
    kit.anchored(store, kit.ids(1, seed=5), "session:keep")
    other("kit.anchored(store, kit.ids(3), 'session:gone') and 0")
    other("kit.anchored(store, kit.ids(9, seed=1), 'session:kept') and 0")
    assert store.remove("session:gone").blocks == 3
    # This empties the segment that holds the removal, and the older one of this process with it.
    assert store.remove("session:keep", purge=True).blocks == 1
    other("store.close()")
    store.close()
    shutil.rmtree(kit.directory / "index")
    store = kit.open()
    assert store.match(kit.ids(3)).blocks == 0
    assert kit.good_blocks(store, kit.ids(9, seed=1)) == 9
    assert [anchor.label for anchor in store.anchors()] == ["session:kept"]


def test_removals_go_when_nothing_they_speak_of_is_left(kit: Any) -> None:
    store = kit.open()
    for seed in range(8):
        kit.anchored(store, kit.ids(2, seed=seed), "session:a")
        store.remove("session:a", purge=True)
    store.compact()
    # Left are the fingerprint and at most the last removals.
    assert store.stats().bytes_live <= 3 * 4096


def test_one_commit_does_a_bounded_amount_of_work(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ced_kvstore.evict.CALL_BLOCKS", 20)
    monkeypatch.setattr("ced_kvstore.drop.BATCH_BLOCKS", 8)
    store = kit.open(max_bytes=4 << 20)
    for seed in range(1, 14):
        kit.commit(store, kit.ids(30, seed=seed))
    before, publishes = store.stats(), []
    plain = Files.publish

    def noted(files: Files, commit: Any) -> None:
        publishes.append(store.stats().blocks)
        plain(files, commit)

    monkeypatch.setattr(Files, "publish", noted)
    for seed in range(14, 18):
        assert kit.commit(store, kit.ids(10, seed=seed)).blocks == 10
        dropped = store.stats().blocks_evicted - before.blocks_evicted
        before = store.stats()
        assert 0 <= dropped <= 24
        assert store.stats().bytes_on_disk <= 4 << 20
    # No transaction took more than one batch.
    assert max(a - b for a, b in itertools.pairwise(publishes)) <= 8
    assert store.stats().blocks_evicted > 20


def test_a_nearly_full_disk_is_a_smaller_budget(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(30))
    used = store.stats().bytes_on_disk
    monkeypatch.setattr(Files, "free_bytes", lambda files, path: 300_000)
    done = kit.commit(store, kit.ids(200, seed=1), anchors=[Anchor(store.root, "a")])
    assert 0 < done.blocks < 200
    assert done.reason == "the disk is nearly full"
    assert store.stats().bytes_on_disk <= used + 300_000
    assert (store.notice, store.read_only) == (None, False)
