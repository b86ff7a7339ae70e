"""Every example runs as a user runs it, and prints what its text promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = os.pathsep.join(str(ROOT / part) for part in (".", "kvstore", "kernels"))

EXPECTED = {
    "hello.py": ["[read ", "encoded 51, sampled "],
    "tools.py": ["convert({'degrees': ", "'unit': "],
    "warm_prefix.py": ["warm again: hit True", "question: "],
    "resume.py": ["first process: ", "second process: ", "fork: "],
    "engine_only.py": ["append: 256 reused, 44 encoded", "same logits: True", "[300, "],
    "v41_tiny.py": [
        "first: 700 encoded, 16 of them through the decoder",
        "restarted: 640 reused, 90 encoded, 128 run again",
        "same logits as a cold run: True",
    ],
    "own_store.py": [
        "stored 3 blocks",
        "matched 2 blocks, 2 good, diverged",
        "rows as stored: True",
        "fingerprint:rows",
    ],
}


def test_every_example_has_a_row() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXPECTED)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all: what is compiled at the first use is compiled once."""
    return tmp_path_factory.mktemp("home")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example_runs(name: str, home: Path, tmp_path: Path) -> None:
    env = {"CEDAGENT_HOME": str(home), "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
    got = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env=os.environ | env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert got.returncode == 0, got.stderr
    for text in EXPECTED[name]:
        assert text in got.stdout
