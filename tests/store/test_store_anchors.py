"""Anchors and snapshots: what hangs on a block comes back with it."""

from __future__ import annotations

import mmap
from typing import Any

import pytest

from ced_kvstore import Anchor, Stream

NO_ANCHORS: dict[str, dict[str, Any]] = {
    "a short hash": {"block_hash": b"short"},
    "a hash as text": {"block_hash": "x" * 32},
    "a label as bytes": {"label": b"x"},
    "no label": {"label": ""},
    "half of a character": {"label": "\ud800"},
    "a long label": {"label": "x" * 511 + "\u00e9"},
    "a kind that is none": {"kind": None},
    "a long kind": {"kind": "x" * 513},
    "a number for a flag": {"pinned": 1},
    "a text for a time": {"created": "x"},
    "a time that is no number": {"created": float("nan")},
    "a flag for a time": {"created": True},
    "a position with a fraction": {"n_tokens": 5.0},
    "a flag for a position": {"n_tokens": True},
    "a position before all": {"n_tokens": -1},
    "a position that no path has": {"n_tokens": 2**32 + 128},
}


@pytest.mark.parametrize("name", NO_ANCHORS)
def test_what_is_no_anchor_is_refused_at_once(name: str) -> None:
    with pytest.raises(ValueError, match=r"(anchor|a block hash): expected"):
        Anchor(**{"block_hash": bytes(32), "label": "session:a", **NO_ANCHORS[name]})


def test_the_longest_anchor_comes_back(kit: Any) -> None:
    store, ids = kit.open(), kit.ids(1)
    key = store.hashes(ids)[0]
    longest = Anchor(key, "\u00e9" * 256, "x" * 512, True, 2**53 - 1, 2**32 + 127)
    assert kit.commit(store, ids, anchors=[longest]).reason is None
    assert store.match(ids).anchors == (longest,)
    store.close()
    assert kit.open().anchors() == [longest]


def test_what_no_record_can_hold_is_refused_at_once(kit: Any) -> None:
    store, ids = kit.open(), kit.ids(1)
    kit.commit(store, ids)
    with mmap.mmap(-1, 2**32) as untouched, pytest.raises(ValueError, match="a snapshot: expected"):
        store.commit([], first_block=0, rows={}, snapshots={store.hashes(ids)[0]: untouched})
    with pytest.raises(ValueError, match="bytes of one block"):
        kit.open(streams=[Stream(str(number), 1 << 30) for number in range(4)])
    assert (store.read_only, store.notice) == (False, None)


def test_anchors_come_back_with_the_match_and_after_a_restart(kit: Any) -> None:
    store = kit.open()
    ids = kit.ids(4)
    hashes = store.hashes(ids)
    anchors = [
        Anchor(store.root, "session:a", n_tokens=77, created=1.5),
        Anchor(hashes[1], "warm", kind="warm", pinned=True, created=2.0),
        Anchor(hashes[3], "session:a", created=3.0, n_tokens=4 * 128 + 9),
    ]
    assert kit.commit(store, ids, anchors=anchors).reason is None
    expected = [anchors[0], Anchor(hashes[1], "warm", "warm", True, 2.0, 256), anchors[2]]
    assert store.anchors() == expected
    assert store.match(ids).anchors == (expected[2], expected[1])
    store.close()
    assert kit.open().anchors() == expected


def test_anchors_alone_can_be_committed_once(kit: Any) -> None:
    store = kit.open()
    ids = kit.ids(2)
    kit.commit(store, ids)
    anchor = Anchor(store.hashes(ids)[0], "x" * 512)
    assert store.commit(ids, first_block=2, rows={}, anchors=[anchor]).reason is None
    before = kit.bytes_on_disk()
    store.commit([], first_block=0, rows={}, anchors=[anchor])
    assert kit.bytes_on_disk() == before
    assert [a.label for a in store.anchors()] == ["x" * 512]
    done = store.commit([], first_block=0, rows={}, anchors=[Anchor(bytes(32), "y")])
    assert "not stored" in done.reason


def test_what_has_no_block_costs_nothing_else(kit: Any) -> None:
    store, ids = kit.open(), kit.ids(2)
    kit.commit(store, ids)
    key = store.hashes(ids)[0]
    done = store.commit([], first_block=0, rows={}, snapshots={bytes(32): b"x", key: b"w" * 99})
    assert done.reason == "a snapshot's block is not stored"
    assert store.read_snapshot(key) == b"w" * 99
    anchors = [Anchor(bytes(32), "x"), Anchor(key, "session:a")]
    done = store.commit([], first_block=0, rows={}, anchors=anchors)
    assert done.reason == "an anchor's block is not stored"
    assert [anchor.label for anchor in store.anchors()] == ["session:a"]


def test_snapshots_of_the_newest_two_pins_and_forks_stay(kit: Any) -> None:
    store = kit.open()
    ids = kit.ids(8)
    fork = ids[: 3 * 128] + kit.ids(1, seed=9)
    kit.commit(store, fork)
    hashes = store.hashes(ids)
    pin = Anchor(hashes[0], "warm", pinned=True)
    for n in range(1, 9):
        path = ids[: n * 128]
        data = {hashes[n - 1]: bytes([n]) * 5001}
        assert kit.commit(store, path, n - 1, snapshots=data, anchors=[pin]).reason is None
    kept = {n for n in range(1, 9) if store.read_snapshot(hashes[n - 1]) == bytes([n]) * 5001}
    assert kept == {1, 3, 7, 8}
    assert store.match(ids).snapshots == (8 * 128, 7 * 128, 3 * 128, 128)
    assert store.read_snapshot(hashes[4]) is None


def test_a_snapshot_goes_with_its_block(kit: Any) -> None:
    store = kit.open()
    ids = kit.ids(2)
    key = store.hashes(ids)[-1]
    kit.commit(store, ids, anchors=[Anchor(key, "session:a")], snapshots={key: b"w" * 9000})
    live = store.stats().bytes_live
    assert store.remove("session:a").bytes == 2 * 8192 + 12288 + 4096
    assert store.read_snapshot(key) is None
    stats = store.stats()
    assert (stats.snapshots, stats.blocks, stats.anchors) == (0, 0, 0)
    # Left are the fingerprint and the record of the removal.
    assert stats.bytes_live == 2 * 4096 < live


def test_a_later_anchor_of_the_same_name_does_not_take_a_pin_away(kit: Any) -> None:
    store = kit.open()
    ids, other = kit.ids(4), kit.ids(1, seed=9)
    key = store.hashes(ids)[-1]
    kit.commit(store, ids, anchors=[Anchor(key, "warm", pinned=True)])
    kit.commit(store, ids, 4, anchors=[Anchor(key, "warm")])
    kit.commit(store, other)
    store.evict(0)
    assert store.match(ids).blocks == 4
    assert [anchor.pinned for anchor in store.anchors()] == [True]
    store.remove("warm")
    assert store.match(ids).blocks == 0
