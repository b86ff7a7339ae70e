"""Two processes on one directory: the first writes, the second reads what the first commits."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

READER = """
import sys
from ced_kvstore import Store, Stream
streams = [Stream("k", 1003), Stream("v", 517), Stream("e_out", 2049)]
fingerprint = {"family": "ced_llama", "weights.layers.3": "ab" * 32, "torch": "2.13", "rope": None}
store = Store.open(sys.argv[1], fingerprint=fingerprint, streams=streams, map_bytes=1 << 17)
print(store.read_only, "|", store.notice, flush=True)
for line in sys.stdin:
    n, seed = map(int, line.split())
    ids = [(seed << 20) + i for i in range(n * 128)]
    match = store.match(ids)
    buffers = {s.name: bytearray(match.blocks * s.block_bytes) for s in streams}
    good = store.read(match, buffers)
    rows = {s.name: bytes(n * s.block_bytes) for s in streams}
    done = store.commit(ids, first_block=0, rows=rows)
    print(match.blocks, good, done.reason, len(store.anchors()), flush=True)
"""


@pytest.fixture
def reader(kit: Any) -> Any:
    started: list[subprocess.Popen[str]] = []

    def start() -> Any:
        path = str(Path(__file__).resolve().parents[2] / "kvstore")
        process = subprocess.Popen(
            [sys.executable, "-c", READER, str(kit.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": path},
        )
        started.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        first = stdout.readline()

        def ask(n: int, seed: int = 0) -> str:
            stdin.write(f"{n} {seed}\n")
            stdin.flush()
            return stdout.readline().strip()

        return first, ask

    yield start
    for process in started:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert process.wait(timeout=30) == 0
        process.stdout.close()


def test_the_second_process_reads_and_says_so_in_one_line(kit: Any, reader: Any) -> None:
    store = kit.open(map_bytes=1 << 17)
    kit.commit(store, kit.ids(3))
    first, ask = reader()
    assert first.startswith("True | prefix store ")
    assert "in use by another process" in first
    assert ask(3) == "3 3 read_only 0"
    # New commits are seen at once, also when the index has outgrown the reader's map.
    for seed in range(1, 6):
        kit.anchored(store, kit.ids(50, seed=seed), f"session:{seed}")
        assert ask(50, seed) == f"50 50 read_only {seed}"
    assert store.stats().bytes_index > 1 << 17
    store.remove("session:1", purge=True)
    assert ask(50, 1) == "0 0 read_only 4"
    assert ask(50, 2) == "50 50 read_only 4"


def test_a_reader_follows_a_writer_that_rebuilt_the_index(kit: Any, reader: Any) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(3))
    _, ask = reader()
    assert ask(3) == "3 3 read_only 0"
    store.close()
    (kit.directory / "index" / "data.mdb").unlink()
    store = kit.open()
    kit.commit(store, kit.ids(2, seed=1))
    assert ask(2, 1) == "2 2 read_only 0"
    assert ask(3) == "3 3 read_only 0"


def test_the_next_process_writes_when_the_first_has_gone(kit: Any, run_python: Any) -> None:
    program = """
import sys
from ced_kvstore import Store, Stream
store = Store.open(sys.argv[1], fingerprint={}, streams=[Stream("k", 5)])
print(store.read_only, store.commit([1] * 128, first_block=0, rows={"k": b"12345"}).blocks)
"""
    store = kit.open()
    started = time.monotonic()
    assert run_python(program, kit.directory).stdout.split() == ["True", "0"]
    assert time.monotonic() - started < 20
    store.close()
    assert run_python(program, kit.directory).stdout.split() == ["False", "1"]


def test_a_forked_child_misses_and_leaves_the_store_alone(kit: Any, run_python: Any) -> None:
    program = """
import os, sys
from ced_kvstore import Store, Stream
store = Store.open(sys.argv[1], fingerprint={}, streams=[Stream("k", 5)])
ids = [1] * 128
store.commit(ids, first_block=0, rows={"k": b"12345"})
pid = os.fork()
if pid == 0:
    assert store.match(ids).reason == "disabled"
    assert "fork" in store.explain(ids).stored
    assert store.commit(ids, first_block=0, rows={"k": b"12345"}).reason == "read_only"
    store.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert store.match(ids).blocks == 1
assert store.commit([2] * 128, first_block=0, rows={"k": b"12345"}).blocks == 1
store.close()
print("well")
"""
    done = run_python(program, kit.directory)
    assert done.stdout.strip() == "well", done.stderr
