"""A ruined index is rebuilt from the segments; the rows that come back are the ones stored."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ced_kvstore import Store, Stream
from ced_kvstore.record import Header


def ruin_delete_folder(index: Path) -> None:
    shutil.rmtree(index)


def ruin_delete_file(index: Path) -> None:
    (index / "data.mdb").unlink()


def ruin_empty(index: Path) -> None:
    (index / "data.mdb").write_bytes(b"")


def ruin_truncate(index: Path) -> None:
    data = (index / "data.mdb").read_bytes()
    (index / "data.mdb").write_bytes(data[: len(data) // 2])


def ruin_zero_pages(index: Path) -> None:
    data = bytearray((index / "data.mdb").read_bytes())
    data[3 * 4096 : 9 * 4096] = bytes(6 * 4096)
    (index / "data.mdb").write_bytes(data)


def ruin_zero_all(index: Path) -> None:
    (index / "data.mdb").write_bytes(bytes((index / "data.mdb").stat().st_size))


def ruin_text(index: Path) -> None:
    (index / "data.mdb").write_bytes(b"this is no database " * 1000)


RUINS = [
    ruin_delete_folder,
    ruin_delete_file,
    ruin_empty,
    ruin_truncate,
    ruin_zero_pages,
    ruin_zero_all,
    ruin_text,
]


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("ruin", RUINS)
def test_a_ruined_index_is_rebuilt_from_the_segments(kit: Any, ruin: Any, clean: bool) -> None:
    kit.fill()
    if not clean:
        (kit.directory / "index" / "CHECK").unlink()
    ruin(kit.directory / "index")
    store = kit.open()
    assert (store.notice, store.read_only) == (None, False)
    assert kit.good_blocks(store, kit.ids(4)) == 4
    assert store.read_snapshot(store.hashes(kit.ids(4))[-1]) == b"w" * 4000
    assert sorted((a.label, a.pinned) for a in store.anchors()) == [
        ("session:a", False),
        ("warm", True),
    ]
    assert store.verify() == []
    assert kit.commit(store, kit.ids(6), first_block=4).blocks == 2
    other = kit.open(fingerprint={**kit.fingerprint, "torch": "9"})
    assert other.explain(kit.ids(4)).field == "torch"


def test_an_index_of_another_version_is_rebuilt(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.fill()
    monkeypatch.setattr("ced_kvstore.recover.INDEX_VERSION", 7)
    store = kit.open()
    assert kit.good_blocks(store, kit.ids(4)) == 4
    assert store.verify() == []


@pytest.mark.parametrize("sealed", [True, False])
def test_random_flips_in_the_index_never_give_wrong_rows(kit: Any, sealed: bool) -> None:
    kit.fill()
    store = kit.open()
    for seed in range(1, 4):
        kit.commit(store, kit.ids(5, seed=seed))
    store.close()
    data, check = kit.directory / "index" / "data.mdb", kit.directory / "index" / "CHECK"
    pristine, seal = data.read_bytes(), check.read_bytes()
    rng = random.Random(20)
    for _ in range(12):
        data.write_bytes(pristine)
        check.write_bytes(seal)
        kit.flip(data, rng.randrange(len(pristine)), rng.randrange(8))
        if not sealed:
            check.unlink()
        store = kit.open()
        for seed in range(1, 4):
            good = kit.good_blocks(store, kit.ids(5, seed=seed))
            assert good == 5 or not sealed
        store.close()


def test_a_rebuild_leaves_out_blocks_whose_path_is_damaged(kit: Any) -> None:
    kit.fill(5)
    (segment,) = kit.segments()
    kit.flip(segment, kit.block_offset(segment, 2) + 9)
    shutil.rmtree(kit.directory / "index")
    store = kit.open()
    assert kit.good_blocks(store, kit.ids(5)) == 2
    assert store.stats().blocks == 2
    assert store.verify() == []


def test_a_rebuild_without_a_fingerprint_knows_where_a_path_begins(kit: Any) -> None:
    kit.fill()
    (segment,) = kit.segments()
    for offset in (0, kit.block_offset(segment, 0)):
        kit.flip(segment, offset + 40)
    shutil.rmtree(kit.directory / "index")
    store = kit.open()
    assert store.verify() == []
    assert store.stats().blocks == 0


def test_a_rebuild_reads_past_records_it_cannot_read(kit: Any) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(2))
    kit.commit(store, kit.ids(2, seed=1))
    store.close()
    (segment,) = kit.segments()
    kit.flip(segment, kit.block_offset(segment, 0) + 9)
    shutil.rmtree(kit.directory / "index")
    store = kit.open()
    assert kit.good_blocks(store, kit.ids(2)) == 0
    assert kit.good_blocks(store, kit.ids(2, seed=1)) == 2


@pytest.mark.parametrize("torn", ["the older one", "the newer one"])
def test_of_two_records_of_a_block_the_newest_with_its_ids_counts(kit: Any, torn: str) -> None:
    kit.fill()
    (segment,) = kit.segments()
    older = kit.block_offset(segment, 1)
    if torn == "the older one":
        kit.flip(segment, older + 3000)
    with kit.open() as store:
        if torn == "the older one":
            assert kit.good_blocks(store, kit.ids(4)) == 1
        else:
            store.quarantine(store.hashes(kit.ids(4))[1:2])
        assert kit.commit(store, kit.ids(2)).blocks == 1
    if torn == "the newer one":
        raw = segment.read_bytes()
        kit.flip(segment, raw.rindex(raw[older + 128 : older + 640]) + 9)
    shutil.rmtree(kit.directory / "index")
    with kit.open() as store:
        assert kit.good_blocks(store, kit.ids(4)) == 4
        assert store.verify() == []


def test_a_segment_that_was_never_published_is_unlinked(kit: Any) -> None:
    kit.fill()
    (segment,) = kit.segments()
    stray = segment.with_name("000099.kvs")
    stray.write_bytes(segment.read_bytes()[:8192])
    store = kit.open()
    assert not stray.exists()
    assert kit.good_blocks(store, kit.ids(4)) == 4


def test_a_block_stored_again_after_a_removal_survives_moving_and_a_rebuild(kit: Any) -> None:
    store = kit.open()
    ids, other = kit.ids(3), kit.ids(2, seed=1)
    kit.anchored(store, ids, "session:a")
    store.remove("session:a")
    kit.anchored(store, ids, "session:a")
    kit.anchored(store, other, "session:b")
    store.remove("session:b", purge=True)
    assert kit.good_blocks(store, ids) == 3
    store.close()
    shutil.rmtree(kit.directory / "index")
    store = kit.open()
    assert kit.good_blocks(store, ids) == 3
    assert [anchor.label for anchor in store.anchors()] == ["session:a"]
    assert store.match(other).blocks == 0


def test_foreign_files_among_the_segments_are_left_alone(kit: Any) -> None:
    kit.fill()
    (kit.directory / "seg" / "notes.txt").write_text("mine")
    shutil.rmtree(kit.directory / "index")
    store = kit.open()
    assert kit.good_blocks(store, kit.ids(4)) == 4
    assert (kit.directory / "seg" / "notes.txt").exists()


@pytest.mark.parametrize(
    "name", ["\u00b2.kvs", "1.kvs", "0000001.kvs", "2147483648.kvs", f"{'9' * 200}.kvs"]
)
def test_a_name_that_no_segment_has_is_none_of_ours(kit: Any, name: str) -> None:
    kit.fill()
    (kit.directory / "seg" / name).write_bytes(kit.segments()[0].read_bytes())
    shutil.rmtree(kit.directory / "index")
    store = kit.open()
    assert (store.notice, store.read_only) == (None, False)
    assert kit.good_blocks(store, kit.ids(4)) == 4
    assert store.gc().reason is None
    assert (kit.directory / "seg" / name).exists()
    assert store._core.segments.numbers() == [1]


@settings(max_examples=30, deadline=None)
@given(noise=st.binary(max_size=20_000), at=st.integers(0, 3))
def test_hostile_segments_rebuild_without_an_exception(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    folder = tmp_path_factory.mktemp("hostile") / "kv"
    streams = [Stream("k", 10)]
    with Store.open(folder, fingerprint={}, streams=streams) as store:
        store.commit(list(range(128)), first_block=0, rows={"k": b"0123456789"})
    (segment,) = (folder / "seg").iterdir()
    good = segment.read_bytes()
    pieces = [good[:4096], good[4096:]]
    padded = noise + bytes(-len(noise) % 4096)
    if at == 3:
        # A header that is valid in itself, in front of noise.
        header = Header(5, len(noise), 0, 1, bytes(32), bytes(32), bytes(16), bytes(16))
        padded = header.pack() + padded
        padded += bytes(-len(padded) % 4096)
    pieces.insert(min(at, 2), padded)
    segment.write_bytes(b"".join(pieces))
    shutil.rmtree(folder / "index")
    with Store.open(folder, fingerprint={}, streams=streams) as store:
        assert store.notice is None
        buffer = bytearray(10)
        match = store.match(list(range(128)))
        if store.read(match, {"k": buffer}):
            assert buffer == b"0123456789"
