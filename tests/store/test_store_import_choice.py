"""An import into a store that has no room for all of it: what comes in, and what stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ced_kvstore import Anchor, choice

SESSIONS = {f"session:{seed}": seed for seed in (1, 2, 3)}


def prompt_and_sessions(kit: Any, path: Path) -> dict[str, list[int]]:
    """Export a pinned prompt of 6 blocks with three sessions of 8 more on it, the newest last."""
    with kit.open() as store:
        paths = {"warm": kit.ids(6)}
        kit.anchored(store, paths["warm"], "warm", pinned=True, created=1.0)
        for label, seed in SESSIONS.items():
            paths[label] = paths["warm"] + kit.ids(8, seed=seed)
            kit.anchored(store, paths[label], label, created=10.0 + seed)
        assert store.export(path).blocks == 30
    return paths


def labels(store: Any) -> set[str]:
    return {anchor.label for anchor in store.anchors()}


def blocks(store: Any) -> set[bytes]:
    with store._core.read() as tables:
        return {key for key, _entry in tables.blocks()}


def needed(store: Any) -> set[bytes]:
    """What an anchor of the store is at or behind."""
    found: set[bytes] = set()
    with store._core.read() as tables:
        for anchor in store.anchors():
            key = anchor.block_hash
            while (entry := tables.block(key)) is not None and key not in found:
                found.add(key)
                key = entry.parent
    return found


def test_an_import_takes_whole_paths_and_drops_nothing_of_the_store(
    kit: Any, other: Any, tmp_path: Path
) -> None:
    paths, own = prompt_and_sessions(kit, tmp_path / "all.tar"), kit.ids(10, seed=9)
    with other.open(max_bytes=525_000) as store:
        other.anchored(store, own, "session:own", created=5.0)
        done = store.import_(tmp_path / "all.tar")
        assert (done.blocks, done.skipped, done.left_out, done.anchors) == (14, 0, 16, 2)
        assert done.reason == (
            "the byte budget has no room for 16 of its blocks without dropping what the store has"
        )
        # The pinned one first, then the newest.
        assert labels(store) == {"session:own", "warm", "session:3"}
        assert store.gc().blocks == 0
        for ids in (own, paths["warm"], paths["session:3"]):
            assert other.good_blocks(store, ids) == len(ids) // 128
        assert store.stats().bytes_on_disk <= 525_000
        assert store.verify() == []
        again = store.import_(tmp_path / "all.tar")
        assert (again.blocks, again.skipped, again.left_out) == (0, 14, 16)


def test_what_nothing_names_makes_room_for_an_import(kit: Any, other: Any, tmp_path: Path) -> None:
    paths = prompt_and_sessions(kit, tmp_path / "all.tar")
    with other.open(max_bytes=650_000) as store:
        # Some of that the archive holds, too; dead bytes lie between.
        other.commit(store, paths["session:2"][: 8 * 128])
        other.anchored(store, kit.ids(15, seed=8), "session:gone")
        other.commit(store, kit.ids(16, seed=9))
        store.remove("session:gone")
        done = store.import_(tmp_path / "all.tar")
        assert (done.blocks, done.skipped, done.reason) == (22, 8, None)
        assert store.stats().bytes_on_disk <= 650_000
        assert store.match(kit.ids(16, seed=9)).blocks < 16
        assert store.verify() == []


def test_what_gets_a_name_while_an_import_makes_room_stays(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt_and_sessions(kit, tmp_path / "all.tar")
    own, unneeded = kit.ids(24, seed=9), choice.unneeded

    def slow(*args: Any) -> Any:
        found = unneeded(*args)
        other.anchored(store, own, "session:meanwhile")
        return found

    monkeypatch.setattr(choice, "unneeded", slow)
    with other.open(max_bytes=650_000) as store:
        other.commit(store, own)
        done = store.import_(tmp_path / "all.tar")
        assert done.left_out > 0
        assert other.good_blocks(store, own) == 24
        assert "session:meanwhile" in labels(store)
        assert needed(store) == blocks(store)


def test_what_cannot_be_dropped_or_moved_makes_no_room(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt_and_sessions(kit, tmp_path / "all.tar")
    monkeypatch.setattr(choice, "clear", lambda *args: None)
    with other.open(max_bytes=650_000) as store:
        other.commit(store, kit.ids(24, seed=9))
        done = store.import_(tmp_path / "all.tar")
        assert 0 < done.left_out < 30
        assert done.reason.endswith(" without dropping what the store has")
        assert other.good_blocks(store, kit.ids(24, seed=9)) == 24
        assert len(needed(store)) == done.blocks


def test_pinned_paths_come_in_before_newer_ones(kit: Any, other: Any, tmp_path: Path) -> None:
    with kit.open() as store:
        kit.anchored(store, kit.ids(8, seed=1), "old", pinned=True, created=1.0)
        kit.anchored(store, kit.ids(8, seed=2), "new", created=2.0)
        store.export(tmp_path / "all.tar")
    with other.open(max_bytes=350_000) as store:
        assert store.import_(tmp_path / "all.tar").blocks == 8
        assert labels(store) == {"old"}


def test_anchors_that_the_budget_has_no_room_for_are_left_out(
    kit: Any, other: Any, tmp_path: Path
) -> None:
    with kit.open() as store:
        ids = kit.ids(1)
        anchors = [Anchor(store.hashes(ids)[0], f"s:{n}", created=n + 1.0) for n in range(60)]
        kit.commit(store, ids, anchors=anchors)
        store.export(tmp_path / "all.tar")
    with other.open(max_bytes=350_000) as store:
        done = store.import_(tmp_path / "all.tar")
        assert (done.blocks, done.left_out) == (1, 0)
        assert done.reason == f"the byte budget has no room for {60 - done.anchors} of its anchors"
        assert labels(store) == {f"s:{n}" for n in range(60 - done.anchors, 60)}
        assert done.anchors > 0


def test_nothing_is_dropped_for_what_does_not_come_in(kit: Any, other: Any, tmp_path: Path) -> None:
    with kit.open() as store:
        kit.anchored(store, kit.ids(60), "session:long")
        store.export(tmp_path / "all.tar")
    with other.open(max_bytes=500_000) as store:
        other.commit(store, kit.ids(10, seed=9))
        done = store.import_(tmp_path / "all.tar")
        assert (done.blocks, done.left_out) == (0, 60)
        assert other.good_blocks(store, kit.ids(10, seed=9)) == 10


def test_blocks_that_no_anchor_of_the_archive_needs_come_last(
    kit: Any, other: Any, tmp_path: Path
) -> None:
    with kit.open() as store:
        kit.commit(store, kit.ids(12, seed=1))
        kit.anchored(store, kit.ids(4, seed=2), "session:a")
        store.export(tmp_path / "all.tar")
    with other.open(max_bytes=350_000) as store:
        done = store.import_(tmp_path / "all.tar")
        assert (done.blocks, done.left_out, done.anchors) == (4, 12, 1)
        assert done.reason == "the byte budget has no room for 12 of its blocks"
        assert other.good_blocks(store, kit.ids(4, seed=2)) == 4
    with other.open(max_bytes=1 << 20) as store:
        assert store.import_(tmp_path / "all.tar").blocks == 12


def test_what_others_store_meanwhile_stays_and_the_rest_is_left_out(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt_and_sessions(kit, tmp_path / "all.tar")
    store, choose = other.open(max_bytes=650_000), choice.choose

    def slow(*args: Any) -> Any:
        chosen = choose(*args)
        assert chosen.is_all
        other.anchored(store, kit.ids(30, seed=9), "session:meanwhile")
        return chosen

    monkeypatch.setattr("ced_kvstore.unpack.choose", slow)
    done = store.import_(tmp_path / "all.tar")
    assert 0 < done.left_out < 30
    assert f"no room for {done.left_out} of its blocks without dropping" in done.reason
    assert other.good_blocks(store, kit.ids(30, seed=9)) == 30
    assert "session:meanwhile" in labels(store)
    assert store.verify() == []


FORK = st.tuples(st.integers(0, 6), st.integers(1, 5), st.sampled_from(["none", "plain", "pinned"]))
"""Blocks shared with others, blocks of its own, and how its end is named."""


def fill(kit: Any, store: Any, forks: list[Any], first_seed: int) -> list[list[int]]:
    """Store these paths; return those with a name."""
    named = []
    for seed, (shared, more, kind) in enumerate(forks, start=first_seed):
        ids = kit.ids(shared) + kit.ids(more, seed=seed)
        anchor = Anchor(store.hashes(ids)[-1], f"s:{seed}", pinned=kind == "pinned")
        snapshots = {anchor.block_hash: b"w" * 5000} if seed % 2 else {}
        kit.commit(store, ids, anchors=[anchor] if kind != "none" else [], snapshots=snapshots)
        if kind != "none":
            named.append(ids)
    return named


@settings(max_examples=10, deadline=None, suppress_health_check=[*HealthCheck])
@given(
    forks=st.lists(FORK, min_size=1, max_size=5),
    own=st.lists(FORK, max_size=3),
    budget=st.integers(300_000, 800_000),
)
def test_an_import_keeps_its_promises_with_any_budget(
    kit: Any,
    tmp_path_factory: pytest.TempPathFactory,
    forks: list[Any],
    own: list[Any],
    budget: int,
) -> None:
    base = tmp_path_factory.mktemp("import")
    with kit.open(directory=base / "source") as store:
        fill(kit, store, forks, 1)
        in_all = store.export(base / "all.tar")
    with kit.open(directory=base / "copy", max_bytes=budget) as store:
        named = fill(kit, store, own, 11)
        names, before, needed_before = store.anchors(), blocks(store), needed(store)
        named = [ids for ids in named if needed_before.issuperset(store.hashes(ids))]
        done = store.import_(base / "all.tar")
        assert all(anchor in store.anchors() for anchor in names)
        assert all(kit.good_blocks(store, ids) == len(ids) // 128 for ids in named)
        assert needed_before <= blocks(store)
        assert store.stats().bytes_on_disk <= budget
        assert store.verify() == []
        came = blocks(store) - before
        assert came <= needed(store) or (done.left_out, done.reason) == (0, None)
        assert done.blocks + done.skipped + done.left_out == in_all.blocks
        if len(before) * 9000 + in_all.blocks * 9000 + 350_000 < budget:
            assert (done.left_out, done.snapshots) == (0, in_all.snapshots)
            assert before <= blocks(store)
        again = store.import_(base / "all.tar")
        # What the index did not take after all may let one more in.
        assert again.left_out <= done.left_out
        assert again.blocks == 0 or done.left_out
        assert needed_before <= blocks(store)
