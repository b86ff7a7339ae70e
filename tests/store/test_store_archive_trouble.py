"""Export and import in bad times: damage, full disks, small budgets, others at work."""

from __future__ import annotations

import errno
import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Anchor, Files, StoreError, Stream, archive, chunk, proof
from ced_kvstore.segment import Segments


@pytest.fixture
def other(kit: Any) -> Any:
    """A second, empty folder for a store."""
    made = type(kit)(kit.directory.with_name("other"))
    yield made
    made.close()


def forked(kit: Any) -> Any:
    """A store with two sessions that share two blocks, a pin, snapshots, an anchor at the root."""
    store = kit.open()
    for ids, label in ((kit.ids(6), "session:a"), (kit.ids(2) + kit.ids(3, seed=4), "session:b")):
        hashes = store.hashes(ids)
        anchors = [
            Anchor(hashes[-1], label, "output", created=1000.5, n_tokens=len(ids) + 7),
            Anchor(hashes[1], label, "fork", pinned=label == "session:a", created=3.0),
        ]
        snapshots = {hashes[at]: label.encode() * 50 for at in (1, -1)}
        kit.commit(store, ids, anchors=anchors, snapshots=snapshots)
    kit.commit(store, [], anchors=[Anchor(store.root, "session:short", created=4.0, n_tokens=5)])
    return store


def test_damage_is_left_out_with_what_is_behind(kit: Any, other: Any, tmp_path: Path) -> None:
    store, copy = forked(kit), other.open()
    kit.flip(kit.segments()[0], kit.block_offset(kit.segments()[0], 3) + 700)
    done = store.export(tmp_path / "all.tar")
    assert (done.blocks, done.skipped, done.anchors, done.snapshots) == (6, 3, 4, 2)
    assert done.reason.endswith(": blocks 3, snapshots 1, anchors 1")
    found = copy.import_(tmp_path / "all.tar")
    assert (found.blocks, found.reason) == (6, None)
    assert copy.match(kit.ids(6)).blocks == 3
    assert other.good_blocks(copy, kit.ids(2) + kit.ids(3, seed=4)) == 5
    # What a reader found to be wrong is left out like damage.
    store.quarantine(store.hashes(kit.ids(2))[1:])
    assert store.export(tmp_path / "again.tar").skipped == 8


def test_export_while_others_commit_and_remove(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk, "CHUNK_BYTES", 9000)
    store, copy, stop = forked(kit), other.open(), threading.Event()

    def work() -> None:
        for seed in range(10, 1000):
            if stop.is_set():
                return
            kit.anchored(store, kit.ids(2) + kit.ids(3, seed=seed), f"s:{seed}")
            store.remove(f"s:{seed - 3}", purge=seed % 4 == 0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for at in range(6):
            store.export(tmp_path / f"{at}.tar")
    finally:
        stop.set()
        thread.join()
    for at in range(6):
        assert copy.import_(tmp_path / f"{at}.tar").left_out == 0
    assert other.good_blocks(copy, kit.ids(6)) == 6
    assert copy.stats().blocks > 9
    assert copy.verify() == store.verify() == []


def test_what_goes_after_it_was_chosen_is_left_out(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, select = forked(kit), archive.select

    def slow(*args: Any) -> Any:
        chosen = select(*args)
        # Moves what stays to another segment, too.
        store.remove("session:b", purge=True)
        return chosen

    monkeypatch.setattr(archive, "select", slow)
    done = store.export(tmp_path / "all.tar")
    assert (done.blocks, done.skipped, done.anchors) == (6, 3, 4)


def test_a_record_that_moves_while_it_is_read_is_found_again(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read, moved = forked(kit), Segments.read_payload, []

    def slow(segments: Any, place: Any, *args: Any) -> Any:
        if not moved:
            moved.append(place)
            store.remove("session:b", purge=True)
            assert not segments.path(place.segment).exists()
        return read(segments, place, *args)

    monkeypatch.setattr(Segments, "read_payload", slow)
    assert store.export(tmp_path / "all.tar", ["session:a"]).reason is None
    assert moved


@pytest.mark.parametrize(
    "name", ["kv/all.tar", "kv/seg/000001.kvs", "folder", "pipe", "no/all.tar"]
)
def test_export_writes_files_outside_the_store_only(kit: Any, tmp_path: Path, name: str) -> None:
    store = forked(kit)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match="nothing was exported"):
        store.export(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before
    assert store.verify() == []


def test_an_interrupted_export_leaves_no_archive(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    store = forked(kit)
    with monkeypatch.context() as broken:
        broken.setattr(Files, "sync_data", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.export(tmp_path / "all.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["kv"]


def full(*args: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["open", "pwritev", "sync_data"])
def test_a_full_disk_leaves_no_archive(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = forked(kit)
    (tmp_path / "all.tar").write_text("the one before")
    with monkeypatch.context() as broken:
        plain = Files.open
        broken.setattr(Files, step, full)
        if step == "open":
            broken.setattr(Files, "open", lambda s, p, **o: full() if o else plain(s, p))
        with pytest.raises(StoreError, match="No space left on device; nothing was exported"):
            store.export(tmp_path / "all.tar")
    assert (tmp_path / "all.tar").read_text() == "the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.tar", "kv"]
    assert store.notice is None
    assert kit.commit(store, kit.ids(1, seed=8)).blocks == 1


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


def test_no_more_than_a_chunk_is_in_memory(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk, "CHUNK_BYTES", 1 << 20)
    streams = [Stream("k", 256 << 10)]
    store, copy = kit.open(streams=streams), other.open(streams=streams)
    for seed in range(4):
        store.commit(kit.ids(8, seed=seed), first_block=0, rows={"k": bytes(8 * 256 << 10)})
    for call in (store.export, copy.import_):
        tracemalloc.start()
        call(tmp_path / "all.tar")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 5 << 19, call
    assert copy.stats().blocks == 32


def test_a_file_that_changes_meanwhile_is_refused(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, prove = tmp_path / "all.tar", proof.Opened.prove
    forked(kit).export(path)

    def and_change(opened: Any) -> None:
        prove(opened)
        kit.flip(path, path.stat().st_size // 2)

    monkeypatch.setattr(proof.Opened, "prove", and_change)
    copy = other.open()
    with pytest.raises(StoreError, match="it changed while it was read"):
        copy.import_(path)
    assert copy.stats().blocks == 0
