"""kill -9 at every step of an import leaves a whole store, and the import run again ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import chunk

WORKER = Path(__file__).with_name("import_worker.py")


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("before", marks=pytest.mark.slow),
        pytest.param("torn", marks=pytest.mark.stress),
    ],
)
def test_kill_at_every_step_of_an_import(tmp_path: Path, run_python: Any, mode: str) -> None:
    done = run_python(WORKER.read_text(), tmp_path, mode, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert int(done.stdout.split()[-2]) >= 15
    # Killed early it has what it had, killed late it has all, and something in between.
    blocks = {int(line.split()[-2]) for line in done.stdout.splitlines() if "killed" in line}
    assert {4, 16} < blocks


@pytest.mark.slow
def test_three_processes_import_the_same_archive(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_python: Any
) -> None:
    monkeypatch.setattr(chunk, "CHUNK_BYTES", 9000)
    program = """
import sys
from ced_kvstore import Store, Stream, chunk
chunk.CHUNK_BYTES = 9000
store = Store.open(sys.argv[1], fingerprint={}, streams=[Stream("none", 1)])
done = store.import_(sys.argv[2])
print(done.blocks + done.skipped, done.left_out, done.reason, flush=True)
"""
    store = kit.open()
    for seed in range(20):
        kit.anchored(store, kit.ids(3, seed=seed), f"s:{seed}")
    store.export(tmp_path / "all.tar")
    results: list[str] = []

    def work() -> None:
        done = run_python(program, tmp_path / "copy", tmp_path / "all.tar")
        results.append(done.stdout.strip() or done.stderr)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["60 0 None"] * 3
    copy = kit.open(directory=tmp_path / "copy")
    assert copy.stats().blocks == 60
    assert all(kit.good_blocks(copy, kit.ids(3, seed=seed)) == 3 for seed in range(20))
    assert copy.verify() == []
