"""Rows of the index that cannot be the store's, or that contradict one another.

`verify` finds them, and has the index built anew from the segments, with everything in it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from ced_kvstore import Anchor, Store, anchor_row
from ced_kvstore.record import Place
from ced_kvstore.rows import Tables

Change = Callable[[Tables, tuple[bytes, ...]], object]


def write(store: Store, change: Change, ids: list[int]) -> None:
    index = store._core._index
    assert index is not None
    index.write(lambda tables: change(tables, store.hashes(ids)))


def check_whole(kit: Any, store: Store, ids: list[int]) -> None:
    """Everything that `Kit.fill` stores is there."""
    assert (store.notice, store.read_only) == (None, False)
    assert store.verify() == []
    assert kit.good_blocks(store, ids) == 4
    assert store.read_snapshot(store.hashes(ids)[-1]) == b"w" * 4000
    assert sorted(anchor.label for anchor in store.anchors()) == ["session:a", "warm"]


NO_ROWS: dict[str, tuple[str, bytes | None, bytes]] = {
    "a place of no kind": ("places", struct.pack(">IQ", 1, 1 << 40), b"\x09\0\0\0\0"),
    "a place of half a key": ("places", struct.pack(">IQ", 1, 1 << 40), b"\x01\0\0\0\0half"),
    "a short block": ("blocks", None, b"short"),
    "a block under half a hash": ("blocks", b"half", bytes(69)),
    "an anchor that is none": ("anchors", b"k" * 32 + b"a" * 16, b"\xc1"),
    "fields that are none": ("fingerprints", b"z" * 32, b"\xc1"),
    "fields of another digest": ("fingerprints", b"z" * 32, b"\x92\x80\x93\x01\x02\x03"),
    "a short snapshot": ("snapshots", None, b"short"),
    "a short use": ("heat", b"h" * 32, b"x"),
    "a short end": ("gone", b"g" * 32, b"x"),
    "a stamp that none can follow": ("meta", b"stamp", b"\xff" * 8),
    "a number that no segment can have": ("meta", b"segment", b"\xff" * 5),
}


@pytest.mark.parametrize("name", NO_ROWS)
def test_a_row_that_is_not_one_is_found_and_heals(kit: Any, name: str) -> None:
    table, key, value = NO_ROWS[name]
    kit.fill()
    ids = kit.ids(4)
    with kit.open() as store:
        write(store, lambda tables, hashes: tables._put(table, key or hashes[2], value), ids)
    with kit.open() as store:
        (found,) = store.verify()
        assert (found.kind, found.fixed) == ("index", False)
        assert not store.read_only
        assert "`kv verify --fix`" in str(store.notice)
        (mended,) = store.verify(fix=True)
        assert (mended.kind, mended.fixed) == ("index", True)
        assert "built anew" in mended.detail
    with kit.open() as store:
        check_whole(kit, store, ids)
        assert kit.commit(store, kit.ids(2, seed=1)).reason is None


def test_a_row_that_is_not_one_ends_nothing_else(kit: Any) -> None:
    kit.fill()
    store, ids, other = kit.open(), kit.ids(4), kit.ids(2, seed=1)
    write(store, lambda tables, hashes: tables._put("blocks", hashes[2], b"short"), ids)
    assert store.match(ids).reason == "disabled"
    assert kit.commit(store, ids).reason == "disabled"
    assert not store.read_only
    assert store.notice is not None
    assert store.stats().notice == store.notice
    assert kit.commit(store, other).blocks == kit.good_blocks(store, other) == 2


@pytest.mark.slow
def test_an_index_to_be_built_anew_waits_for_those_who_have_it_open(kit: Any, peer: Any) -> None:
    kit.fill()
    other, ids = peer(), kit.ids(4)
    other("store = kit.open()")
    with kit.open() as store:
        write(store, lambda tables, hashes: tables._put("blocks", hashes[2], b"short"), ids)
        store.verify(fix=True)
    with kit.open() as store:
        assert store.read_only
        assert "built anew when no process has it open" in str(store.notice)
        assert kit.good_blocks(store, ids[:128]) == 1
    # What they go on to publish is in the segments.
    assert other("kit.commit(store, kit.ids(2, seed=1)).blocks") == 2
    other("store.close()")
    with kit.open() as store:
        check_whole(kit, store, ids)
        assert kit.good_blocks(store, kit.ids(2, seed=1)) == 2


def drop_place(tables: Tables, hashes: tuple[bytes, ...]) -> None:
    entry = tables.block(hashes[1])
    assert entry is not None
    tables.drop_place(entry.place)


def drop_edge(tables: Tables, hashes: tuple[bytes, ...]) -> None:
    tables._txn.delete(hashes[0], hashes[1], db=tables._t["children"])


def add_edge(tables: Tables, hashes: tuple[bytes, ...]) -> None:
    tables._txn.put(hashes[3], hashes[1], db=tables._t["children"])


def drop_places_of_anchors(tables: Tables, hashes: tuple[bytes, ...]) -> None:
    for _anchor, place in list(tables.anchors()):
        tables.drop_place(place)


def add_snapshot_of_nothing(tables: Tables, hashes: tuple[bytes, ...]) -> None:
    place = tables.snapshot(hashes[3])
    assert place is not None
    tables.put_snapshot(b"?" * 32, place)


def move_snapshot(tables: Tables, hashes: tuple[bytes, ...]) -> None:
    tables._put("snapshots", hashes[3], struct.pack("<IQI", 1, 4096, 4000))


def count_twice(tables: Tables, hashes: tuple[bytes, ...]) -> None:
    (place,) = [place for place, kind, _key in tables.placed() if kind.name == "SNAPSHOT"]
    tables._put("places", struct.pack(">IQ", 1, 1 << 20), b"\x02" + bytes(4) + hashes[3])
    _end, live = tables.segments()[1]
    tables.put_segment(1, 2 << 20, live + place.span)


def shift(tables: Tables, hashes: tuple[bytes, ...]) -> None:
    entry = tables.block(hashes[2])
    assert entry is not None
    tables._put("blocks", hashes[2], entry.pack()[:16] + struct.pack("<I", 384) + entry.pack()[20:])


def end_early(tables: Tables, hashes: tuple[bytes, ...]) -> None:
    _end, live = tables.segments()[1]
    tables.put_segment(1, 8192, live)


@pytest.mark.parametrize(
    "change",
    [
        drop_place,
        drop_edge,
        add_edge,
        drop_places_of_anchors,
        add_snapshot_of_nothing,
        move_snapshot,
        count_twice,
        shift,
        end_early,
    ],
)
def test_rows_that_contradict_one_another_are_found_and_heal(kit: Any, change: Change) -> None:
    kit.fill()
    ids = kit.ids(4)
    with kit.open() as store:
        write(store, change, ids)
        assert "index" in {problem.kind for problem in store.verify()}
        mended = store.verify(fix=True)
        assert {(problem.kind, problem.fixed) for problem in mended} == {("index", True)}
        assert all("built anew" in problem.detail for problem in mended)
    with kit.open() as store:
        check_whole(kit, store, ids)


def test_an_index_that_took_much_contradicts_itself_nowhere(kit: Any) -> None:
    store = kit.open(max_bytes=2 << 20)
    for seed in range(30):
        ids = kit.ids(6, seed=seed % 7)
        hashes = store.hashes(ids)
        anchors = [Anchor(hashes[seed % 6], f"session:{seed % 3}", pinned=not seed % 11)]
        kit.commit(store, ids, anchors=anchors, snapshots={hashes[3]: bytes(3000)})
        if seed % 5 == 4:
            store.quarantine(hashes[2:3])
            store.remove(f"session:{seed % 3}", purge=bool(seed % 2))
    store.gc()
    assert {problem.kind for problem in store.verify()} <= {"corrupt"}


def test_the_place_of_a_lost_segment_is_no_contradiction(kit: Any) -> None:
    kit.fill()
    (segment,) = kit.segments()
    with segment.open("r+b") as file:
        file.truncate(kit.block_offset(segment, 2) + 4000)
    with kit.open() as store:
        assert not any("built anew" in problem.detail for problem in store.verify(fix=True))
        assert store.verify() == []
        assert store.match(kit.ids(4)).blocks == 2


def test_the_place_that_an_anchor_names_is_looked_at(kit: Any) -> None:
    kit.fill()
    ids, elsewhere = kit.ids(4), Place(7, 4096, 100)
    with kit.open() as store:

        def change(tables: Tables, hashes: tuple[bytes, ...]) -> None:
            anchor = next(a for a, _place in tables.anchors(hashes[3]))
            tables._put("anchors", anchor_row.key(anchor), anchor_row.row(anchor, elsewhere))

        write(store, change, ids)
        assert store.du()
        assert "index" in {problem.kind for problem in store.verify()}


def test_bytes_that_are_counted_wrongly_are_told_and_counted_anew(kit: Any) -> None:
    kit.fill()
    ids = kit.ids(4)

    def miscount(tables: Tables, hashes: tuple[bytes, ...]) -> None:
        end, live = tables.segments()[1]
        tables.put_segment(1, end, live - 8192)

    with kit.open() as store:
        write(store, miscount, ids)
        (found,) = store.verify()
        assert (found.kind, found.where, found.fixed) == ("index", "000001.kvs+0", False)
        assert "counts other bytes" in found.detail
        assert [problem.fixed for problem in store.verify(fix=True)] == [True]
        check_whole(kit, store, ids)
