"""Import in bad times: full disks, small budgets, others at work, many names and branches."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from store_makers import forked

from ced_kvstore import Anchor, Files, StoreError, anchor_row, chunk, proof, unpack
from ced_kvstore.pins import Pins


def full(*args: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["pwritev", "sync_data", "publish"])
def test_a_full_disk_ends_an_import_with_one_notice(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    forked(kit).export(tmp_path / "all.tar")
    copy = other.open()
    other.anchored(copy, kit.ids(2), "session:c")
    with monkeypatch.context() as broken:
        broken.setattr(Files, step, full)
        found = copy.import_(tmp_path / "all.tar")
    assert (found.blocks, found.reason) == (0, "read_only")
    assert "No space left on device" in copy.notice
    assert copy.import_(tmp_path / "all.tar").reason == "read_only"
    copy.close()
    copy = other.open()
    assert copy.verify() == []
    assert (copy.import_(tmp_path / "all.tar").reason, copy.stats().blocks) == (None, 9)


def test_the_byte_budget_holds(kit: Any, other: Any, tmp_path: Path) -> None:
    store = kit.open()
    for seed in range(40):
        kit.anchored(store, kit.ids(4, seed=seed), f"s:{seed}")
    for family in "abcd":
        thin = kit.open(fingerprint={"family": family})
        thin.commit([], first_block=0, rows={}, anchors=[Anchor(thin.root, "start")])
    store.export(tmp_path / "all.tar")
    copy = other.open(max_bytes=1 << 20)
    found = copy.import_(tmp_path / "all.tar")
    stats = copy.stats()
    assert stats.bytes_on_disk <= 1 << 20
    assert 0 < stats.blocks == 160 - found.left_out < 160
    assert found.anchors == stats.anchors
    # What came in is not pushed out by what came in later.
    assert found.blocks == stats.blocks
    # It ends where the budget does, and says so.
    assert "budget" in found.reason
    assert copy.verify() == []


def test_a_block_that_goes_meanwhile_takes_its_own_snapshot_along(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked(kit).export(tmp_path / "all.tar")
    copy, plain = other.open(), proof.Opened.snapshots
    gone: list[bytes] = []

    def slow(opened: Any, chunk: Any) -> Any:
        found = plain(opened, chunk)
        if copy.stats().blocks == 9:
            gone.append(list(found)[-1])
            copy._core._index.write(lambda tables: tables.drop_block(gone[0], "a test", 0.0))
        return found

    monkeypatch.setattr(proof.Opened, "snapshots", slow)
    found = copy.import_(tmp_path / "all.tar")
    assert (found.left_out, found.snapshots, found.anchors) == (1, 2, 4)
    assert "dropped meanwhile" in found.reason
    assert copy.read_snapshot(gone[0]) is None


def test_many_anchors_at_one_block_are_looked_up_by_name(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ids = kit.open(), kit.ids(1)
    (key,) = store.hashes(ids)
    kit.commit(store, ids, anchors=[Anchor(key, f"s:{n}") for n in range(100)])
    store.export(tmp_path / "all.tar")
    read, plain = [], anchor_row.of_row

    def counted(*args: Any) -> Any:
        read.append(args)
        return plain(*args)

    copy = other.open()
    monkeypatch.setattr(anchor_row, "of_row", counted)
    assert copy.import_(tmp_path / "all.tar").anchors == 100
    assert copy.import_(tmp_path / "all.tar").anchors == 100
    assert len(read) < 10 * 100


def test_an_import_of_many_branches_pins_some_of_them(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk, "CHUNK_BYTES", 1)
    monkeypatch.setattr(unpack, "MOST_PINS", 3)
    store, copy, held = kit.open(), other.open(), []
    for seed in range(6):
        kit.commit(store, kit.ids(2, seed=seed))
    store.export(tmp_path / "all.tar")
    add = Pins.add

    def watched(pins: Pins, key: bytes) -> None:
        add(pins, key)
        held.append(len(pins.own))

    monkeypatch.setattr(Pins, "add", watched)
    assert copy.import_(tmp_path / "all.tar").blocks == 12
    # One more while the end of a path moves on.
    assert max(held) == 4
    assert copy._core.pins.own == set()


def test_a_file_that_changes_meanwhile_is_refused(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, prove = tmp_path / "all.tar", proof.Opened.prove
    forked(kit).export(path)

    def and_change(opened: Any) -> Any:
        found = prove(opened)
        kit.flip(path, path.stat().st_size // 2)
        return found

    monkeypatch.setattr(proof.Opened, "prove", and_change)
    copy = other.open()
    with pytest.raises(StoreError, match="it changed while it was read"):
        copy.import_(path)
    assert copy.stats().blocks == 0


def test_nothing_is_held_after_an_import(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk, "CHUNK_BYTES", 9000)
    store, copy = kit.open(), other.open()
    for seed in range(3):
        kit.commit(store, kit.ids(3, seed=seed))
    store.export(tmp_path / "all.tar")
    assert copy.import_(tmp_path / "all.tar").blocks == 9
    copy.evict(0)
    assert copy.stats().blocks == 0
