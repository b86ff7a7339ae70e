"""A restore is byte for byte right wherever records lie, wherever they come from, whoever reads."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_makers import from_memory

from ced_kvstore import Anchor, Files, Stream, read_plan, restore
from ced_kvstore.record import Header, Kind, Record

STRIDE = 8192
"""Bytes of one record of the kit's streams on disk."""


@pytest.fixture(params=["as it is", "memory", "helpers", "disk"])
def source(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where records come from, in spans of at most three."""
    monkeypatch.setattr(read_plan, "BATCH_BYTES", 3 * STRIDE)
    if request.param in ("memory", "helpers"):
        monkeypatch.setattr(Files, "preadv_cached", staticmethod(from_memory))
    if request.param == "disk":
        monkeypatch.setattr(Files, "preadv_cached", staticmethod(lambda *_: False))
    if request.param == "helpers":
        monkeypatch.setattr(restore, "HELP_BYTES", 0)
        monkeypatch.setattr(restore, "idle_processors", lambda: 2)
    return str(request.param)


def test_records_with_others_between_them(kit: Any, source: str) -> None:
    store = kit.open()
    left, right = kit.ids(9), kit.ids(9, seed=1)
    for n in range(1, 10):
        kit.commit(store, left[: n * 128], n - 1)
        if n % 2:
            kit.commit(store, right[: n * 128], max(0, n - 2))
    assert kit.good_blocks(store, left) == 9
    assert kit.good_blocks(store, right) == 9


def test_records_in_several_segments(kit: Any, source: str) -> None:
    store = kit.open(max_bytes=2 << 20)
    kit.commit(store, kit.ids(40))
    assert len(kit.segments()) >= 5
    assert kit.good_blocks(store, kit.ids(40)) == 40


def test_records_that_lie_in_another_order(kit: Any, source: str) -> None:
    store, ids = kit.open(), kit.ids(8)
    kit.commit(store, ids)
    # What is mended is written behind everything else.
    for number in (5, 1, 2):
        store.quarantine([store.hashes(ids)[number]])
        kit.commit(store, ids)
    path = kit.segments()[0]
    assert path.stat().st_size == 4096 + 11 * STRIDE
    for number in (5, 1, 2):
        kit.flip(path, kit.block_offset(path, number))
    assert kit.good_blocks(store, ids) == 8


def test_more_pieces_than_one_call_takes(kit: Any, source: str) -> None:
    streams = [Stream(f"s{i}", 1 + i % 7) for i in range(1200)]
    store = kit.open(streams=streams)
    ids = kit.ids(5)
    rows = {s.name: os.urandom(5 * s.block_bytes) for s in streams}
    assert store.commit(ids, first_block=0, rows=rows).blocks == 5
    buffers = {s.name: bytearray(5 * s.block_bytes) for s in streams}
    assert store.read(store.match(ids), buffers) == 5
    assert buffers == rows


def test_streams_without_a_buffer(kit: Any, source: str) -> None:
    store, ids = kit.open(), kit.ids(8)
    kit.commit(store, ids)
    path = kit.segments()[0]
    # Damage in rows that nobody asked for still counts: the record is not what was written.
    kit.flip(path, kit.block_offset(path, 6) + 640 + 5)
    buffer = bytearray(8 * 517)
    assert store.read(store.match(ids), {"v": buffer}) == 6
    assert buffer[: 6 * 517] == kit.rows(ids)["v"][: 6 * 517]


def test_a_part_of_a_match(kit: Any, source: str) -> None:
    store, ids = kit.open(), kit.ids(12)
    kit.commit(store, ids)
    buffers = {s.name: bytearray(5 * s.block_bytes + 3) for s in kit.streams}
    assert store.read(store.match(ids), buffers, first_block=4, n_blocks=5) == 5
    for s in kit.streams:
        rows = kit.rows(ids, 4)[s.name]
        assert buffers[s.name] == rows[: 5 * s.block_bytes] + bytes(3)


PARTS = {
    "stamp": 16,
    "key": 30,
    "checksum": 104,
    "ids": 128 + 5,
    "first row": 640,
    "last row": 640 + 3568,
    "padding": STRIDE - 1,
}


@pytest.mark.parametrize("part", PARTS)
def test_one_bad_record_in_the_middle(kit: Any, source: str, part: str) -> None:
    store, ids = kit.open(), kit.ids(8)
    kit.commit(store, ids)
    path = kit.segments()[0]
    kit.flip(path, kit.block_offset(path, 4) + PARTS[part], bit=5)
    # Nothing of a record is in its padding.
    good = 8 if part == "padding" else 4
    assert kit.good_blocks(store, ids) == good
    assert store.stats().blocks_bad == (good == 4)
    match = store.match(ids)
    assert (match.blocks, match.reason) == (good, "hit" if good == 8 else "corrupt")
    assert kit.commit(store, ids).blocks == (good == 4)
    assert kit.good_blocks(store, ids) == 8


@pytest.mark.parametrize("cut", [0, 100, 128, 640, 641, 3569 + 639, 3569 + 640, STRIDE - 1])
def test_a_segment_that_ends_too_soon(kit: Any, source: str, cut: int) -> None:
    store, ids = kit.open(), kit.ids(8)
    kit.commit(store, ids)
    path = kit.segments()[0]
    os.truncate(path, kit.block_offset(path, 4) + cut)
    # The last record's rows are whole when only its padding is cut.
    good = 5 if cut >= 3569 + 640 else 4
    assert kit.good_blocks(store, ids) == good
    # The others were found damaged by the same read, so one commit mends all.
    assert store.stats().blocks_bad == 8 - good
    assert kit.commit(store, ids).blocks == 8 - good
    assert kit.good_blocks(store, ids) == 8


def test_two_bad_records_are_found_by_one_read(kit: Any, source: str) -> None:
    store, ids = kit.open(), kit.ids(9)
    kit.commit(store, ids)
    path = kit.segments()[0]
    for number in (3, 7):
        kit.flip(path, kit.block_offset(path, number) + 700)
    assert kit.good_blocks(store, ids) == 3
    assert kit.commit(store, ids).blocks == 2
    assert kit.good_blocks(store, ids) == 9


FORGED = {
    "as it was": {},
    "another kind": {"kind": Kind.SNAPSHOT},
    "another key": {"key": bytes(32)},
    "another fingerprint": {"fingerprint": bytes(16)},
    "other ids": {"pieces": [bytes(512), bytes(3569)]},
    "another length": {"length": 100},
    "fewer rows": {"pieces": [bytes(512), bytes(3568)]},
}


@pytest.mark.parametrize("change", FORGED)
def test_a_whole_record_that_is_another_one(kit: Any, source: str, change: str) -> None:
    store, ids = kit.open(), kit.ids(6)
    kit.commit(store, ids)
    path = kit.segments()[0]
    offset = kit.block_offset(path, 4)
    with path.open("r+b") as file:
        file.seek(offset)
        raw = file.read(STRIDE)
        header = Header.unpack(raw[:128])
        fields = {
            "kind": Kind.BLOCK,
            "key": header.key,
            "parent": header.parent,
            "fingerprint": header.fingerprint,
            "pieces": [raw[128:4209]],
            **FORGED[change],
        }
        length = fields.pop("length", None)
        record = Record(**fields)
        header = record.header(1)
        file.seek(offset)
        file.write(replace(header, length=length or header.length).pack())
        file.write(b"".join(record.pieces))
    # Its sums fit, but it is not the block that was matched.
    assert kit.good_blocks(store, ids) == (6 if change == "as it was" else 4)


def test_a_record_that_is_moved_meanwhile(
    kit: Any, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kit.open(max_bytes=2 << 20)
    ids, other = kit.ids(30), kit.ids(30, seed=1)
    hashes = store.hashes(ids)
    for n in range(1, 31):
        kit.commit(store, ids[: n * 128], n - 1, anchors=[Anchor(hashes[n - 1], "kept")])
        kit.anchored(store, other[: n * 128], "dropped")
    match = store.match(ids)
    before = set(kit.segments())
    real = Files.open

    def moving(self: Files, path: Path, **options: Any) -> int:
        monkeypatch.setattr(Files, "open", real)
        store.remove("dropped", purge=True)
        return real(self, path, **options)

    monkeypatch.setattr(Files, "open", moving)
    assert kit.good_blocks(store, ids, match) == 30
    assert before - set(kit.segments())
    assert store.stats().blocks_bad == 0


def test_a_segment_that_is_gone(kit: Any, source: str) -> None:
    store = kit.open(max_bytes=2 << 20)
    ids = kit.ids(40)
    kit.commit(store, ids)
    kit.segments()[2].unlink()
    good = kit.good_blocks(store, ids)
    assert 8 <= good < 24
    assert store.match(ids).blocks == good
    assert kit.commit(store, ids).blocks == store.stats().blocks_bad == 8
    assert kit.good_blocks(store, ids) == 40


def test_several_threads_read_at_once(kit: Any, source: str) -> None:
    store = kit.open()
    for seed in range(4):
        kit.commit(store, kit.ids(20, seed=seed))
    good: list[int] = []

    def look(seed: int) -> None:
        good.extend(kit.good_blocks(store, kit.ids(20, seed=seed)) for _ in range(5))

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert good == [20] * 20
