"""What was removed to leave the disk leaves it: all copies, cut short, or asked for later."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from ced_kvstore import Files
from ced_kvstore.index import Index
from ced_kvstore.rows import Tables
from ced_kvstore.traces import Traces


def traces(kit: Any, ids: list[int]) -> list[str]:
    """The segments that hold ids of a path."""
    raw = b"".join(token.to_bytes(4, "little") for token in ids[:16])
    return [path.name for path in kit.segments() if raw in path.read_bytes()]


def two_sessions(kit: Any) -> Any:
    """A store with a small session that goes and a larger one that stays, in one segment."""
    store = kit.open()
    kit.anchored(store, kit.ids(2, seed=1), "session:gone")
    kit.anchored(store, kit.ids(6, seed=2), "session:kept")
    return store


def cut_short(store: Any, patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while live records are moved, just before they are published."""
    plain, count = Index.write, []

    def write(index: Index, change: Any) -> Any:
        count.append(change)
        if len(count) == 2:
            raise KeyboardInterrupt
        return plain(index, change)

    with patch.context() as patched:
        patched.setattr(Index, "write", write)
        with pytest.raises(KeyboardInterrupt):
            store.remove("session:gone", purge=True)


def stop(*args: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("finisher", ["gc", "commit", "remove"])
def test_a_purge_that_was_cut_short_is_finished_by_whoever_comes_next(
    kit: Any, monkeypatch: pytest.MonkeyPatch, finisher: str
) -> None:
    cut_short(two_sessions(kit), monkeypatch)
    kit.close()
    assert traces(kit, kit.ids(2, seed=1)) == ["000001.kvs"]
    store = kit.open()
    assert [anchor.label for anchor in store.anchors()] == ["session:kept"]
    if finisher == "gc":
        assert store.gc().bytes > 0
    elif finisher == "commit":
        kit.commit(store, kit.ids(1, seed=3))
    else:
        store.remove("session:kept")
    assert traces(kit, kit.ids(2, seed=1)) == []
    if finisher != "remove":
        assert kit.good_blocks(store, kit.ids(6, seed=2)) == 6
    assert store.verify() == []


def test_a_purge_takes_older_copies_of_the_same_blocks_along(kit: Any, peer: Any) -> None:
    """A damaged block that was stored anew has its ids in two segments."""
    store, ids, other = two_sessions(kit), kit.ids(2, seed=1), peer()
    # This process goes on holding its segment; the other one stores anew what is there.
    other("store = kit.open()")
    other("store.quarantine(store.hashes(kit.ids(2, seed=1)))")
    assert other("kit.anchored(store, kit.ids(2, seed=1), 'session:gone', pinned=True).blocks") == 2
    other("store.close()")
    kit.close()
    assert len(traces(kit, ids)) == 2
    store = kit.open()
    done = store.remove("session:gone", purge=True)
    assert (done.blocks, done.reason, traces(kit, ids)) == (2, None, [])
    assert kit.good_blocks(store, kit.ids(6, seed=2)) == 6
    assert store.verify() == []


def test_a_purge_leaves_segments_alone_that_have_nothing_of_it(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ced_kvstore.writer.MAX_SEGMENT_BYTES", 64 << 10)
    store = kit.open()
    for seed in range(1, 4):
        kit.anchored(store, kit.ids(7, seed=seed), f"session:{seed}")
    # Dead bytes of something else.
    kit.anchored(store, kit.ids(7, seed=3), "session:3", pinned=True)
    before = kit.segments()
    store.remove("session:1", purge=True)
    assert not before[0].exists()
    assert all(path.exists() for path in before[2:])


def test_a_record_that_cannot_be_told_is_taken_for_one_of_what_goes(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ced_kvstore.writer.MAX_SEGMENT_BYTES", 64 << 10)
    store, ids = two_sessions(kit), kit.ids(2, seed=1)
    kit.close()
    segment, _second = kit.segments()
    kit.flip(segment, kit.block_offset(segment, 0) + 40)
    store = kit.open()
    store.verify(fix=True)
    kit.anchored(store, ids, "session:gone")
    assert len(traces(kit, ids)) == 2
    assert store.remove("session:gone", purge=True).reason is None
    assert traces(kit, ids) == []


class Grown:
    """An index that others have published to since it was looked through."""

    def segments(self) -> dict[int, tuple[int, int]]:
        return {1: (8192, 0), 2: (8192, 0), 3: (8192, 0), 4: (4096, 0)}


def test_what_others_append_while_a_purge_looks_is_taken_along() -> None:
    looked = Traces(frozenset({1, 7}), {1: 8192, 2: 8192, 3: 4096, 7: 4096})
    assert looked.segments(cast(Tables, Grown())) == [1, 3, 4]


def test_a_commit_finishes_what_was_cut_short_a_bounded_part_at_a_time(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ced_kvstore.writer.MAX_SEGMENT_BYTES", 64 << 10)
    store = kit.open()
    for seed in range(1, 15):
        kit.anchored(store, kit.ids(1, seed=seed), "session:gone")
        kit.anchored(store, kit.ids(5, seed=100 + seed), f"session:{seed}")
    store.remove("session:gone")
    with monkeypatch.context() as patched:
        patched.setattr("ced_kvstore.compact.move_out", stop)
        with pytest.raises(KeyboardInterrupt):
            store.gc()
    counts = []
    for seed in range(200, 205):
        counts.append(sum(len(traces(kit, kit.ids(1, seed=n))) for n in range(1, 15)))
        kit.commit(store, kit.ids(1, seed=seed))
    assert counts[0] == 14 > counts[1] > counts[2] >= counts[-1] == 0
    assert store.verify() == []


def test_gc_gives_every_dead_byte_back_however_much_beside_it_is_live(kit: Any) -> None:
    store, ids = two_sessions(kit), kit.ids(2, seed=1)
    assert store.remove("session:gone").blocks == 2
    assert store.compact() == 0
    assert len(traces(kit, ids)) == 1
    done = store.gc()
    assert (done.blocks, done.segments, done.waiting, traces(kit, ids)) == (0, 1, 0, [])
    assert kit.good_blocks(store, kit.ids(6, seed=2)) == 6
    assert store.verify() == []
    # Nothing is left to do.
    assert store.gc().segments == 0


def test_gc_says_what_has_to_wait_for_another_process(kit: Any, peer: Any) -> None:
    store, other = kit.open(), peer()
    other("store = kit.open()")
    other("kit.anchored(store, kit.ids(2, seed=1), 'session:gone') and 0")
    other("kit.anchored(store, kit.ids(6, seed=2), 'session:kept') and 0")
    store.remove("session:gone")
    assert (store.gc().waiting, len(traces(kit, kit.ids(2, seed=1)))) == (1, 1)
    other("store.close()")
    assert (store.gc().waiting, traces(kit, kit.ids(2, seed=1))) == (0, [])


class Deadly(Files):
    """Ends the process, as kill -9 does, when it is to unlink a segment."""

    def unlink(self, path: Path) -> None:
        if path.suffix == ".kvs":
            os._exit(9)
        super().unlink(path)


@pytest.mark.parametrize("finisher", ["commit", "gc"])
def test_a_segment_whose_remover_was_killed_leaves_the_disk_with_whoever_comes_next(
    kit: Any, peer: Any, finisher: str
) -> None:
    two_sessions(kit).close()
    other = peer()
    other("store = kit.open()")
    child = os.fork()
    if child == 0:
        kit.open(files=Deadly()).remove("session:gone", purge=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    ids = kit.ids(2, seed=1)
    assert traces(kit, ids) == ["000001.kvs"]
    if finisher == "commit":
        assert other("kit.commit(store, kit.ids(1, seed=3)).blocks") == 1
    else:
        other("store.gc() and 0")
    assert traces(kit, ids) == []
    store = kit.open()
    assert kit.good_blocks(store, kit.ids(6, seed=2)) == 6
    assert store.verify() == []
    with store._core.read() as tables:
        assert tables.purges() == []
