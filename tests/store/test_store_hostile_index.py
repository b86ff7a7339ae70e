"""Rows of the index that somebody made to do harm, under a sum that fits: misses at the worst.

No door raises, hangs, takes memory for a length that a row names, gives a wrong row or touches
anything outside the folder; a new index has everything again.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_doors import change_all, look_through, modest

from ced_kvstore import Files
from ced_kvstore.hashing import Fingerprint
from ced_kvstore.tables import TABLES


class Key(int):
    """Stands for the root (0), the hash of the n-th block, or one that is not stored (5)."""


EDGES = [0, 1, 127, 4095, 4096, 1 << 20, (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1, 1 << 63]
EDGES.append((1 << 64) - 1)


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.sampled_from([edge for edge in EDGES if edge < 1 << bits]) | st.integers(0, 9)


KEYS = st.integers(0, 5).map(Key)
PLACES = st.builds(struct.pack, st.just("<IQI"), whole(32), whole(64), whole(32))
BAD = st.sampled_from([b"\0", b"\1"])
ROWS = st.lists(whole(64), max_size=4)
TEXTS = st.text(max_size=5) | st.binary(max_size=40)
PLAIN = st.none() | st.booleans() | whole(64) | st.floats() | TEXTS
HEATS = st.builds(struct.pack, st.just("<dd"), st.floats(), st.floats())
NAMES = ["version", "stamp", "removal", "segment", "budget", "purge.1", "purge.9"]
SHAPED = {
    "meta": (
        st.sampled_from(NAMES).map(str.encode),
        st.integers(0, 1 << 79).map(lambda number: number.to_bytes(10, "little")),
    ),
    "blocks": (
        KEYS,
        st.tuples(PLACES, whole(32), st.sampled_from([b"\0", b"\1"]), st.just(b"f" * 16), KEYS),
    ),
    "children": (KEYS, KEYS),
    "snapshots": (KEYS, PLACES),
    "anchors": (
        st.tuples(KEYS, st.binary(max_size=16)),
        st.tuples(PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, ROWS | PLAIN).map(msgpack.packb),
    ),
    "fingerprints": (
        KEYS,
        st.tuples(st.dictionaries(PLAIN, PLAIN, max_size=3) | PLAIN, ROWS).map(msgpack.packb),
    ),
    "places": (
        st.builds(struct.pack, st.just(">IQ"), whole(32), whole(64)),
        st.tuples(st.integers(0, 7).map(lambda kind: bytes([kind])), whole(32), KEYS),
    ),
    "segments": (
        whole(32).map(lambda number: number.to_bytes(4, "big")),
        st.builds(struct.pack, st.just("<QQQ"), whole(64), whole(64), whole(64)),
    ),
    "heat": (KEYS, HEATS),
    "gone": (KEYS, HEATS),
}
RAW = st.sampled_from(sorted(TABLES)).flatmap(
    lambda table: st.tuples(
        st.just(table), KEYS | st.binary(min_size=1, max_size=48), st.binary(max_size=80)
    )
)
HOSTILE = st.one_of(RAW, *(st.tuples(st.just(name), *columns) for name, columns in SHAPED.items()))
Row = tuple[str, Any, Any]


class Folder:
    """A small store whose index is rewritten by hand, again and again."""

    def __init__(self, kit: Any) -> None:
        self.kit, self.ids = kit, kit.ids(4)
        kit.fill()
        kit.directory.with_name("beside").write_bytes(b"mine")
        self.pristine = shutil.copytree(kit.directory, kit.directory.with_name("pristine"))
        root = Fingerprint.of(kit.fingerprint, kit.streams).root
        with kit.open() as store:
            self.keys = [root, *store.hashes(self.ids), b"?" * 32]

    def solid(self, part: Any) -> bytes:
        if isinstance(part, Key):
            return self.keys[part]
        if isinstance(part, int):
            return struct.pack("<I", part)
        return b"".join(map(self.solid, part)) if isinstance(part, tuple) else part

    def plant(self, rows: Sequence[Row]) -> None:
        """Put the store back as it was, but for these rows."""
        shutil.rmtree(self.kit.directory)
        shutil.copytree(self.pristine, self.kit.directory)
        index = self.kit.directory / "index"
        with lmdb.open(str(index), max_dbs=len(TABLES)) as env, env.begin(write=True) as txn:
            for table, key, value in rows:
                db = env.open_db(table.encode(), txn=txn, create=False, **TABLES[table])
                # LMDB itself refuses some.
                with contextlib.suppress(lmdb.Error):
                    txn.put(self.solid(key), self.solid(value), db=db)
        total = xxhash.xxh3_128(index.joinpath("data.mdb").read_bytes()).hexdigest()
        (index / "CHECK").write_text(total + "\n")

    def endure(self, rows: Sequence[Row]) -> None:
        kit, base = self.kit, self.kit.directory.parent
        archive = base / "archive.tar"
        for backwards in (False, True):
            self.plant(rows)
            with modest(), kit.open(map_bytes=1 << 20) as store:
                if not backwards:
                    look_through(kit, store, self.ids)
                change_all(kit, store, self.ids, archive, backwards=backwards)
            # It ended with `verify(fix=True)`. A forged budget holds like any other, until another
            # is given.
            with kit.open(max_bytes=1 << 30) as store:
                assert (store.notice, store.verify()) == (None, [])
                assert kit.commit(store, self.ids).reason is None
                assert kit.good_blocks(store, self.ids) == 4
        archive.unlink(missing_ok=True)
        assert {path.name for path in base.iterdir()} == {"kv", "beside", "pristine"}
        assert base.joinpath("beside").read_bytes() == b"mine"
        self.plant(rows)
        shutil.rmtree(kit.directory / "index")
        with kit.open() as store:
            assert kit.good_blocks(store, self.ids) == 4
            assert store.verify() == []


@pytest.fixture
def folder(kit: Any) -> Folder:
    return Folder(kit)


def block(segment: int, offset: int, length: int, position: int, parent: int) -> tuple[Any, ...]:
    place = struct.pack("<IQI", segment, offset, length)
    return place, position, b"\0" + b"f" * 16, Key(parent)


ANCHOR = [1, "kind", True, 5.0, 512, [1, 4096, 60]]
BY_HAND: dict[str, list[Row]] = {
    "a path that leads back to itself": [("blocks", Key(2), block(1, 8192, 4081, 128, 4))],
    "a block before itself": [("blocks", Key(1), block(1, 8192, 4081, 0, 1))],
    "a root with a parent": [
        ("blocks", Key(0), block(1, 8192, 4081, 128, 0)),
        ("children", Key(0), Key(0)),
    ],
    "an edge that leads back": [("children", Key(3), Key(1))],
    "a place behind all files": [("blocks", Key(3), block(1, 1 << 62, 4081, 256, 2))],
    "a place behind all numbers": [("blocks", Key(3), block(1, (1 << 64) - 4096, 4081, 256, 2))],
    "a segment of another name": [("blocks", Key(3), block((1 << 32) - 1, 0, 4081, 256, 2))],
    "a snapshot of 4 GiB": [("snapshots", Key(4), struct.pack("<IQI", 1, 4096, (1 << 32) - 1))],
    "a removal of 4 GiB": [
        ("places", struct.pack(">IQ", 1, 4096), struct.pack("<BI", 5, (1 << 32) - 1))
    ],
    "a segment with less than nothing": [
        ("segments", (1).to_bytes(4, "big"), struct.pack("<QQQ", 0, (1 << 64) - 1, 0))
    ],
    "a label that is none": [("anchors", (Key(4), b"a" * 16), msgpack.packb(ANCHOR))],
    "values without end": [("anchors", (Key(4), b"a" * 16), b"\x91" * 2000)],
    "fields that are none": [("fingerprints", Key(5), msgpack.packb([[1], [1, 4096, 60]]))],
    "a stamp that no record can have": [("meta", b"stamp", b"\xff" * 10)],
    "the highest number of a segment": [
        ("segments", ((1 << 31) - 1).to_bytes(4, "big"), struct.pack("<QQQ", 0, 0, 0))
    ],
    "a budget of nothing": [("meta", b"budget", b"\1")],
    "the largest budget": [("meta", b"budget", b"\xff" * 10)],
    "a number that no segment can have": [("meta", b"segment", b"\xff" * 10)],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_forged_row_does_no_harm(folder: Folder, name: str) -> None:
    folder.endure(BY_HAND[name])


def test_an_offset_that_no_file_has_is_trouble_with_the_disk(tmp_path: Path) -> None:
    files, buffer = Files(), memoryview(bytearray(9))
    fd = files.open(tmp_path / "a", write=True, create=True)
    for offset in (1 << 63, (1 << 64) - 4096, 1 << 64):
        with pytest.raises(OSError, match="too large"):
            files.preadv(fd, [buffer], offset)
        with pytest.raises(OSError, match="too large"):
            files.pwritev(fd, [buffer], offset)
        assert not files.preadv_cached(fd, [buffer], offset)
    files.close(fd)


MANY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@MANY
@given(rows=st.lists(HOSTILE, min_size=1, max_size=4))
def test_hostile_rows_do_no_harm(folder: Folder, rows: list[Row]) -> None:
    folder.endure(rows)
