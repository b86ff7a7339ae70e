"""One loud line when many lookups were made and none hit, drops by reason, how trouble is told."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from ced_kvstore.errors import told


def test_many_lookups_without_a_hit_are_one_loud_line(kit: Any) -> None:
    kit.fill()
    store = kit.open(fingerprint={**kit.fingerprint, "torch": "9"})
    for _ in range(19):
        store.match(kit.ids(3))
        # Too short to be found: these do not count.
        store.match(kit.ids(1)[:100])
    assert store.notice is None
    store.match(kit.ids(3))
    notice = store.notice
    assert "none of 20 lookups hit although 4 blocks are stored" in notice
    assert "mostly fingerprint:torch" in notice
    assert str(kit.directory) in notice
    assert "\n" not in notice
    assert store.stats().notice == notice
    assert not store.read_only


def test_a_hit_takes_the_line_back(kit: Any) -> None:
    kit.fill()
    store = kit.open()
    for seed in range(1, 30):
        store.match(kit.ids(1, seed=seed))
    assert "mostly diverged" in store.notice
    assert store.match(kit.ids(1)).blocks == 1
    assert store.notice is None


def test_nothing_is_said_while_nothing_is_stored(kit: Any) -> None:
    store = kit.open()
    for seed in range(30):
        store.match(kit.ids(1, seed=seed))
    assert store.notice is None
    kit.commit(store, kit.ids(1, seed=99))
    assert "none of 30 lookups hit although 1 blocks are stored" in store.notice


def test_trouble_comes_first(kit: Any, monkeypatch: Any) -> None:
    kit.fill()
    store = kit.open()
    for seed in range(1, 30):
        store.match(kit.ids(1, seed=seed))
    store._core.fail("the disk is gone")
    assert "the disk is gone" in store.notice


def test_dropped_blocks_are_counted_by_reason(kit: Any) -> None:
    store = kit.open(max_bytes=1 << 20)
    assert store.stats().evicted == {}
    kit.anchored(store, kit.ids(2), "session:a")
    store.remove("session:a")
    for seed in range(1, 6):
        kit.anchored(store, kit.ids(25, seed=seed), f"session:{seed}")
    kit.commit(store, kit.ids(3, seed=9))
    store.match(kit.ids(25, seed=5))
    collected = store.gc().blocks
    first_row = kit.rows(kit.ids(1, seed=5))["k"]
    (segment,) = (path for path in kit.segments() if first_row in path.read_bytes())
    kit.flip(segment, segment.read_bytes().index(first_row))
    store.verify(fix=True)
    evicted = store.stats().evicted
    assert evicted["byte budget"] > 0
    assert {name: count for name, count in evicted.items() if name != "byte budget"} == {
        "removed": 2,
        "nobody pointed at it": collected,
        "damaged": 25,
    }
    assert collected >= 3
    assert store.stats().blocks_evicted == sum(evicted.values())


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            OSError(errno.EISDIR, "Is a directory", "kv/LOCK"),
            "Is a directory: kv/LOCK (move it away)",
        ),
        (OSError(errno.ENOSPC, "No space left"), "No space left (make room on that disk)"),
        (OSError(errno.EIO, "Input/output error", "x"), "Input/output error: x"),
        (OSError("other"), "other"),
        ("a reason", "a reason"),
    ],
    ids=str,
)
def test_trouble_is_told_with_its_file_and_what_to_do(error: OSError | str, says: str) -> None:
    assert told(error) == says


def test_an_index_that_is_none_beside_others_says_what_becomes_of_it(kit: Any, peer: Any) -> None:
    kit.fill()
    other = peer()
    other("store = kit.open()")
    data = kit.directory / "index" / "data.mdb"
    data.with_name("new").write_bytes(b"no index" * 4096)
    data.with_name("new").replace(data)
    store = kit.open()
    assert "; it is built anew when no process has the store open any more; nothing" in store.notice
    assert "\n" not in store.notice
    store.close()
    other("store.close()")
    store = kit.open()
    assert (store.notice, kit.good_blocks(store, kit.ids(4))) == (None, 4)
