"""The plan of a restore: each record once, neighbours together, in the order of the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ced_kvstore import Files, Stream
from ced_kvstore.read_plan import BATCH_BYTES, Rows, Span
from ced_kvstore.record import Place, span

SIZES = st.lists(st.integers(1, 200_000), min_size=1, max_size=40)


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, data=st.data())
def test_each_record_is_in_one_span(sizes: list[int], data: st.DataObject) -> None:
    streams = [Stream(f"s{i}", size) for i, size in enumerate(sizes)]
    rows = Rows(streams, {})
    length = 512 + sum(sizes)
    slots = data.draw(
        st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), unique=True, max_size=20)
    )
    lengths = data.draw(st.lists(st.sampled_from([length, length, length + 1]), min_size=20))
    places = {
        index: Place(segment, slot * rows.stride, size)
        for index, ((segment, slot), size) in enumerate(zip(slots, lengths, strict=False))
    }
    spans = rows.plan(places)
    right = {index for index, place in places.items() if place.length == length}
    assert sorted(index for each in spans for index in each.indices) == sorted(right)
    assert spans == sorted(spans, key=lambda each: (each.segment, each.offset))
    for each in spans:
        assert len(each.indices) == 1 or len(each.indices) * rows.stride <= BATCH_BYTES
        for number, index in enumerate(each.indices):
            place = places[index]
            assert (place.segment, place.offset) == (
                each.segment,
                each.offset + number * rows.stride,
            )
    assert [each.indices for each in rows.plan(places, alone=True)] == [
        (index,) for each in spans for index in each.indices
    ]


def test_neighbours_are_read_with_one_call() -> None:
    rows = Rows([Stream("k", 300_000)], {})
    stride = span(512 + 300_000)
    places = {index: Place(1, index * stride, 300_512) for index in range(14)}
    assert rows.plan(places) == [
        Span(1, 0, tuple(range(6))),
        Span(1, 6 * stride, tuple(range(6, 12))),
        Span(1, 12 * stride, (12, 13)),
    ]


def test_one_call_takes_so_many_pieces_at_most() -> None:
    rows = Rows([Stream(f"s{i}", 10) for i in range(60)], {})
    spans = rows.plan({index: Place(1, index * rows.stride, 1112) for index in range(40)})
    assert [len(each.indices) for each in spans] == [16, 16, 8]


def test_rows_go_where_they_belong_and_nowhere_else() -> None:
    a, b = bytearray(b"." * 12), bytearray(b"." * 8)
    rows = Rows(
        [Stream("a", 3), Stream("x", 5), Stream("b", 2)],
        {"a": memoryview(a), "b": memoryview(b)},
    )
    rows.fill(2, memoryview(b"AAAxxxxxBB"))
    assert (a, b) == (b"......AAA...", b"....BB..")
    assert [len(piece) for piece in rows.pieces(1)] == [3, 5, 2]
    rows.pieces(1)[0][:] = b"aaa"
    assert a == b"...aaaAAA..."
    rows.release()
    rows.fill(0, memoryview(b"CCCxxxxxCC"))
    # Only a buffer that nobody refers to can change its size.
    a.append(0)
    assert a.startswith(b"...aaa")


def test_what_is_in_memory_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    fd = os.open(path, os.O_RDONLY)
    pieces = [memoryview(bytearray(n % 11)) for n in range(2100)]
    size = sum(map(len, pieces))
    try:
        if not Files().preadv_cached(fd, [memoryview(bytearray(1))], 0):
            pytest.skip("this file system cannot tell what is in memory")
        assert Files().preadv_cached(fd, pieces, 100)
        assert b"".join(pieces) == path.read_bytes()[100 : 100 + size]
        assert not Files().preadv_cached(fd, pieces, 256 * 64 - size + 1)
    finally:
        os.close(fd)
    assert not Files().preadv_cached(fd, pieces, 100)
