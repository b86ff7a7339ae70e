"""A purge takes the records of the labels along, also of those on blocks that stay."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from ced_kvstore import Anchor
from ced_kvstore.rebuild import scan
from ced_kvstore.record import Kind

GONE = "session:gone-name"


def segments_with(kit: Any, label: str) -> list[str]:
    return [path.name for path in kit.segments() if label.encode() in path.read_bytes()]


def anchor_records(store: Any, label: str) -> int:
    """Records of a label that are anywhere in the segments, live or dead."""
    segments = store._core.segments
    payloads = [
        segments.read_payload(place, Kind.ANCHOR, None)[1]
        for place, header in scan(segments)
        if header.kind == Kind.ANCHOR
    ]
    return sum(label.encode() in payload for payload in payloads)


def test_a_purged_label_leaves_the_disk_when_its_block_stays(kit: Any) -> None:
    store, ids = kit.open(), kit.ids(2)
    key = store.hashes(ids)[-1]
    anchors = [Anchor(key, GONE), Anchor(store.root, GONE), Anchor(key, "session:kept")]
    kit.commit(store, ids, anchors=anchors)
    done = store.remove(GONE, purge=True)
    assert (done.anchors, done.blocks, done.reason) == (2, 0, None)
    assert segments_with(kit, GONE) == []
    assert kit.good_blocks(store, ids) == 2
    assert [anchor.label for anchor in store.anchors()] == ["session:kept"]
    assert store.verify() == []


def test_a_purge_takes_older_records_of_a_label_along(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ced_kvstore.writer.MAX_SEGMENT_BYTES", 64 << 10)
    store, ids = kit.open(), kit.ids(2)
    kit.anchored(store, ids, "session:kept")
    for pinned in (False, True):
        kit.anchored(store, ids, GONE, pinned=pinned)
        # Dead and live records of it lie in segments of their own.
        kit.anchored(store, kit.ids(7, seed=3 + pinned), f"session:{pinned}")
    assert anchor_records(store, GONE) == 2
    assert len(segments_with(kit, GONE)) == 2
    assert store.remove(GONE, purge=True).reason is None
    assert anchor_records(store, GONE) == 0
    assert kit.good_blocks(store, ids) == 2
    store.close()
    shutil.rmtree(kit.directory / "index")
    assert GONE not in [anchor.label for anchor in kit.open().anchors()]


def test_a_purge_leaves_no_label_whose_blocks_went(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ced_kvstore.writer.MAX_SEGMENT_BYTES", 64 << 10)
    store = kit.open()
    for seed in range(3):
        kit.anchored(store, kit.ids(7, seed=seed), f"session:{seed}")
    kit.anchored(store, kit.ids(4, seed=9), GONE)
    done = store.remove(GONE, purge=True)
    assert (done.blocks, done.reason, segments_with(kit, GONE)) == (4, None, [])
    store.close()
    shutil.rmtree(kit.directory / "index")
    store = kit.open()
    assert sorted(anchor.label for anchor in store.anchors()) == [f"session:{n}" for n in range(3)]
    assert store.match(kit.ids(4, seed=9)).blocks == 0
