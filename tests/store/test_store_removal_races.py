"""What another process publishes during a removal, an eviction, a move, a sweep or a verify: no
hole, nothing back from the dead, and nothing that is pinned or published in time is dropped.

Afterwards the index, and one rebuilt from the segments, say the same.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from store_race import Race

from ced_kvstore import Files, leftovers
from ced_kvstore.segment import Segments
from ced_kvstore.tree import load


@pytest.fixture
def race(kit: Any, peer: Any, monkeypatch: pytest.MonkeyPatch) -> Race:
    return Race(kit, peer(), monkeypatch)


def test_a_removal_takes_along_what_is_committed_meanwhile(kit: Any, race: Race) -> None:
    kit.anchored(race.store, kit.ids(3), "session:a")
    kit.anchored(race.store, kit.ids(2, seed=1), "session:b")
    race.meanwhile("kit.commit(store, kit.ids(5))")
    done = race.store.remove("session:a")
    assert (done.anchors, done.blocks, done.reason) == (1, 5, None)
    assert race.store.match(kit.ids(3)).blocks == 0
    race.check()


def test_a_removal_leaves_what_is_anchored_meanwhile(kit: Any, race: Race) -> None:
    kit.anchored(race.store, kit.ids(3), "session:a")
    race.meanwhile("kit.anchored(store, kit.ids(2), 'session:b')")
    done = race.store.remove("session:a")
    assert (done.anchors, done.blocks, done.reason) == (1, 1, None)
    assert kit.good_blocks(race.store, kit.ids(3)) == 2
    race.check()


def test_a_removal_takes_along_what_began_before_it(kit: Any, race: Race) -> None:
    kit.anchored(race.store, kit.ids(3), "session:a")
    race.begin("kit.commit(store, kit.ids(5))")
    kit.commit(race.store, kit.ids(1, seed=1))
    race.go_on_meanwhile()
    assert race.store.remove("session:a").blocks == 5
    race.check()


@pytest.mark.parametrize(
    ("label", "seed", "expected"),
    [("session:a", 0, (2, 3)), ("session:a", 2, (2, 5)), ("session:b", 0, (1, 1))],
)
def test_a_removal_respects_an_anchor_that_began_before_it(
    kit: Any, race: Race, label: str, seed: int, expected: tuple[int, int]
) -> None:
    kit.anchored(race.store, kit.ids(3), "session:a")
    race.begin(f"kit.anchored(store, kit.ids(2, seed={seed}), {label!r})")
    kit.commit(race.store, kit.ids(1, seed=1))
    race.go_on_meanwhile()
    done = race.store.remove("session:a")
    assert (done.anchors, done.blocks, done.reason) == (*expected, None)
    left = {anchor.label for anchor in race.store.anchors()}
    assert left == {label} - {"session:a"}
    race.check()


def test_a_removal_is_above_everything_published_meanwhile(kit: Any, race: Race) -> None:
    kit.anchored(race.store, kit.ids(3), "session:a")
    others = [f"kit.commit(store, kit.ids(1, seed={seed}))" for seed in range(2, 6)]
    # Its first block is found damaged, and mended: the record is a new one.
    mend = "store.quarantine(store.hashes(kit.ids(1))) or 1", "kit.commit(store, kit.ids(3))"
    race.meanwhile(*others, *mend)
    assert race.store.remove("session:a").blocks == 3
    assert race.store.match(kit.ids(3)).blocks == 0
    race.check()


def test_a_removal_leaves_what_is_pinned_meanwhile(kit: Any, race: Race) -> None:
    kit.anchored(race.store, kit.ids(3), "session:a")
    race.meanwhile("store.pin(store.hashes(kit.ids(3))[1])")
    done = race.store.remove("session:a")
    assert (done.anchors, done.blocks) == (1, 1)
    assert "2 blocks stay" in str(done.reason)
    assert kit.good_blocks(race.store, kit.ids(3)) == 2


@pytest.mark.parametrize(
    ("how", "act", "blocks"),
    [
        ("gc", "kit.anchored(store, kit.ids(2), 'session:a')", 2),
        ("evict", "kit.anchored(store, kit.ids(2), 'warm', pinned=True)", 2),
        ("evict", "kit.commit(store, kit.ids(4))", 4),
        ("evict", "store.match(kit.ids(3)).blocks", 3),
    ],
)
def test_what_is_chosen_to_go_is_looked_at_again(
    kit: Any, race: Race, monkeypatch: pytest.MonkeyPatch, how: str, act: str, blocks: int
) -> None:
    kit.commit(race.store, kit.ids(3))

    def stopped(tables: Any) -> Any:
        nodes = load(tables)
        race.other(f"{act} and 0")
        return nodes

    monkeypatch.setattr("ced_kvstore.drop.load", stopped)
    if how == "gc":
        race.store.gc()
    else:
        race.store.evict(0)
    assert kit.good_blocks(race.store, kit.ids(4)) == blocks
    assert race.store.stats().blocks == blocks
    assert race.store.verify() == []


def test_a_pin_waits_for_who_drops_by_an_older_list(
    kit: Any, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.commit(race.store, kit.ids(3))
    plain = Files.publish
    pinned = threading.Thread(
        target=lambda: race.other("store.pin(store.hashes(kit.ids(3))[2]) and 0"), daemon=True
    )

    def stopped(files: Files, commit: Any) -> None:
        # The pins have been read, and the blocks are about to be gone.
        if not pinned.ident:
            pinned.start()
            # What tells others of the pin comes first; then it waits.
            ends = time.monotonic() + 20
            while not list((kit.directory / "pins").iterdir()):
                assert time.monotonic() < ends
                time.sleep(0.005)
            pinned.join(0.2)
            assert pinned.is_alive()
        plain(files, commit)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "publish", stopped)
        race.store.evict(0)
    pinned.join(20)
    assert not pinned.is_alive()
    # It came too late, and knows it; from now on it holds.
    assert race.other("store.match(kit.ids(3)).blocks") == 0
    kit.commit(race.store, kit.ids(3))
    race.store.evict(0)
    assert kit.good_blocks(race.store, kit.ids(3)) == 3


def test_what_is_published_during_a_sweep_is_no_leftover(
    kit: Any, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.anchored(race.store, kit.ids(1), "session:a")
    plain, calls = leftovers._known, []

    def stopped(index: Any) -> Any:
        known = plain(index)
        if not calls:
            race.other("kit.anchored(store, kit.ids(2, seed=1), 'session:b') and 0")
            # Nobody holds its segment any more.
            race.other("store.close()")
        calls.append(known)
        return known

    monkeypatch.setattr(leftovers, "_known", stopped)
    race.store.gc()
    assert calls
    assert kit.good_blocks(race.store, kit.ids(2, seed=1)) == 2
    assert race.store.verify() == []


@pytest.mark.parametrize("is_mended", [True, False])
def test_a_block_that_is_found_wrong_while_it_is_moved_stays_so_until_it_is_mended(
    kit: Any, race: Race, is_mended: bool
) -> None:
    ids = kit.ids(3)
    kit.commit(race.store, ids[:256])
    wrong = {name: bytes(len(rows)) for name, rows in kit.rows(ids, 2).items()}
    race.store.commit(ids, first_block=2, rows=wrong)
    kit.anchored(race.store, kit.ids(9, seed=1), "session:b")
    race.store.remove("session:b")
    find = "store.quarantine(store.hashes(kit.ids(3))[2:]) or 1"
    # Any commit writes down what was found.
    race.meanwhile(find, f"kit.commit(store, kit.ids({'3' if is_mended else '1, seed=2'}))")
    assert race.store.compact() > 0
    assert race.store.match(ids).reason == ("hit" if is_mended else "corrupt")
    if not is_mended:
        assert {problem.kind for problem in race.store.verify()} == {"corrupt"}
        kit.commit(race.store, ids)
    assert kit.good_blocks(race.store, ids) == 3
    race.check()


def test_what_is_moved_during_a_verify_is_not_found_damaged(
    kit: Any, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    race.other("kit.anchored(store, kit.ids(3), 'session:a') and 0")
    race.other("kit.anchored(store, kit.ids(3, seed=1), 'session:b') and 0")
    plain, calls = Segments.read_payload, []

    def stopped(segments: Segments, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            race.other("store.remove('session:a', purge=True) and 0")
        return plain(segments, *args)

    monkeypatch.setattr(Segments, "read_payload", stopped)
    assert race.store.verify() == []
    assert len(calls) == 9
    assert race.store.stats().blocks == 3


def test_what_is_committed_during_a_verify_counts_as_live(
    kit: Any, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.anchored(race.store, kit.ids(3), "session:a")
    race.other("kit.commit(store, kit.ids(3, seed=1)) and 0")
    (segment, _) = kit.segments()
    kit.flip(segment, kit.block_offset(segment, 1) + 3000)
    plain, calls = Segments.read_payload, []

    def stopped(segments: Segments, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            race.other("kit.commit(store, kit.ids(5, seed=2)) and 0")
        return plain(segments, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Segments, "read_payload", stopped)
        assert [problem.kind for problem in race.store.verify(fix=True)] == ["corrupt"]
    assert kit.good_blocks(race.store, kit.ids(5, seed=2)) == 5
    assert kit.good_blocks(race.store, kit.ids(3)) == 1
    assert race.store.verify() == []
