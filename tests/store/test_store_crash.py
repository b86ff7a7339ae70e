"""kill -9 at every step of making a store, of commit, removal, eviction and compaction, alone and
beside another process: it loses at most what was open, and leaves a store that is whole.

What is left after one step is what is there before the next: the long runs kill before and within.
Whoever opens it next, and whoever had it open all the time, verifies clean and goes on; an index
rebuilt afterwards has all that the live one had, and nothing that was removed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("crash_worker.py")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["before", "torn", "after"])
def test_kill_at_every_step_of_a_commit(tmp_path: Path, run_python: Any, mode: str) -> None:
    done = run_python(WORKER.read_text(), tmp_path, mode, 1, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert int(done.stdout.split()[-2]) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["none", "empty"])
def test_kill_at_every_step_of_making_a_store(tmp_path: Path, run_python: Any, folder: str) -> None:
    done = run_python(WORKER.read_text(), tmp_path, "before", 0, folder, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert int(done.stdout.split()[-2]) >= 20


@pytest.mark.slow
def test_kill_at_every_step_of_a_rebuild(tmp_path: Path, run_python: Any) -> None:
    done = run_python(WORKER.read_text(), tmp_path, "before", 0, "rebuild", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert int(done.stdout.split()[-2]) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("company", [(), ("beside",)], ids=["alone", "beside another"])
def test_kill_at_every_step_of_removing_evicting_collecting_compacting(
    tmp_path: Path, run_python: Any, company: tuple[str, ...]
) -> None:
    done = run_python(WORKER.read_text(), tmp_path, "before", 2, "drop", *company, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert int(done.stdout.split()[-2]) > 40


@pytest.mark.stress
@pytest.mark.parametrize("company", [(), ("beside",)], ids=["alone", "beside another"])
def test_kill_within_every_step_of_dropping(
    tmp_path: Path, run_python: Any, company: tuple[str, ...]
) -> None:
    done = run_python(WORKER.read_text(), tmp_path, "torn", 2, "drop", *company, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert int(done.stdout.split()[-2]) > 40


@pytest.mark.stress
@pytest.mark.parametrize("mode", ["before", "torn"])
def test_kill_at_every_step_while_evicting_and_moving(
    tmp_path: Path, run_python: Any, mode: str
) -> None:
    done = run_python(WORKER.read_text(), tmp_path, mode, 10, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert int(done.stdout.split()[-2]) > 60


def test_a_killed_writer_lets_the_next_one_in(kit: Any, run_python: Any) -> None:
    program = """
import os, signal, sys
from ced_kvstore import Store, Stream
streams = [Stream("k", 1003), Stream("v", 517), Stream("e_out", 2049)]
store = Store.open(sys.argv[1], fingerprint={"a": 1}, streams=streams)
rows = {s.name: bytes(2 * s.block_bytes) for s in streams}
assert store.commit(list(range(256)), first_block=0, rows=rows).blocks == 2
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_python(program, kit.directory).returncode == -9
    assert not (kit.directory / "index" / "CHECK").exists()
    store = kit.open(fingerprint={"a": 1})
    assert store.notice is None
    assert store.match(list(range(256))).blocks == 2
    assert store.verify() == []
