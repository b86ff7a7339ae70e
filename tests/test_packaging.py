"""One wheel ships three import packages, and none of our folders shadows somebody's package."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (found,) = out.glob("*.whl")
    return found


def test_wheel_ships_three_packages_with_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "cedagent",
        "ced_kernels",
        "ced_kvstore",
    }
    for package in ("cedagent", "ced_kernels", "ced_kvstore"):
        assert f"{package}/py.typed" in names
        assert f"{package}/__init__.py" in names
    assert any(name.endswith("licenses/NOTICE") for name in names)


def test_wheel_holds_every_file_of_the_tree(wheel: Path) -> None:
    """Modules, and what they read: C sources, texts."""
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, base in (("cedagent", ""), ("ced_kvstore", "kvstore"), ("ced_kernels", "kernels")):
        for path in (ROOT / base / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert path.relative_to(ROOT / base).as_posix() in names


def test_project_folders_are_no_packages() -> None:
    assert not (ROOT / "kvstore" / "__init__.py").exists()
    assert not (ROOT / "kernels" / "__init__.py").exists()
    for folder in ("tests", "examples"):
        assert not list((ROOT / folder).rglob("__init__.py"))
    assert not (ROOT / "tests" / "kernels").exists()
    assert not (ROOT / "tests" / "kvstore").exists()


def test_installed_wheel_gives_no_name_kernels_or_kvstore(wheel: Path, tmp_path: Path) -> None:
    """From the wheel alone `kernels` and `kvstore` cannot be found, and the packages can."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "import importlib.util as u; "
        "print(u.find_spec('kernels'), u.find_spec('kvstore')); "
        "print(all(u.find_spec(n) for n in ('cedagent', 'ced_kernels', 'ced_kvstore')))"
    )
    got = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert got.stdout.split() == ["None", "None", "True"]


def test_script_and_version_agree_with_the_project() -> None:
    import tomllib
    from importlib import import_module

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["cedagent"].partition(":")
    assert callable(getattr(import_module(module), name))
    assert import_module("cedagent").__version__ == project["version"]
