"""Three processes at once on the same and on different ids: nothing published is lost, nothing
wrong is read, and what is left verifies clean."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from store_model import look, open_store

WORKER = Path(__file__).with_name("writers_worker.py")


def run_together(directory: Path, seconds: float, *flags: str) -> list[Any]:
    """Run three workers at once; return what each printed."""
    paths = [str(WORKER.parents[2] / part) for part in ("kvstore", "tests/oracles")]
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", WORKER, directory, str(seed), str(seconds), *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        for seed in range(3)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    told = []
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        out, err = process.communicate(timeout=seconds + 120)
        assert process.returncode == 0, err
        told.append(json.loads(out))
    return told


def check(directory: Path, acknowledged: list[list[int]], max_bytes: int) -> None:
    def whole() -> None:
        with open_store(directory, max_bytes) as store:
            assert store.notice is None
            assert store.verify() == []
            for path in acknowledged:
                assert look(store, tuple(path)) == (len(path), len(path)), path

    # The last one has left a sum; what it sums is whole, and so is what is built anew.
    assert (directory / "index" / "CHECK").exists()
    whole()
    shutil.rmtree(directory / "index")
    whole()


@pytest.mark.parametrize(
    "seconds", [0.7, pytest.param(60, marks=pytest.mark.stress)], ids=["short", "a minute"]
)
def test_nothing_that_three_processes_publish_is_lost(tmp_path: Path, seconds: float) -> None:
    told = run_together(tmp_path / "kv", seconds)
    acknowledged = [path for paths, _counts in told for path in paths]
    assert all(counts["committed"] > 0 for _paths, counts in told)
    check(tmp_path / "kv", acknowledged, 1 << 30)


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(2, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.stress)],
    ids=["short", "longer"],
)
def test_three_processes_that_drop_what_others_want(tmp_path: Path, seconds: float) -> None:
    told = run_together(tmp_path / "kv", seconds, "drop")
    assert sum(counts.get("dropped", 0) for _paths, counts in told) > 0
    check(tmp_path / "kv", [], 2 << 20)
