"""Export and import: what one store holds comes into another one whole, and nothing else does."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load
from store_makers import forked

from ced_kvstore import Anchor, StoreError, Stream, chunk


def holdings(store: Any) -> tuple[Any, ...]:
    stats = store.stats()
    return stats.blocks, stats.snapshots, sorted(map(repr, store.anchors()))


@pytest.mark.parametrize("chunk_bytes", [64 << 20, 9000, 1])
def test_everything_comes_into_an_empty_store(
    kit: Any, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(chunk, "CHUNK_BYTES", chunk_bytes)
    store, copy = forked(kit), other.open()
    done = store.export(tmp_path / "all.tar")
    assert (done.blocks, done.snapshots, done.anchors, done.reason) == (9, 3, 5, None)
    assert done.bytes == (tmp_path / "all.tar").stat().st_size
    found = copy.import_(tmp_path / "all.tar")
    assert (found.blocks, found.skipped, found.left_out, found.reason) == (9, 0, 0, None)
    assert (found.snapshots, found.anchors) == (3, 5)
    assert holdings(copy) == holdings(store)
    for ids in (kit.ids(6), kit.ids(2) + kit.ids(3, seed=4)):
        assert other.good_blocks(copy, ids) == len(ids) // 128
        key = copy.hashes(ids)[-1]
        assert copy.read_snapshot(key) == store.read_snapshot(key) is not None
    assert copy.verify() == []
    # Again: nothing is written, and the copy's archive has the same bytes.
    size = copy.stats().bytes_live
    again = copy.import_(tmp_path / "all.tar")
    assert (again.blocks, again.skipped, again.bytes, again.reason) == (0, 9, 0, None)
    assert copy.stats().bytes_live == size
    copy.export(tmp_path / "copy.tar")
    assert (tmp_path / "copy.tar").read_bytes() == (tmp_path / "all.tar").read_bytes()
    # What came in outlives the index, as everything does.
    copy.close()
    (other.directory / "index" / "data.mdb").unlink()
    assert holdings(other.open()) == holdings(store)


def test_a_label_takes_its_path_and_no_other_name(kit: Any, other: Any, tmp_path: Path) -> None:
    store, copy = forked(kit), other.open()
    done = store.export(tmp_path / "b.tar", ["session:b"])
    assert (done.blocks, done.anchors) == (5, 2)
    assert b"session:a" not in (tmp_path / "b.tar").read_bytes().replace(b"session:a" * 50, b"")
    copy.import_(tmp_path / "b.tar")
    assert {anchor.label for anchor in copy.anchors()} == {"session:b"}
    assert other.good_blocks(copy, kit.ids(2) + kit.ids(3, seed=4)) == 5
    assert copy.match(kit.ids(6)).blocks == 2
    # A block takes what is before it, and the anchors at it.
    done = store.export(tmp_path / "block.tar", [store.hashes(kit.ids(6))[3]])
    assert (done.blocks, done.anchors, done.snapshots) == (4, 0, 1)
    assert store.export(tmp_path / "short.tar", "session:short").blocks == 0
    assert copy.import_(tmp_path / "short.tar").anchors == 1
    for target in ("session:c", "", b"\7" * 32):
        with pytest.raises(StoreError, match="nothing was exported"):
            store.export(tmp_path / "none.tar", [target])
    assert not (tmp_path / "none.tar").exists()


def test_what_is_there_stays_as_it_is(kit: Any, other: Any, tmp_path: Path) -> None:
    store, copy = forked(kit), other.open()
    store.export(tmp_path / "all.tar")
    ids = kit.ids(4)
    mine = Anchor(copy.hashes(ids)[1], "session:a", "warm", created=9.0, n_tokens=256)
    other.commit(copy, ids, anchors=[mine], snapshots={mine.block_hash: b"mine"})
    found = copy.import_(tmp_path / "all.tar")
    assert (found.blocks, found.skipped, found.anchors, found.reason) == (5, 4, 5, None)
    assert mine in copy.anchors()
    assert copy.read_snapshot(mine.block_hash) == b"mine"
    assert other.good_blocks(copy, kit.ids(6)) == 6
    assert copy.verify() == []


def test_fingerprints_keep_apart(kit: Any, other: Any, tmp_path: Path) -> None:
    store = forked(kit)
    thin = {"fingerprint": {"family": "b"}, "streams": [Stream("ids", 70), Stream("__x__", 1)]}
    second = kit.open(**thin)
    rows = {"ids": b"r" * 140, "__x__": b"xy"}
    second.commit(kit.ids(2), first_block=0, rows=rows)
    assert store.export(tmp_path / "all.tar").blocks == 11
    # A store that was opened for its names alone takes them all the same.
    names = other.open(fingerprint={}, streams=[Stream("none", 1)])
    assert names.import_(tmp_path / "all.tar").blocks == 11
    buffers = {"ids": bytearray(140), "__x__": bytearray(2)}
    copy = other.open(**thin)
    assert copy.read(copy.match(kit.ids(2)), buffers) == 2
    assert buffers == rows
    assert other.good_blocks(other.open(), kit.ids(6)) == 6
    assert names.verify() == []


def test_any_safetensors_tool_reads_an_archive(kit: Any, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        forked(kit).export(tmp_path / "all.tar")
    finally:
        os.umask(old)
    assert (tmp_path / "all.tar").stat().st_mode & 0o777 == 0o600
    with tarfile.open(tmp_path / "all.tar") as tar:
        assert tar.getnames()[0] == "manifest.json"
        tensors = load(tar.extractfile("000001-blocks.safetensors").read())
        windows = load(tar.extractfile("000002-snapshots.safetensors").read())
    rows, keys = kit.rows(kit.ids(6)), kit.open().hashes(kit.ids(6))
    at = [bytes(key) for key in tensors["keys"]].index(keys[4])
    assert tensors["ids"].shape == (9, 128)
    assert tensors["ids"][at].tolist() == kit.ids(6)[4 * 128 : 5 * 128]
    assert bytes(tensors["parents"][at]) == keys[3]
    for stream in kit.streams:
        size = stream.block_bytes
        assert bytes(tensors[f"rows.{stream.name}"][at]) == rows[stream.name][4 * size : 5 * size]
    assert bytes(windows[keys[5].hex()]) == b"session:a" * 50
