"""Segment files that are longer or shorter than what the index knows of them."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from ced_kvstore.segment import Segments

LIMIT = 256 << 10


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets at which a header was looked for; segments are smaller than in earnest."""
    monkeypatch.setattr("ced_kvstore.leftovers.MAX_SEGMENT_BYTES", LIMIT)
    monkeypatch.setattr("ced_kvstore.rebuild.MAX_SEGMENT_BYTES", LIMIT)
    offsets, plain = [], Segments.read_header_at

    def read(segments: Segments, number: int, offset: int, extra: int = 0) -> Any:
        offsets.append(offset)
        return plain(segments, number, offset, extra)

    monkeypatch.setattr(Segments, "read_header_at", read)
    return offsets


@pytest.mark.parametrize("has_index", [True, False])
def test_a_huge_segment_is_looked_through_no_further_than_one_can_be(
    kit: Any, lookups: list[int], has_index: bool
) -> None:
    kit.fill()
    os.truncate(kit.segments()[0], 4 << 30)
    if not has_index:
        shutil.rmtree(kit.directory / "index")
    store = kit.open()
    assert kit.good_blocks(store, kit.ids(4)) == 4
    store.close()
    assert max(lookups) < LIMIT


@pytest.mark.parametrize("missing", [1, 4096])
def test_a_segment_that_was_cut_off_is_said_to_have_lost_something(kit: Any, missing: int) -> None:
    kit.fill()
    (segment,) = kit.segments()
    size = segment.stat().st_size
    os.truncate(segment, size - missing)
    store = kit.open()
    (problem,) = (each for each in store.verify(fix=True) if each.kind == "index")
    assert problem.where == "000001.kvs+0"
    assert problem.detail == (
        f"its last {missing} bytes are missing: blocks, snapshots, anchors are lost"
    )
    assert store.verify() == []
