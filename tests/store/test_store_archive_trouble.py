"""Export in bad times: damage, full disks, others at work; and what it takes in memory."""

from __future__ import annotations

import errno
import os
import tarfile
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from store_makers import forked

from ced_kvstore import Files, StoreError, Stream, archive, chunk, manifest
from ced_kvstore.segment import Segments


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


def test_no_more_anchors_are_exported_than_a_manifest_may_name(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copy = forked(kit), other.open()
    store.export(tmp_path / "all.tar")
    with tarfile.open(tmp_path / "all.tar") as tar:
        size = tar.getmember("manifest.json").size
    monkeypatch.setattr(manifest, "MAX_BYTES", size - 1)
    (tmp_path / "all.tar").unlink()
    why = f"the manifest would take {size} bytes, at most {size - 1} are read; export fewer labels"
    with pytest.raises(StoreError, match=why):
        store.export(tmp_path / "all.tar")
    assert not list(tmp_path.glob("*.tar*"))
    monkeypatch.setattr(manifest, "MAX_BYTES", size)
    store.export(tmp_path / "all.tar")
    assert copy.import_(tmp_path / "all.tar").left_out == 0


def test_more_snapshots_than_a_chunk_may_have_are_in_several(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (chunk, manifest):
        monkeypatch.setattr(module, "MAX_SNAPSHOTS", 2)
    store, copy = forked(kit), other.open()
    assert store.export(tmp_path / "all.tar").snapshots == 3
    with tarfile.open(tmp_path / "all.tar") as tar:
        assert sum("snapshots" in name for name in tar.getnames()) == 2
    assert copy.import_(tmp_path / "all.tar").snapshots == 3


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


def test_export_follows_no_link_that_somebody_put_there(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, target = forked(kit), tmp_path / "somebody's"
    target.write_text("keep")
    monkeypatch.setattr(archive.secrets, "token_hex", lambda n: "00")
    (tmp_path / "all.tar.00.part").symlink_to(target)
    with pytest.raises(StoreError, match="nothing was exported"):
        store.export(tmp_path / "all.tar")
    assert target.read_text() == "keep"


def full(*args: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["create", "pwritev", "sync_data"])
def test_a_full_disk_leaves_no_archive(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = forked(kit)
    (tmp_path / "all.tar").write_text("the one before")
    with monkeypatch.context() as broken:
        broken.setattr(Files, step, full)
        with pytest.raises(StoreError, match=r"No space left on device .*; nothing was exported"):
            store.export(tmp_path / "all.tar")
    assert (tmp_path / "all.tar").read_text() == "the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.tar", "kv"]
    assert store.notice is None
    assert kit.commit(store, kit.ids(1, seed=8)).blocks == 1


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
