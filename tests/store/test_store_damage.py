"""Whatever happens to the bytes of a segment: a miss with a reason, never wrong rows."""

from __future__ import annotations

import dataclasses
import errno
import os
from typing import Any

import pytest
from store_race import hold

from ced_kvstore import Files, locks
from ced_kvstore.record import HEADER_BYTES, Header, Kind, checksum, span
from ced_kvstore.rows import Tables

BLOCK_PAYLOAD = 512 + 1003 + 517 + 2049
SPAN = span(BLOCK_PAYLOAD)


PLACES = [
    ("the key", 24),
    ("header end", HEADER_BYTES - 1),
    ("first id", HEADER_BYTES),
    ("last id", HEADER_BYTES + 511),
    ("a seam between streams", HEADER_BYTES + 512 + 1003),
    ("last row byte", HEADER_BYTES + BLOCK_PAYLOAD - 1),
]


@pytest.mark.parametrize("offset", [o for _, o in PLACES], ids=[name for name, _ in PLACES])
def test_a_flipped_bit_is_a_miss_from_its_block_on(kit: Any, offset: int) -> None:
    kit.fill()
    (segment,) = kit.segments()
    kit.flip(segment, kit.block_offset(segment, 2) + offset, bit=offset % 8)
    store = kit.open()
    ids = kit.ids(4)
    assert kit.good_blocks(store, ids) == 2
    match = store.match(ids)
    assert (match.blocks, match.reason) == (2, "corrupt")
    assert store.explain(ids).reason == "corrupt"
    assert store.verify()
    # Encoding it again mends it, and what came after it is found again.
    assert kit.commit(store, ids[: 3 * 128], 2).blocks == 1
    assert kit.good_blocks(store, ids) == 4
    assert store.verify() == []


def test_damage_is_remembered_over_a_restart(kit: Any) -> None:
    kit.fill()
    (segment,) = kit.segments()
    kit.flip(segment, kit.block_offset(segment, 1) + 3000)
    store = kit.open()
    kit.good_blocks(store, kit.ids(4))
    store.close()
    assert kit.open().match(kit.ids(4)).reason == "corrupt"


def test_a_record_with_other_ids_under_the_same_hash_is_a_miss(kit: Any) -> None:
    """What a collision of the hash would look like: everything fits but the ids."""
    kit.fill()
    (segment,) = kit.segments()
    offset, raw = kit.block_offset(segment, 1), bytearray(segment.read_bytes())
    header = Header.unpack(raw[offset : offset + HEADER_BYTES])
    payload = raw[offset + HEADER_BYTES : offset + HEADER_BYTES + header.length]
    payload[0] ^= 1
    forged = dataclasses.replace(header, checksum=checksum([payload])).pack() + payload
    raw[offset : offset + len(forged)] = forged
    segment.write_bytes(raw)
    store = kit.open()
    assert kit.good_blocks(store, kit.ids(4)) == 1
    assert store.match(kit.ids(4)).reason == "corrupt"


@pytest.mark.parametrize("fix", [False, True])
def test_verify_names_the_record_and_mends(kit: Any, fix: bool) -> None:
    kit.fill()
    (segment,) = kit.segments()
    offset = kit.block_offset(segment, 2)
    kit.flip(segment, offset + 3000)
    store = kit.open()
    (problem,) = store.verify(fix=fix)
    assert (problem.kind, problem.fixed) == ("corrupt", fix)
    assert problem.where == f"{segment.name}+{offset}"
    assert "checksum" in problem.detail
    assert bool(store.verify()) is not fix
    if fix:
        match = store.match(kit.ids(4))
        assert (match.blocks, match.reason) == (2, "evicted")
        assert store.stats().blocks == 2


def test_a_damaged_snapshot_is_none(kit: Any) -> None:
    kit.fill()
    store = kit.open()
    key = store.hashes(kit.ids(4))[-1]
    assert store.read_snapshot(key) == b"w" * 4000
    (segment,) = kit.segments()
    raw = segment.read_bytes()
    kit.flip(segment, raw.index(b"w" * 4000) + 1234, bit=3)
    assert store.read_snapshot(key) is None
    assert kit.good_blocks(store, kit.ids(4)) == 4


def test_a_record_that_cannot_be_read_while_others_are_moved_is_lost_alone(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ids = kit.open(), kit.ids(3, seed=1)
    kit.anchored(store, kit.ids(1), "session:gone")
    kit.anchored(store, ids, "session:kept")
    store.remove("session:gone")
    (segment,) = kit.segments()
    bad_sector, plain = kit.block_offset(segment, 2), Files.preadv

    def read(files: Files, fd: int, pieces: Any, offset: int) -> int:
        if offset == bad_sector:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(files, fd, pieces, offset)

    with monkeypatch.context() as broken:
        broken.setattr(Files, "preadv", read)
        assert store.gc().segments == 1
    assert (store.notice, store.read_only) == (None, False)
    match = store.match(ids)
    assert (kit.good_blocks(store, ids, match), match.reason) == (2, "corrupt")
    assert kit.commit(store, ids).blocks == 1
    assert kit.good_blocks(store, ids) == 3


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("keep", [0, SPAN + 4000])
def test_a_truncated_segment_keeps_what_is_left(kit: Any, keep: int, running: bool) -> None:
    kit.fill()
    store = kit.open() if running else None
    (segment,) = kit.segments()
    first = kit.block_offset(segment, 0)
    with segment.open("r+b") as file:
        file.truncate(first + keep if keep else 0)
    store = store or kit.open()
    ids = kit.ids(4)
    assert kit.good_blocks(store, ids) == keep // SPAN
    assert store.match(ids).reason == "corrupt"
    assert kit.commit(store, ids).reason is None
    assert kit.good_blocks(store, ids) == 4


@pytest.mark.parametrize("running", [False, True])
def test_a_missing_segment_is_a_miss_and_filled_again(kit: Any, running: bool) -> None:
    kit.fill()
    store = kit.open() if running else None
    kit.segments()[0].unlink()
    store = store or kit.open()
    ids = kit.ids(4)
    assert kit.good_blocks(store, ids) == 0
    assert store.match(ids).reason == "corrupt"
    assert kit.commit(store, ids).blocks == 4
    assert kit.good_blocks(store, ids) == 4
    # The anchors that were in the file are lost, too.
    assert bool(store.verify(fix=True)) is running
    assert store.verify() == []
    assert kit.good_blocks(store, ids) == 4


def test_nothing_is_committed_into_a_segment_that_is_gone(kit: Any) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(1))
    (segment,) = kit.segments()
    segment.unlink()
    assert kit.commit(store, kit.ids(2, seed=1)).blocks == 2
    assert kit.good_blocks(store, kit.ids(2, seed=1)) == 2


def test_a_record_cut_within_its_padding_is_lost_and_not_overwritten(kit: Any) -> None:
    """The record is whole, its place is not: the next append would begin inside it."""
    store = kit.open()
    ids = kit.ids(1)
    kit.commit(store, ids)
    store.close()
    (segment,) = kit.segments()
    with segment.open("r+b") as file:
        file.truncate(212)
    store = kit.open()
    store.verify(fix=True)
    assert store.verify() == []
    kit.commit(store, ids)
    assert store.verify() == []
    assert store.match(ids).blocks == 1


@pytest.mark.parametrize("mender", ["this one", "this one, without the lease", "the other"])
def test_no_place_below_an_indexed_end_is_written_again(
    kit: Any, peer: Any, monkeypatch: pytest.MonkeyPatch, mender: str
) -> None:
    """Who remembers a place as damaged would take what is written there next for damaged, too."""
    store, other, ids = kit.open(), peer(), kit.ids(4)
    kit.commit(store, ids)
    other("store = kit.open()")
    (segment,) = kit.segments()
    offset = kit.block_offset(segment, 2)
    with segment.open("r+b") as file:
        file.truncate(offset)
    assert kit.good_blocks(store, ids) == 2
    assert other("len(store.verify(fix=True)) > 0 and store.verify() == []")
    lease = hold(kit.directory / "LEASE") if "without" in mender else None
    monkeypatch.setattr(locks, "LEASE_WAIT_S", 0.03)
    if mender == "the other":
        assert other("kit.commit(store, kit.ids(4)).blocks") == 2
    else:
        assert kit.commit(store, ids).blocks == 2
    if lease is not None:
        os.close(lease)
    assert kit.good_blocks(store, ids) == 4
    kit.commit(store, kit.ids(1, seed=1))
    assert other("kit.good_blocks(store, kit.ids(4))") == 4
    assert store.verify() == []
    assert not segment.exists()


def test_a_hole_is_found_and_what_is_behind_it_goes(kit: Any) -> None:
    kit.fill()
    store = kit.open()
    key = store.hashes(kit.ids(4))[1]
    store._core._index.write(lambda tables: tables.drop_block(key, "a fault of ours", 0.0))
    (problem,) = store.verify()
    assert (problem.kind, problem.fixed) == ("hole", False)
    assert [found.kind for found in store.verify(fix=True)] == ["hole"]
    assert store.verify() == []
    assert store.stats().blocks == 1
    assert kit.good_blocks(store, kit.ids(4)) == 1


def test_a_whole_record_of_another_block_is_told(kit: Any) -> None:
    kit.fill()
    store, ids = kit.open(), kit.ids(4)
    _, one, other, _ = store.hashes(ids)

    def exchange(tables: Tables) -> None:
        entries = [tables.block(key) for key in (one, other)]
        places = [entry.place for entry in entries if entry is not None]
        for key, entry, place in zip((one, other), entries, reversed(places), strict=True):
            tables._put("blocks", key, dataclasses.replace(entry, place=place).pack())
            tables.drop_place(place)
            tables.add_place(place, Kind.BLOCK, key)

    store._core._index.write(exchange)
    found = store.verify()
    assert {problem.detail for problem in found} == {"another record is in this place"}
    assert [problem.kind for problem in found] == ["corrupt", "corrupt"]
    assert kit.good_blocks(store, ids) == 1
    assert {problem.fixed for problem in store.verify(fix=True)} == {True}
    assert store.verify() == []
