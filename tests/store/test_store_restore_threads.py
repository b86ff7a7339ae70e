"""What a restore takes: threads where a processor is idle, one copy, few descriptors."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from store_makers import buffers_of, from_memory

from ced_kvstore import Files, load, read_plan, restore
from ced_kvstore.deadline import DEADLINES, Deadline, wait

STRIDE = 8192


def test_a_read_ends_when_its_helpers_have(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ids = kit.open(), kit.ids(12)
    kit.commit(store, ids)
    inside, begun, caller = 0, threading.Event(), threading.get_ident()

    def slow(fd: int, pieces: Sequence[memoryview], offset: int) -> bool:
        nonlocal inside
        if threading.get_ident() == caller:
            assert begun.wait(10)
        else:
            inside += 1
            begun.set()
            time.sleep(0.1)
        whole = from_memory(fd, pieces, offset)
        inside -= threading.get_ident() != caller
        return whole

    monkeypatch.setattr(Files, "preadv_cached", staticmethod(slow))
    monkeypatch.setattr(read_plan, "BATCH_BYTES", 2 * STRIDE)
    monkeypatch.setattr(restore, "HELP_BYTES", 0)
    monkeypatch.setattr(restore, "idle_processors", lambda: 2)
    assert store.read(store.match(ids), buffers_of(kit, 12)) == 12
    assert inside == 0


def test_a_read_beyond_the_deadline_ends_when_nobody_copies_any_more(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ids = kit.open(), kit.ids(8)
    kit.commit(store, ids)
    inside, begun, fill = 0, threading.Event(), read_plan.Rows.fill

    def slow(rows: read_plan.Rows, index: int, part: memoryview) -> None:
        nonlocal inside
        inside += 1
        begun.set()
        time.sleep(0.1)
        fill(rows, index, part)
        inside -= 1

    def late(core: Any, ended: Sequence[threading.Lock], seconds: float) -> None:
        assert begun.wait(10)
        wait(core, ended, seconds)

    monkeypatch.setattr(read_plan.Rows, "fill", slow)
    monkeypatch.setattr(read_plan, "BATCH_BYTES", STRIDE)
    monkeypatch.setattr(restore, "wait", late)
    monkeypatch.setattr(restore, "DISK_THREADS", 1)
    monkeypatch.setattr(Files, "preadv_cached", staticmethod(lambda *_: False))
    monkeypatch.setitem(DEADLINES, "blocks", Deadline(0.01, 0.0))
    assert store.read(store.match(ids), buffers_of(kit, 8)) == 1
    assert inside == 0
    assert "took longer" in str(store.notice)


def test_a_helper_that_comes_after_an_interrupt_reads_nothing(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then its descriptor is closed, and its number may be another file's."""
    store, ids = kit.open(), kit.ids(12)
    kit.commit(store, ids)
    match, caller = store.match(ids), threading.get_ident()
    arrived, over, ended = threading.Event(), threading.Event(), threading.Event()
    late: list[int] = []

    class Gate:
        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            if threading.get_ident() != caller:
                arrived.set()
                over.wait(10)
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()
            if over.is_set():
                ended.set()

    def new_gate(self: Any) -> Gate:
        self._gates.append(Gate())
        return self._gates[-1]

    def interrupted(fd: int, pieces: Sequence[memoryview], offset: int) -> bool:
        if threading.get_ident() != caller:
            late.append(fd)
            return False
        assert arrived.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(restore.Restore, "_new_gate", new_gate)
    monkeypatch.setattr(Files, "preadv_cached", staticmethod(interrupted))
    monkeypatch.setattr(read_plan, "BATCH_BYTES", 2 * STRIDE)
    monkeypatch.setattr(restore, "HELP_BYTES", 0)
    monkeypatch.setattr(restore, "idle_processors", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        store.read(match, buffers_of(kit, 12))
    over.set()
    assert ended.wait(10)
    assert late == []


def test_what_is_in_memory_is_copied_once(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ids = kit.open(), kit.ids(12)
    kit.commit(store, ids)
    monkeypatch.setattr(read_plan.Rows, "fill", None)
    monkeypatch.setattr(Files, "preadv_cached", staticmethod(from_memory))
    assert kit.good_blocks(store, ids) == 12


@pytest.mark.parametrize(("idle", "n_blocks"), [(0, 12), (9, 4)])
def test_no_helper_without_need(
    kit: Any, monkeypatch: pytest.MonkeyPatch, idle: int, n_blocks: int
) -> None:
    store, ids = kit.open(), kit.ids(12)
    kit.commit(store, ids)
    monkeypatch.setattr(read_plan, "BATCH_BYTES", 2 * STRIDE)
    monkeypatch.setattr(restore, "HELP_BYTES", 5 * STRIDE)
    monkeypatch.setattr(restore, "idle_processors", lambda: idle)
    monkeypatch.setattr(Files, "preadv_cached", staticmethod(from_memory))
    started: list[object] = []
    monkeypatch.setattr(restore, "start", started.append)
    assert store.read(store.match(ids), buffers_of(kit, n_blocks), n_blocks=n_blocks) == n_blocks
    assert started == []


def test_without_threads_a_disk_is_a_miss(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ids = kit.open(), kit.ids(8)
    key = store.hashes(ids)[-1]
    kit.commit(store, ids, snapshots={key: b"w" * 5000})
    monkeypatch.setattr(Files, "preadv_cached", staticmethod(lambda *_: False))

    def none_left(*_: Any) -> int:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as broken:
        broken.setattr(_thread, "start_new_thread", none_left)
        assert kit.good_blocks(store, ids) == 0
        assert store.read_snapshot(key) is None
    assert kit.good_blocks(store, ids) == 8
    assert store.stats().blocks_bad == 0


def test_a_path_through_many_segments_needs_few_descriptors(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "SEGMENTS_AT_A_TIME", 2)
    store = kit.open(max_bytes=2 << 20)
    kit.commit(store, kit.ids(40))
    assert len(kit.segments()) >= 5
    opened: set[int] = set()
    most = 0
    real_open, real_close = Files.open, Files.close

    def opening(self: Files, path: Path, **options: Any) -> int:
        nonlocal most
        fd = real_open(self, path, **options)
        opened.add(fd)
        most = max(most, len(opened))
        return fd

    def closing(self: Files, fd: int) -> None:
        opened.remove(fd)
        real_close(self, fd)

    monkeypatch.setattr(Files, "open", opening)
    monkeypatch.setattr(Files, "close", closing)
    assert kit.good_blocks(store, kit.ids(40)) == 40
    assert (most, opened) == (2, set())
