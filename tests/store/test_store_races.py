"""What another process publishes between writing a commit and publishing it: no hole, nothing lost,
nothing back from the dead.

Each test stops a commit when its records are synced, lets another process act, and goes on.
Afterwards the index, and one rebuilt from the segments, say the same.
"""

from __future__ import annotations

from typing import Any

import pytest
from store_race import Race

from ced_kvstore import Anchor, Files
from ced_kvstore.evict import FULL


@pytest.fixture
def race(kit: Any, peer: Any, monkeypatch: pytest.MonkeyPatch) -> Race:
    return Race(kit, peer(), monkeypatch)


def test_the_same_blocks_are_published_once(kit: Any, race: Race) -> None:
    key = race.store.hashes(kit.ids(4))[3]
    race.meanwhile("kit.anchored(store, kit.ids(3), 'theirs')")
    done = kit.commit(race.store, kit.ids(4), anchors=[Anchor(key, "ours")])
    assert (done.blocks, done.skipped, done.reason) == (1, 3, None)
    assert kit.good_blocks(race.store, kit.ids(4)) == 4
    assert {anchor.label for anchor in race.store.anchors()} == {"ours", "theirs"}
    # What was written twice is dead: one fingerprint and three blocks.
    stats = race.store.stats()
    assert stats.bytes_on_disk - stats.bytes_index - stats.bytes_live == 4096 + 3 * 8192
    race.check()


def test_what_is_removed_meanwhile_is_committed_after_the_removal(kit: Any, race: Race) -> None:
    kit.anchored(race.store, kit.ids(3), "session:a")
    key = race.store.hashes(kit.ids(5))[4]
    race.meanwhile("store.remove('session:a')")
    done = kit.commit(race.store, kit.ids(5), anchors=[Anchor(key, "session:a")])
    # It was planned to add two blocks to three that are gone now.
    assert (done.blocks, done.skipped, done.reason) == (5, 0, None)
    assert kit.good_blocks(race.store, kit.ids(5)) == 5
    race.check()


def test_what_is_stored_and_removed_meanwhile_is_stored_again(kit: Any, race: Race) -> None:
    race.meanwhile("kit.anchored(store, kit.ids(3), 'session:a')", "store.remove('session:a')")
    assert kit.commit(race.store, kit.ids(3)).blocks == 3
    race.check()


def test_what_is_removed_after_others_overtook_a_commit_stays_removed(kit: Any, race: Race) -> None:
    others = [f"kit.anchored(store, kit.ids(1, seed={n}), 'session:{n}')" for n in range(1, 6)]
    race.meanwhile(*others)
    assert kit.commit(race.store, kit.ids(1)).blocks == 1
    assert race.store.remove("session:5").blocks == 1
    race.check()


def test_a_commit_above_what_is_removed_meanwhile_says_so(kit: Any, race: Race) -> None:
    kit.anchored(race.store, kit.ids(3), "session:a")
    race.meanwhile("store.remove('session:a')")
    done = kit.commit(race.store, kit.ids(5), 3)
    assert (done.blocks, done.reason) == (0, "the path below block 3 is not stored")
    assert race.store.stats().blocks == 0
    race.check()


def test_a_block_evicted_meanwhile_is_written_again(kit: Any, race: Race) -> None:
    kit.commit(race.store, kit.ids(3))
    kit.commit(race.store, kit.ids(2, seed=1))
    race.meanwhile("store.evict(0)")
    done = kit.commit(race.store, kit.ids(5))
    assert (done.blocks, done.reason) == (5, None)
    assert kit.good_blocks(race.store, kit.ids(5)) == 5
    assert race.store.verify() == []


def test_an_anchor_set_meanwhile_is_not_undone(kit: Any, race: Race) -> None:
    kit.commit(race.store, kit.ids(2))
    key = race.store.hashes(kit.ids(2))[1]
    race.meanwhile("kit.anchored(store, kit.ids(2), 'warm', pinned=True)")
    anchor = Anchor(key, "warm", n_tokens=300, created=5.0)
    assert race.store.commit([], first_block=0, rows={}, anchors=[anchor]).reason is None
    # Ours came later, but only a removal takes a pin away.
    (found,) = race.store.anchors()
    assert (found.pinned, found.n_tokens, found.created) == (True, 300, 5.0)
    race.check()


def test_the_budget_holds_when_two_fill_it_at_once(kit: Any, race: Race) -> None:
    race.other("store.close()")
    race.store.close()
    race.store = kit.open(max_bytes=1 << 20)
    race.other("store = kit.open(max_bytes=1 << 20)")
    race.meanwhile("kit.anchored(store, kit.ids(60, seed=1), 'warm', pinned=True)")
    done = kit.commit(race.store, kit.ids(90))
    stats = race.store.stats()
    assert stats.bytes_on_disk <= 1 << 20
    assert 0 < done.blocks < 90
    assert done.reason == FULL
    assert kit.good_blocks(race.store, kit.ids(60, seed=1)) == 60
    assert race.store.verify() == []


def test_two_that_begin_a_segment_at_once_do_not_share_it(kit: Any, race: Race) -> None:
    race.meanwhile("kit.commit(store, kit.ids(2, seed=1))")
    assert kit.commit(race.store, kit.ids(2)).blocks == 2
    assert len(kit.segments()) == 2
    assert kit.good_blocks(race.store, kit.ids(2)) == 2
    assert kit.good_blocks(race.store, kit.ids(2, seed=1)) == 2
    race.check()


def test_a_segment_that_is_swept_as_it_is_begun_is_not_written_to(
    kit: Any, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, first = Files.lock, kit.directory / "seg" / "000001.kvs"

    def stopped(files: Files, fd: int, *, shared: bool = False) -> bool:
        if files.identity(first) == files.identity(fd):
            race.other("store.gc() and 0")
            assert not first.exists()
        return plain(files, fd, shared=shared)

    monkeypatch.setattr(Files, "lock", stopped)
    assert kit.commit(race.store, kit.ids(2)).blocks == 2
    assert kit.good_blocks(race.store, kit.ids(2)) == 2
    race.check()


def test_what_was_appended_and_not_published_is_written_over(kit: Any, race: Race) -> None:
    kit.anchored(race.store, kit.ids(3), "session:a")
    race.meanwhile("store.remove('session:a')")
    kit.commit(race.store, kit.ids(3, seed=1))
    stats = race.store.stats()
    size = sum(path.stat().st_size for path in kit.segments())
    assert size == stats.bytes_on_disk - stats.bytes_index
    # Dead are three blocks and an anchor that were removed.
    assert size - stats.bytes_live == 3 * 8192 + 4096
    race.check()
