"""What comes from a disk: one read of it, and the rest is left to it; a sector that cannot be read
costs its record."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import pytest

from ced_kvstore import Files, read_plan

STRIDE = 8192


def test_what_follows_a_read_from_the_disk_is_left_to_it(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further look whether something is in memory would make the system read ahead there."""
    store, ids = kit.open(), kit.ids(8)
    kit.commit(store, ids)
    third, tries = kit.block_offset(kit.segments()[0], 2), []
    real = Files.preadv_cached

    def in_memory(files: Files, fd: int, pieces: Sequence[memoryview], offset: int) -> bool:
        tries.append(offset)
        return offset < third and real(files, fd, pieces, offset)

    monkeypatch.setattr(Files, "preadv_cached", in_memory)
    monkeypatch.setattr(read_plan, "BATCH_BYTES", STRIDE)
    assert kit.good_blocks(store, ids) == 8
    assert tries == [kit.block_offset(kit.segments()[0], i) for i in range(3)]


@pytest.mark.parametrize("times", [1, 2])
def test_an_unreadable_sector_costs_its_record_only(
    kit: Any, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(read_plan, "BATCH_BYTES", 3 * STRIDE)
    monkeypatch.setattr(Files, "preadv_cached", staticmethod(lambda *_: False))
    store, ids = kit.open(), kit.ids(9)
    kit.commit(store, ids)
    sector = kit.block_offset(kit.segments()[0], 4) + 1024
    real, failed = Files.preadv, []

    def failing(self: Files, fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        if offset <= sector < offset + sum(map(len, pieces)) and len(failed) < times:
            failed.append(offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, fd, pieces, offset)

    monkeypatch.setattr(Files, "preadv", failing)
    # The second piece failed; a disk that reads it the second time has lost nothing.
    assert kit.good_blocks(store, ids) == (9 if times == 1 else 4)
    assert store.stats().blocks_bad == times - 1
    assert len(failed) == times
