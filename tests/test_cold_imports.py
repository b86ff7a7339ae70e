"""In a fresh process: the package and `--help` load no torch, references load no triton.

No time limits here: speed is measured by benchmarks, on an idle machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = os.pathsep.join(str(ROOT / part) for part in (".", "kvstore", "kernels"))

HEAVY = ("torch", "triton", "transformers", "prompt_toolkit", "rich", "tokenizers", "llguidance")


def fresh(code: str) -> str:
    got = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | {"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
    )
    assert got.returncode == 0, got.stderr
    return got.stdout


def loaded_after(code: str) -> set[str]:
    out = fresh(f"import sys\n{code}\nprint('LOADED', *sys.modules)")
    return {name.split(".")[0] for name in out.split("LOADED")[1].split()}


def test_import_cedagent_loads_no_torch() -> None:
    assert not loaded_after("import cedagent") & set(HEAVY)


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["chat", "--help"], ["kv", "--help"]])
def test_help_loads_no_torch(argv: list[str]) -> None:
    code = (
        "from cedagent.cli.main import main\n"
        f"try: main({argv!r})\n"
        "except SystemExit as stop: assert not stop.code"
    )
    assert not loaded_after(code) & set(HEAVY)


@pytest.mark.parametrize("package", ["cedagent.chat", "cedagent.agent", "ced_kvstore"])
def test_packages_without_tensors_load_no_torch(package: str) -> None:
    code = (
        "import importlib, pkgutil\n"
        f"package = importlib.import_module({package!r})\n"
        "for entry in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "    importlib.import_module(entry.name)\n"
    )
    assert "torch" not in loaded_after(code)


@pytest.mark.slow
def test_references_import_with_triton_blocked() -> None:
    code = (
        "import sys, importlib, pkgutil\n"
        "sys.modules['triton'] = None\n"
        "import ced_kernels\n"
        "names = ['ced_kernels', 'cedagent.model', 'cedagent.engine']\n"
        "for name in names:\n"
        "    package = importlib.import_module(name)\n"
        "    for entry in pkgutil.walk_packages(package.__path__, name + '.'):\n"
        "        if entry.name.rpartition('.')[2] != 'kernel' and '._triton' not in entry.name:\n"
        "            importlib.import_module(entry.name)\n"
        "print('done')"
    )
    assert fresh(code).strip() == "done"
