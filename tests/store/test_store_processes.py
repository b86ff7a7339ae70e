"""Several processes on one directory: all of them write, and each sees what the others commit."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from store_race import hold

from ced_kvstore import locks

CHECK = "index/CHECK"


def test_two_processes_write_and_see_what_the_other_commits(kit: Any, peer: Any) -> None:
    store, other = kit.open(map_bytes=1 << 17), peer()
    kit.commit(store, kit.ids(3))
    other("store = kit.open(map_bytes=1 << 17)")
    assert other("store.notice, store.read_only") == (None, False)
    assert other("kit.good_blocks(store, kit.ids(3))") == 3
    # Also when the index has outgrown the map of the other process, for reading and for writing.
    for seed in range(1, 7):
        if seed % 2:
            kit.anchored(store, kit.ids(50, seed=seed), f"session:{seed}")
            assert other(f"kit.good_blocks(store, kit.ids(50, seed={seed}))") == 50
        else:
            other(f"kit.anchored(store, kit.ids(50, seed={seed}), 'session:{seed}') and 0")
            assert kit.good_blocks(store, kit.ids(50, seed=seed)) == 50
    assert store.stats().bytes_index > 1 << 17
    assert other("len(store.anchors())") == 6
    # Each appends to a segment of its own.
    assert len(kit.segments()) == 2
    assert store.verify() == []


def test_the_same_ids_are_stored_once(kit: Any, peer: Any) -> None:
    store, other = kit.open(), peer()
    other("store = kit.open()")
    kit.commit(store, kit.ids(3), snapshots={store.hashes(kit.ids(3))[-1]: b"s" * 99})
    assert other("astuple(kit.commit(store, kit.ids(5)))") == (2, 3, None)
    done = kit.commit(store, kit.ids(5))
    assert (done.blocks, done.skipped, done.reason) == (0, 5, None)
    assert store.stats().blocks == 5
    assert store.verify() == []


@pytest.mark.slow
@pytest.mark.parametrize("first", ["this one", "the other one"])
def test_the_last_process_to_close_leaves_the_sum(kit: Any, peer: Any, first: str) -> None:
    store, other = kit.open(), peer()
    other("store = kit.open()")
    kit.commit(store, kit.ids(2))
    assert not (kit.directory / CHECK).exists()
    if first == "this one":
        store.close()
    else:
        other("store.close()")
    assert not (kit.directory / CHECK).exists()
    if first == "this one":
        assert other("kit.commit(store, kit.ids(3)).blocks") == 1
        other("store.close()")
    else:
        assert kit.commit(store, kit.ids(3)).blocks == 1
        store.close()
    assert (kit.directory / CHECK).exists()
    store = kit.open()
    assert store.match(kit.ids(3)).blocks == 3
    assert store.verify() == []


@pytest.mark.slow
def test_a_process_that_ends_without_closing_is_no_hindrance(kit: Any, peer: Any) -> None:
    other = peer()
    other("store = kit.open()")
    other("kit.commit(store, kit.ids(2)).blocks")
    other.close()
    store = kit.open()
    assert (store.notice, store.match(kit.ids(2)).blocks) == (None, 2)
    # Its segment is continued.
    kit.commit(store, kit.ids(2, seed=1))
    assert len(kit.segments()) == 1


def test_a_killed_process_is_no_hindrance_to_the_others(kit: Any, peer: Any) -> None:
    store, other = kit.open(), peer()
    other("store = kit.open()")
    other("kit.commit(store, kit.ids(2, seed=1)).blocks")
    other("store.match(kit.ids(2, seed=1)).blocks")
    other.kill()
    assert kit.commit(store, kit.ids(2, seed=2)).blocks == 2
    assert kit.good_blocks(store, kit.ids(2, seed=1)) == 2
    assert store.verify() == []
    # Another takes its place, and its segment.
    third = peer()
    third("store = kit.open()")
    assert third("kit.commit(store, kit.ids(4, seed=1)).blocks") == 2
    assert len(kit.segments()) == 2
    assert store.verify() == []
    assert kit.good_blocks(store, kit.ids(4, seed=1)) == 4


def test_a_process_killed_while_it_reads_keeps_no_old_pages(kit: Any, peer: Any) -> None:
    store, other = kit.open(), peer()
    kit.commit(store, kit.ids(2))
    other("store = kit.open()")
    other("reading = store._core.read()")
    other("reading.__enter__() and 0")
    assert len(store._core._index._env.readers().splitlines()) == 3
    other.kill()
    kit.commit(store, kit.ids(3))
    assert len(store._core._index._env.readers().splitlines()) == 2


def test_a_process_that_cannot_get_in_reads_and_says_so_in_one_line(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.fill()
    monkeypatch.setattr(locks, "OPEN_WAIT_S", 0.03)
    held = hold(kit.directory / "OPEN")
    store = kit.open()
    assert store.read_only
    assert "another process has been opening or closing it" in store.notice
    assert "\n" not in store.notice
    assert kit.good_blocks(store, kit.ids(4)) == 4
    assert kit.commit(store, kit.ids(1, seed=1)).reason == "read_only"
    os.close(held)
    store.close()
    store = kit.open()
    assert (store.notice, store.read_only) == (None, False)


def test_a_reader_does_not_map_an_index_that_is_being_checked(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.fill()
    monkeypatch.setattr(locks, "OPEN_WAIT_S", 0.0)
    # Another process opens it, alone, after one was killed.
    (kit.directory / CHECK).unlink()
    held, checking = hold(kit.directory / "OPEN"), hold(kit.directory / "LOCK")
    (kit.directory / "index" / "data.mdb").write_bytes(b"this is no database" * 1000)
    store = kit.open()
    match = store.match(kit.ids(4))
    assert (match.blocks, match.reason) == (0, "disabled")
    assert "is opening the store" in store.explain(kit.ids(4)).stored
    # It was killed, too; whoever only reads looks at every page first.
    os.close(checking)
    assert "damaged" in store.explain(kit.ids(4)).stored
    os.close(held)
    store.close()
    assert kit.good_blocks(kit.open(), kit.ids(4)) == 4


def test_a_process_that_cannot_get_out_leaves_no_sum(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(2))
    monkeypatch.setattr(locks, "OPEN_WAIT_S", 0.03)
    held = hold(kit.directory / "OPEN")
    started = time.monotonic()
    store.close()
    assert time.monotonic() - started < 5
    os.close(held)
    assert not (kit.directory / CHECK).exists()
    assert kit.open().match(kit.ids(2)).blocks == 2


def test_an_older_store_that_keeps_the_directory_to_itself_is_respected(kit: Any) -> None:
    """The first version held LOCK exclusively for as long as it wrote."""
    kit.fill()
    held = hold(kit.directory / "LOCK")
    store = kit.open()
    assert store.read_only
    assert "an older version" in store.notice
    os.close(held)
    store.close()
    assert kit.open().notice is None


@pytest.mark.slow
def test_an_index_of_another_version_is_not_rebuilt_under_others(
    kit: Any, peer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = peer()
    other("store = kit.open()")
    other("kit.commit(store, kit.ids(2)).blocks")
    monkeypatch.setattr("ced_kvstore.recover.INDEX_VERSION", 7)
    store = kit.open()
    assert "an index of another version" in store.notice
    assert other("kit.commit(store, kit.ids(4)).blocks") == 2
    other("store.close()")
    store.close()
    store = kit.open()
    assert store.notice is None
    assert kit.good_blocks(store, kit.ids(4)) == 4


@pytest.mark.slow
def test_a_reader_follows_a_writer_that_rebuilt_the_index(kit: Any, peer: Any) -> None:
    kit.fill(3)
    other = peer()
    other("from ced_kvstore import locks")
    other("locks.OPEN_WAIT_S = 0.03")
    held = hold(kit.directory / "OPEN")
    other("store = kit.open()")
    os.close(held)
    assert other("store.read_only")
    assert other("kit.good_blocks(store, kit.ids(3))") == 3
    (kit.directory / "index" / "data.mdb").unlink()
    store = kit.open()
    kit.commit(store, kit.ids(2, seed=1))
    assert other("kit.good_blocks(store, kit.ids(2, seed=1))") == 2
    assert other("kit.good_blocks(store, kit.ids(3))") == 3
    # A reader does not take part: the writer was alone, and leaves a sum.
    store.close()
    assert (kit.directory / CHECK).exists()


def test_a_forked_child_misses_and_leaves_the_store_alone(kit: Any, run_python: Any) -> None:
    program = """
import os, sys
from ced_kvstore import Store, Stream
store = Store.open(sys.argv[1], fingerprint={}, streams=[Stream("k", 5)])
ids = [1] * 128
store.commit(ids, first_block=0, rows={"k": b"12345"})
store.match(ids)
pins = os.listdir(sys.argv[1] + "/pins")
pid = os.fork()
if pid == 0:
    assert store.match(ids).reason == "disabled"
    assert "fork" in store.explain(ids).stored
    assert store.commit(ids, first_block=0, rows={"k": b"12345"}).reason == "read_only"
    store.pin(store.hashes(ids)[0])
    assert store.gc().reason == "read_only"
    store.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert store.match(ids).blocks == 1
assert os.listdir(sys.argv[1] + "/pins") == pins
assert store.commit([2] * 128, first_block=0, rows={"k": b"12345"}).blocks == 1
store.close()
assert os.path.exists(sys.argv[1] + "/index/CHECK")
print("well")
"""
    done = run_python(program, kit.directory)
    assert done.stdout.strip() == "well", done.stderr
