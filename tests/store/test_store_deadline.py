"""A disk that does not answer costs a deadline and nothing after it.

Threads that wait for such a disk cannot be stopped; they must not matter to anyone.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from store_makers import buffers_of

from ced_kvstore import Files, deadline, read_plan, restore
from ced_kvstore.deadline import DEADLINES, Deadline, wait

STRIDE = 8192
ANSWERS_S = 5
"""By then the disk answers all the same: without a deadline a test is to fail, not to hang."""


class Disk:
    """Reads of a segment beyond `start` wait until they are released, and count."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.released = threading.Event()
        self.waiting = 0
        self.opened: list[int] = []
        real, real_open, real_close = Files.preadv, Files.open, Files.close

        def preadv(files: Files, fd: int, pieces: Sequence[memoryview], offset: int) -> int:
            if fd in self.opened and offset >= self.start:
                self.waiting += 1
                self.released.wait(ANSWERS_S)
                self.waiting -= 1
            return real(files, fd, pieces, offset)

        def opening(files: Files, path: Path, **options: Any) -> int:
            fd = real_open(files, path, **options)
            if path.suffix == ".kvs":
                self.opened.append(fd)
            return fd

        def closing(files: Files, fd: int) -> None:
            if fd in self.opened:
                self.opened.remove(fd)
            real_close(files, fd)

        self.preadv, self.opening, self.closing = preadv, opening, closing


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Disk]]:
    """Let the disk hang from an offset on; every thread must have ended in the end."""
    disks: list[Disk] = []
    threads = _thread._count()

    def hang(start: int) -> Disk:
        disk = Disk(start)
        disks.append(disk)

        def patient(core: Any, ended: Sequence[threading.Lock], seconds: float) -> None:
            # The time is the disk's: how long threads take to come to it is the machine's affair.
            def are_there() -> bool:
                return disk.waiting + sum(not lock.locked() for lock in ended) >= len(ended)

            assert soon(are_there)
            wait(core, ended, seconds)

        for module in (deadline, restore):
            monkeypatch.setattr(module, "wait", patient)
        monkeypatch.setattr(Files, "preadv_cached", staticmethod(lambda *_: False))
        monkeypatch.setattr(read_plan, "BATCH_BYTES", 2 * STRIDE)
        monkeypatch.setattr(restore, "DISK_THREADS", 4)
        monkeypatch.setattr(Files, "preadv", disk.preadv)
        monkeypatch.setattr(Files, "open", disk.opening)
        monkeypatch.setattr(Files, "close", disk.closing)
        for name in DEADLINES:
            monkeypatch.setitem(DEADLINES, name, Deadline(0.1, 0.0))
        return disk

    yield hang
    for disk in disks:
        disk.released.set()
    assert soon(lambda: _thread._count() == threads)
    assert all(disk.opened == [] for disk in disks)


def soon(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 10
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def test_beyond_the_deadline_it_is_a_miss_with_one_notice(kit: Any, stuck: Any) -> None:
    store, ids = kit.open(), kit.ids(8)
    kit.commit(store, ids)
    match = store.match(ids)
    disk = stuck(kit.block_offset(kit.segments()[0], 2))
    assert store.notice is None
    begun = time.monotonic()
    # The first two blocks are one piece, and that one came.
    assert kit.good_blocks(store, ids, match) == 2
    assert time.monotonic() - begun >= 0.1
    notice = store.notice
    assert "took longer than 0.1 s" in notice
    assert "\n" not in notice
    assert disk.waiting == 3
    # From here on nobody waits again, neither at a read nor at a commit.
    assert store.match(ids).reason == "disabled"
    assert store.read(match, buffers_of(kit, 8)) == 0
    assert kit.commit(store, kit.ids(1, seed=3)).reason == "disabled"
    assert disk.waiting == 3
    assert store.notice == notice
    # No record is blamed for it.
    assert store.stats().blocks_bad == 0


def test_nobody_writes_to_the_buffers_afterwards(kit: Any, stuck: Any) -> None:
    store, ids = kit.open(), kit.ids(8)
    kit.commit(store, ids)
    match = store.match(ids)
    disk = stuck(kit.block_offset(kit.segments()[0], 2))
    buffers = buffers_of(kit, 8)
    threads = _thread._count()
    assert store.read(match, buffers) == 2
    assert _thread._count() == threads + 3
    # Nor does anybody hold on to them: a buffer that is referred to cannot change its size.
    for buffer in buffers.values():
        buffer += b"end"
    before = {name: bytes(buffer) for name, buffer in buffers.items()}
    disk.released.set()
    assert soon(lambda: _thread._count() == threads)
    assert buffers == before


def test_a_snapshot_has_a_deadline_too(kit: Any, stuck: Any) -> None:
    store, ids = kit.open(), kit.ids(2)
    key = store.hashes(ids)[1]
    kit.commit(store, ids, snapshots={key: b"w" * 5000})
    assert store.read_snapshot(key) == b"w" * 5000
    disk = stuck(0)
    begun = time.monotonic()
    assert store.read_snapshot(key) is None
    assert time.monotonic() - begun >= 0.1
    assert disk.waiting == 1
    assert "took longer" in store.notice


def test_a_slow_disk_within_the_deadline_is_waited_for(kit: Any, stuck: Any) -> None:
    store, ids = kit.open(), kit.ids(8)
    kit.commit(store, ids)
    disk = stuck(0)
    DEADLINES["blocks"] = Deadline(30.0, 0.0)
    threading.Timer(0.1, disk.released.set).start()
    assert kit.good_blocks(store, ids) == 8
    assert store.notice is None


def test_more_bytes_have_more_time() -> None:
    assert Deadline(10.0, 1 / 20e6).within(20_000_000) == pytest.approx(11.0)
    assert set(DEADLINES) == {"blocks", "snapshot"}


def test_a_store_closes_while_the_disk_hangs(kit: Any, stuck: Any) -> None:
    store, ids = kit.open(), kit.ids(8)
    kit.commit(store, ids)
    disk = stuck(0)
    assert kit.good_blocks(store, ids) == 0
    store.close()
    assert disk.waiting == 4
    # Open descriptors belong to the threads that wait in them.
    assert len(disk.opened) == 1
    disk.released.set()
    assert kit.good_blocks(kit.open(), ids) == 8


STUCK = """
import faulthandler, os, sys, threading, warnings
from ced_kvstore import Files, Store, Stream
from ced_kvstore.deadline import DEADLINES, Deadline
# Some versions of Python warn of a fork beside threads; that is what is tried here.
warnings.simplefilter("ignore")
# Without a deadline it is to fail, not to hang.
faulthandler.dump_traceback_later(20, exit=True)
ids = list(range(1024))
store = Store.open(sys.argv[1], fingerprint={}, streams=[Stream("k", 9000)])
store.commit(ids, first_block=0, rows={"k": bytes(9000 * 8)})
match = store.match(ids)
Files.preadv_cached = staticmethod(lambda *_: False)
real, here = Files.preadv, threading.get_ident()
# The disk of the segments hangs; what the main thread reads of the index is in memory.
Files.preadv = lambda *args: (
    real(*args) if threading.get_ident() == here else threading.Event().wait()
)
DEADLINES["blocks"] = Deadline(0.3, 0.0)
print(store.read(match, {"k": bytearray(9000 * 8)}), flush=True)
child = os.fork()
if not child:
    print(store.match(ids).blocks, store.read(match, {"k": bytearray(9000 * 8)}), flush=True)
    store.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
store.close()
print("end")
"""


@pytest.mark.slow
def test_the_interpreter_ends_and_forks_while_the_disk_hangs(kit: Any, run_python: Any) -> None:
    done = run_python(STUCK, kit.directory)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["0", "0 0", "end"]
