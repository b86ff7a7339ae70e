"""Threads spin briefly by default, and the user's own policy stands."""

import subprocess
import sys

import pytest

REPORT = "import os; print(os.environ.get('OMP_WAIT_POLICY'), os.environ.get('GOMP_SPINCOUNT'))"


def policy(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {REPORT}"],
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_loading_the_engine_bounds_the_spin():
    assert policy("from cedagent import Engine") == "None 1000"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None"),
        ({"GOMP_SPINCOUNT": "77"}, "None 77"),
    ],
)
def test_what_the_user_set_stands(given, expected):
    assert policy("from cedagent import Engine", **given) == expected


@pytest.mark.slow
def test_nothing_changes_once_torch_is_loaded():
    assert policy("import torch; from cedagent import Engine") == "None None"


def test_importing_the_package_changes_nothing():
    assert policy("import cedagent") == "None None"
