"""Quarantine of rows that a reader knows to be wrong, and which snapshots of a path are kept.

A quarantined block is a miss from there on, until a commit of the same block writes it anew with
what hangs on it. So is a damaged snapshot, which costs no block.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ced_kvstore import Anchor
from ced_kvstore.segment import Segments

WRONG = b"w" * 3000
RIGHT = b"r" * 3001


def wrong_rows(kit: Any, ids: list[int], first_block: int) -> dict[str, bytes]:
    return {name: bytes(len(rows)) for name, rows in kit.rows(ids, first_block).items()}


@pytest.fixture
def path(kit: Any) -> tuple[Any, list[int], tuple[bytes, ...]]:
    """A store whose third block of five is wrong, and so is the snapshot at its end."""
    store, ids = kit.open(), kit.ids(5)
    hashes = store.hashes(ids)
    kit.commit(store, ids[:256])
    third = ids[: 3 * 128]
    store.commit(third, first_block=2, rows=wrong_rows(kit, third, 2))
    anchors = [Anchor(hashes[4], "session:a"), Anchor(hashes[2], "warm", pinned=True)]
    snapshots = {hashes[2]: WRONG, hashes[3]: RIGHT}
    kit.commit(store, ids, 3, anchors=anchors, snapshots=snapshots)
    assert store.match(ids).blocks == 5
    return store, ids, hashes


def test_a_quarantined_block_is_a_miss_from_there_on(kit: Any, path: Any) -> None:
    store, ids, hashes = path
    store.quarantine([hashes[2]])
    match = store.match(ids)
    assert (match.blocks, match.reason) == (2, "corrupt")
    assert match.snapshots == ()
    assert kit.good_blocks(store, ids) == 2
    assert store.explain(ids).reason == "corrupt"
    assert store.stats().blocks_bad == 1


def test_the_next_commit_writes_it_and_its_snapshot_anew(kit: Any, path: Any) -> None:
    store, ids, hashes = path
    store.quarantine([hashes[2]])
    done = kit.commit(store, ids, 2, snapshots={hashes[2]: RIGHT})
    # What comes after it was never wrong, and is not written twice.
    assert (done.blocks, done.skipped, done.reason) == (1, 2, None)
    assert kit.good_blocks(store, ids) == 5
    assert store.read_snapshot(hashes[2]) == RIGHT
    assert store.match(ids).snapshots == (4 * 128, 3 * 128)
    assert {a.label for a in store.match(ids).anchors} == {"session:a", "warm"}
    assert store.verify() == []


def test_a_mended_block_does_not_keep_its_old_snapshot(kit: Any, path: Any) -> None:
    store, ids, hashes = path
    store.quarantine([hashes[2]])
    kit.commit(store, ids, 2)
    assert store.read_snapshot(hashes[2]) is None
    assert store.match(ids).snapshots == (4 * 128,)


def test_a_snapshot_that_went_with_a_wrong_block_stays_away_after_a_rebuild(
    kit: Any, path: Any
) -> None:
    store, ids, hashes = path
    store.quarantine([hashes[2]])
    kit.commit(store, ids, 2)
    store.close()
    shutil.rmtree(kit.directory / "index")
    again = kit.open()
    assert again.read_snapshot(hashes[2]) is None
    assert again.read_snapshot(hashes[3]) == RIGHT
    assert kit.good_blocks(again, ids) == 5
    assert again.match(ids).snapshots == (4 * 128,)


@pytest.mark.parametrize("mended", [False, True])
def test_it_is_remembered_over_a_restart(kit: Any, path: Any, mended: bool) -> None:
    store, ids, hashes = path
    store.quarantine(hashes[2:4])
    if mended:
        kit.commit(store, ids, 2, snapshots={hashes[2]: RIGHT, hashes[3]: RIGHT})
    store.close()
    again = kit.open()
    assert again.match(ids).blocks == kit.good_blocks(again, ids) == (5 if mended else 2)
    assert again.match(ids).reason == ("hit" if mended else "corrupt")


def test_an_unrelated_commit_writes_it_down_and_mends_nothing(kit: Any, path: Any) -> None:
    store, ids, hashes = path
    store.quarantine([hashes[2]])
    other = kit.ids(2, seed=3)
    assert kit.commit(store, other).blocks == 2
    assert store.match(ids).blocks == 2
    assert store.match(other).blocks == 2


def test_all_handles_of_a_process_know(kit: Any, path: Any) -> None:
    store, ids, hashes = path
    beside = kit.open()
    beside.quarantine([hashes[2]])
    assert store.match(ids).blocks == 2


def test_what_is_not_there_is_no_matter(kit: Any, path: Any) -> None:
    store, ids, hashes = path
    store.quarantine([])
    store.quarantine([bytes(32), store.root, *store.hashes(kit.ids(2, seed=8))])
    assert store.match(ids).blocks == 5
    assert store.stats().blocks_bad == 0
    store.quarantine([hashes[2]])
    store.quarantine([hashes[2], hashes[2]])
    assert store.stats().blocks_bad == 1
    store.close()
    store.quarantine([hashes[0]])


def test_other_processes_learn_it_when_the_finder_commits_or_closes(
    kit: Any, path: Any, run_python: Any
) -> None:
    store, ids, _ = path
    program = """
import sys
sys.path.insert(0, sys.argv[2])
from conftest import FINGERPRINT, STREAMS, Kit
from ced_kvstore import Store
store = Store.open(sys.argv[1], fingerprint=FINGERPRINT, streams=STREAMS)
ids = Kit.ids(5)
assert not store.read_only
store.quarantine(store.hashes(ids)[2:3])
print(store.match(ids).blocks)
store.close()
"""
    assert store.match(ids).blocks == 5
    done = run_python(program, store.directory, Path(__file__).parent)
    assert (done.stdout, done.stderr) == ("2\n", "")
    match = store.match(ids)
    assert (match.blocks, match.reason) == (2, "corrupt")


def damage_snapshot(kit: Any, data: bytes) -> None:
    (segment,) = kit.segments()
    kit.flip(segment, segment.read_bytes().index(data) + 1234, bit=3)


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after a restart"])
def test_a_damaged_snapshot_is_offered_no_more_and_stored_anew(
    kit: Any, path: Any, again: bool
) -> None:
    store, ids, hashes = path
    damage_snapshot(kit, RIGHT)
    assert store.match(ids).snapshots == (4 * 128, 3 * 128)
    assert store.read_snapshot(hashes[3]) is None
    assert store.match(ids).snapshots == (3 * 128,)
    # Its block is none the worse for it.
    assert (kit.good_blocks(store, ids[: 2 * 128]), store.stats().blocks_bad) == (2, 0)
    if again:
        store.close()
        store = kit.open()
        assert store.match(ids).snapshots == (3 * 128,)
    done = store.commit([], first_block=0, rows={}, snapshots={hashes[3]: RIGHT})
    assert done.reason is None
    assert store.read_snapshot(hashes[3]) == RIGHT
    assert store.match(ids).snapshots == (4 * 128, 3 * 128)
    assert store.verify() == []


def test_a_snapshot_that_is_moved_meanwhile_is_found_again(
    kit: Any, path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ids, hashes = path
    kit.anchored(store, kit.ids(1, seed=7), "session:b")
    read, moved = Segments.read_payload, []

    def slow(segments: Any, place: Any, *args: Any) -> Any:
        if not moved:
            moved.append(place)
            store.remove("session:b", purge=True)
            assert not segments.path(place.segment).exists()
        return read(segments, place, *args)

    monkeypatch.setattr(Segments, "read_payload", slow)
    assert store.read_snapshot(hashes[3]) == RIGHT
    assert moved
    assert store.match(ids).snapshots == (4 * 128, 3 * 128)


def keeps(n_blocks: int, snapshots: set[int], pins: set[int], forks: set[int]) -> set[int]:
    """Of the snapshots at these block numbers of a path: the newest two, and of those at or before
    each pin and each fork the last."""
    newest = set(sorted(snapshots)[-2:])
    before = ({s for s in snapshots if s <= point} for point in pins | forks)
    return newest | {max(found) for found in before if found}


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_the_snapshots_that_a_path_keeps(
    kit: Any, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    n_blocks = data.draw(st.integers(1, 9), label="blocks")
    numbers = st.integers(1, n_blocks)
    snapshots = data.draw(st.sets(numbers, min_size=1), label="snapshots")
    pins = data.draw(st.sets(numbers, max_size=2), label="pins")
    forks = data.draw(st.sets(st.integers(1, n_blocks - 1), max_size=2) if n_blocks > 1
                      else st.just(set()), label="forks")  # fmt: skip
    store = kit.open(directory=tmp_path_factory.mktemp("kept") / "kv")
    ids = kit.ids(n_blocks)
    hashes = store.hashes(ids)
    anchors = [Anchor(hashes[n - 1], f"warm {n}", pinned=True) for n in pins]
    kit.commit(store, ids, anchors=anchors)
    for n in forks:
        kit.commit(store, ids[: n * 128] + kit.ids(1, seed=100 + n), n)
    # One after the other as sessions grow; the last one decides.
    for n in sorted(snapshots):
        kit.commit(store, ids[: n * 128], n, snapshots={hashes[n - 1]: bytes([n]) * 100})
    kept = {n for n in range(1, n_blocks + 1) if store.read_snapshot(hashes[n - 1]) is not None}
    assert kept == keeps(n_blocks, snapshots, pins, forks)
    assert store.match(ids).snapshots == tuple(n * 128 for n in sorted(kept, reverse=True))
    store.close()
