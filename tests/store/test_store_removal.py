"""The record of a removal: what it names stays away after a rebuild, however much it is."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from ced_kvstore import Anchor
from ced_kvstore.rebuild import _SMALL as SMALL
from ced_kvstore.remove import KEYS_PER_RECORD
from ced_kvstore.remove import _Doomed as Doomed
from ced_kvstore.remove import _records as removal_records


def test_a_removal_in_many_records_holds_after_a_rebuild(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ced_kvstore.remove.KEYS_PER_RECORD", 3)
    store, ids = kit.open(), kit.ids(4)
    key = store.hashes(ids)[0]
    kit.commit(store, ids, anchors=[Anchor(key, f"session:{number}") for number in range(8)])
    done = store.remove(key)
    assert (done.anchors, done.blocks) == (8, 4)
    store.close()
    shutil.rmtree(kit.directory / "index")
    store = kit.open()
    assert (store.match(ids).blocks, store.anchors()) == (0, [])


def test_the_longest_record_of_a_removal_is_read_by_a_rebuild() -> None:
    anchors = [Anchor(bytes(32), f"{number:0512}") for number in range(KEYS_PER_RECORD)]
    keys = [b"k" * 32] * KEYS_PER_RECORD
    (record,) = removal_records(Doomed(anchors, keys, 0))
    assert record.length <= SMALL
