"""Records that somebody made to do harm, with sums that fit: a rebuild takes none of them for what
it is not, and the store goes on with its own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_doors import change_all, look_through, modest

from ced_kvstore.hashing import Fingerprint, block_hash, token_bytes
from ced_kvstore.record import ALIGN, Header, Kind, checksum

EDGES = [0, 1, 127, 128, 4095, 1 << 20, (1 << 31) - 1, (1 << 32) - 1]
WHOLE = st.sampled_from(EDGES)
STAMPS = st.sampled_from([*EDGES, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
KEYS = st.integers(0, 5)
"""0 stands for the root, 5 for no block, any other number for the n-th block."""
PLAIN = (
    st.none() | st.booleans() | WHOLE | st.floats() | st.text(max_size=5) | st.binary(max_size=33)
)
ANY = st.recursive(
    PLAIN,
    lambda each: st.lists(each, max_size=5) | st.dictionaries(PLAIN, each, max_size=2),
    max_leaves=8,
)
PAYLOADS = ANY.map(msgpack.packb) | st.binary(max_size=9000) | st.just(b"\x91" * 3000)
RECORDS = st.tuples(
    st.sampled_from([*Kind, 0, 6, 65535]), KEYS, KEYS, WHOLE, STAMPS, PAYLOADS, st.none() | WHOLE
)
Row = tuple[int, int, int, int, int, bytes, int | None]


class Folder:
    """A small store to whose segment records are added by hand, again and again."""

    def __init__(self, kit: Any) -> None:
        self.kit, self.ids = kit, kit.ids(4)
        kit.fill()
        with kit.open() as store:
            self.keys = [store.root, *store.hashes(self.ids), b"?" * 32]
        self.digest = Fingerprint.of(kit.fingerprint, kit.streams).digest
        (self.segment,) = kit.segments()
        self.raw = self.segment.read_bytes()
        self.pristine = shutil.copytree(kit.directory, kit.directory.with_name("pristine"))

    def record(self, row: Row) -> bytes:
        kind, key, parent, position, stamp, payload, length = row
        if kind == Kind.SNAPSHOT and key == 4:
            # Nothing in the store says what a snapshot should be.
            key = 5
        head = Header(
            kind,
            len(payload) if length is None else length,
            position,
            stamp,
            self.keys[key],
            self.keys[parent],
            b"f" * 16,
            checksum([payload]),
        ).pack()
        return head + payload + bytes(-len(head + payload) % ALIGN)

    def endure(self, rows: Sequence[Row]) -> None:
        """Add them, and lose the index."""
        kit, directory = self.kit, self.kit.directory
        for backwards in (False, True):
            shutil.rmtree(directory)
            shutil.copytree(self.pristine, directory)
            shutil.rmtree(directory / "index")
            self.segment.write_bytes(self.raw + b"".join(map(self.record, rows)))
            with modest(), kit.open(map_bytes=1 << 20) as store:
                assert (store.notice, store.read_only) == (None, False)
                removed = any(row[0] == Kind.REMOVED for row in rows)
                assert look_through(kit, store, self.ids) == 4 or removed
                with store._core.read() as tables:
                    assert set(tables.fingerprints()) == {self.digest}
                change_all(kit, store, self.ids, directory.with_name("a"), backwards=backwards)
                assert kit.good_blocks(store, self.ids) == 4
                assert store.verify() == []
                assert (store.notice, store.read_only) == (None, False)
            names = {path.name for path in directory.parent.iterdir()}
            assert names - {"a"} == {"kv", "pristine"}


@pytest.fixture
def folder(kit: Any) -> Folder:
    return Folder(kit)


def packed(kind: Kind, value: object, *, key: int = 4, **fields: Any) -> Row:
    stamp = fields.get("stamp", 9)
    raw = value if isinstance(value, bytes) else msgpack.packb(value)
    return kind, key, fields.get("parent", 3), fields.get("position", 0), stamp, raw, None


BY_HAND: dict[str, Row] = {
    "a label that is none": packed(Kind.ANCHOR, [7, "kind", False, 1.0, 512]),
    "a label that is too much": packed(Kind.ANCHOR, ["x" * 70_000, "kind", False, 1.0, 512]),
    "more than an anchor": packed(Kind.ANCHOR, ["x", "kind", False, 1.0, 512, 1]),
    "lists without end": packed(Kind.ANCHOR, b"\x91" * 3000),
    "a removal of numbers": packed(Kind.REMOVED, [[1, 2], [[3, 4]]]),
    "a removal of lists": packed(Kind.REMOVED, [[[1]], [[[1], "x"]]]),
    "a removal of nothing": packed(Kind.REMOVED, [7, None]),
    "a removal of text": packed(Kind.REMOVED, ["session", "session"]),
    "fields that are none": packed(Kind.FINGERPRINT, [1, 2, 3], key=5),
    "fields of another hash": packed(Kind.FINGERPRINT, {"family": "ced_llama"}, key=5),
    "fields in fields": packed(Kind.FINGERPRINT, {"a": {"b": [1]}, 5: None}, key=5),
    "a stamp that none can follow": packed(Kind.ANCHOR, ["x"], stamp=(1 << 64) - 1),
    "a block of other ids": packed(Kind.BLOCK, b"i" * 4081, key=2, parent=1, position=128),
    "a block before itself": packed(Kind.BLOCK, b"i" * 4081, key=5, parent=5, position=128),
    "a block without rows": packed(Kind.BLOCK, b"", key=2, parent=1, position=128),
    "a snapshot of no block": packed(Kind.SNAPSHOT, b"w" * 9000, key=5),
    "a record of no kind": (77, 4, 3, 0, 9, b"?", None),
    "a record of 4 GiB": (Kind.SNAPSHOT, 5, 5, 0, 9, b"?", (1 << 32) - 1),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_forged_record_does_no_harm(folder: Folder, name: str) -> None:
    folder.endure([BY_HAND[name]])


@pytest.mark.parametrize("above", [-1, 0, 1, 1 << 32, 1 << 63])
def test_a_forged_stamp_costs_nothing_that_is_stored_after_it(folder: Folder, above: int) -> None:
    kit, index = folder.kit, folder.kit.directory / "index"
    forged = packed(Kind.ANCHOR, ["x", "kind", False, 1.0, 512], stamp=(1 << 62) + above)
    folder.segment.write_bytes(folder.raw + folder.record(forged))
    for seed in (1, 2):
        shutil.rmtree(index)
        with kit.open() as store:
            assert kit.commit(store, kit.ids(2, seed=seed)).blocks == 2
    shutil.rmtree(index)
    with kit.open() as store:
        assert kit.good_blocks(store, folder.ids) == 4
        assert [kit.good_blocks(store, kit.ids(2, seed=seed)) for seed in (1, 2)] == [2, 2]
        assert store.verify() == []


def test_a_first_block_that_no_root_leads_to_is_passed_over(folder: Folder) -> None:
    kit, parent = folder.kit, b"?" * 32
    payload = token_bytes(kit.ids(1)) + bytes(1003 + 517 + 2049)
    key = block_hash(parent, payload[:512])
    short = folder.digest[:16]
    head = Header(Kind.BLOCK, len(payload), 0, 9, key, parent, short, checksum([payload])).pack()
    record = head + payload + bytes(-len(head + payload) % ALIGN)
    folder.segment.write_bytes(folder.raw + record)
    shutil.rmtree(kit.directory / "index")
    with kit.open() as store:
        assert store.stats().blocks == kit.good_blocks(store, folder.ids) == 4
        assert store.verify() == []


MANY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@MANY
@given(rows=st.lists(RECORDS, min_size=1, max_size=4))
def test_hostile_records_do_no_harm(folder: Folder, rows: list[Row]) -> None:
    folder.endure(rows)
