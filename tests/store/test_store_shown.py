"""`show`: what one block says, good or damaged; and views of a store that is damaged or closed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ced_kvstore.errors import BadRecord


def test_a_damaged_store_is_still_shown(kit: Any) -> None:
    store = kit.open()
    ids = kit.ids(3)
    kit.anchored(store, ids, "s")
    (segment,) = kit.segments()
    kit.flip(segment, kit.block_offset(segment, 1) + 128 + 512 + 5)
    assert kit.good_blocks(store, ids) == 1
    kit.commit(store, kit.ids(1, seed=7))
    assert [run.bad for run in store.tree()] == [0, 1]
    assert sum(row.own_bytes for row in store.du()) == kit.bytes_on_disk()
    first, second, _third = (store.show(key.hex()) for key in store.hashes(ids))
    assert (first.is_good, second.is_good) == (True, False)
    assert "checksum" in str(second.problem)
    # The ids are what the hash is made of, so they can be trusted where the rows cannot.
    assert second.ids == tuple(ids[128:256])
    # Whole, but whoever read it found that these rows are not what belongs to the ids.
    store.quarantine([first.block_hash])
    assert store.show(first.block_hash.hex()).problem == "its rows were found to be wrong"


def test_a_store_that_cannot_be_read_has_no_rows_and_no_runs(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.fill()
    store = kit.open()
    store.close()
    assert (store.du(), store.tree()) == ((), ())
    with pytest.raises(ValueError, match="no block can be looked up: the store is closed"):
        store.show("00")


def test_show_says_all_of_one_block(kit: Any) -> None:
    kit.fill(4)
    store = kit.open()
    ids = kit.ids(4)
    hashes = store.hashes(ids)
    kit.commit(store, [*ids[:128], *kit.ids(1, seed=5)])
    store.match(ids[:128])
    kit.commit(store, kit.ids(1, seed=6))
    first, last = store.show(hashes[0].hex()), store.show(hashes[3].hex().upper())
    assert (first.position, first.parent, len(first.children)) == (0, store.root, 2)
    assert [anchor.label for anchor in first.anchors] == ["warm"]
    assert (first.snapshot_bytes, last.snapshot_bytes) == (None, 8192)
    assert (first.hits, last.children, last.parent) == (1.0, (), hashes[2])
    assert last.ids == tuple(ids[384:])
    assert last.fields == {
        **kit.fingerprint, "store_format": 1, "stream_order": "k,v,e_out",
        "stream_bytes.k": 1003, "stream_bytes.v": 517, "stream_bytes.e_out": 2049,
    }  # fmt: skip
    raw = (kit.directory / last.file).read_bytes()[last.offset : last.offset + last.bytes]
    assert raw[24:56] == hashes[3]
    assert last.fingerprint == raw[88:104].hex()
    assert int.from_bytes(raw[16:24], "little") == last.stamp


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        ("", "expected up to 64 hex digits"),
        ("xyz", "got 'xyz'"),
        ("a" * 65, "expected up to 64 hex digits"),
        ("0" * 64, "no block's hash begins with 0000"),
        ("\u0661", "expected up to 64 hex digits"),
    ],
)
def test_show_of_what_names_no_block_says_so(kit: Any, prefix: str, says: str) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(1))
    with pytest.raises(ValueError, match=says):
        store.show(prefix)


def test_digits_that_fit_several_blocks_name_them(kit: Any) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(17))
    digits = [key.hex()[0] for key in store.hashes(kit.ids(17))]
    (twice, n), *_ = Counter(digits).most_common()
    with pytest.raises(ValueError, match=f"hashes of {n} blocks begin with {twice}: {twice}"):
        store.show(twice)


def test_a_record_that_moves_while_it_is_looked_at_is_looked_up_again(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(2))
    segments = store._core.segments
    read, calls = segments.read_payload, []

    def once_gone(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise BadRecord("segment 000001 cannot be opened: No such file or directory")
        return read(*args)

    monkeypatch.setattr(segments, "read_payload", once_gone)
    assert store.show(store.hashes(kit.ids(2))[1].hex()).is_good
