"""Three processes at once on the same and on different ids: nothing published is lost, nothing
wrong is read, and what is left verifies clean."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from store_model import look, open_store

WORKER = Path(__file__).with_name("writers_worker.py")


def start(directory: Path, seed: int, seconds: float, *flags: str) -> subprocess.Popen[str]:
    paths = [str(WORKER.parents[2] / part) for part in ("kvstore", "tests/oracles")]
    return subprocess.Popen(
        [sys.executable, "-W", "error", WORKER, directory, str(seed), str(seconds), *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    process.stdin.write("go\n")
    process.stdin.flush()


def told(process: subprocess.Popen[str], seconds: float) -> Any:
    out, err = process.communicate(timeout=seconds + 120)
    assert process.returncode == 0, err
    return json.loads(out)


def run_together(directory: Path, seconds: float, *flags: str) -> list[Any]:
    """Run three workers at once; return what each printed."""
    started = [start(directory, seed, seconds, *flags) for seed in range(3)]
    for process in started:
        go(process)
    return [told(process, seconds) for process in started]


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
    found = run_together(tmp_path / "kv", seconds)
    acknowledged = [path for paths, _counts in found for path in paths]
    assert all(counts["committed"] > 0 for _paths, counts in found)
    check(tmp_path / "kv", acknowledged, 1 << 30)


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(2, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.stress)],
    ids=["short", "longer"],
)
def test_three_processes_that_drop_what_others_want(tmp_path: Path, seconds: float) -> None:
    found = run_together(tmp_path / "kv", seconds, "drop")
    assert all(counts.get("committed", 0) > 0 for _paths, counts in found)
    assert sum(counts.get("dropped", 0) for _paths, counts in found) > 0
    check(tmp_path / "kv", [], 2 << 20)


@pytest.mark.stress
def test_processes_killed_at_any_moment_hinder_nobody(tmp_path: Path) -> None:
    """Also within what no step of ours divides, such as a commit of LMDB."""
    draw, directory = random.Random(7), tmp_path / "kv"
    stays = start(directory, 0, 120, "drop")
    go(stays)
    for seed in range(1, 6):
        victim = start(directory, seed, 60, "drop")
        go(victim)
        time.sleep(draw.uniform(0.1, 0.5))
        victim.kill()
        victim.communicate()
    # The last one that goes was not killed.
    directory.with_name("stop").touch()
    assert told(stays, 0)[1].get("committed", 0) > 0
    check(directory, [], 2 << 20)
