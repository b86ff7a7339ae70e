"""A private home, a tiny model, a scripted one, and the command line run in this process."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cedagent.cli import loading
from cedagent.cli.main import run
from cedagent.model.tiny import write_tiny
from cedagent.testing import ScriptedModel


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command line did."""

    code: int
    out: str
    err: str


class Script(ScriptedModel):
    """A scripted model that the command line can hold as an engine."""

    store = None

    def __init__(self, outputs: Sequence[str], **more: Any) -> None:
        super().__init__(outputs, **more)
        self.notices: list[str] = []

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where native kernels are compiled once for all homes."""
    return tmp_path_factory.mktemp("native")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, native: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CEDAGENT_MODEL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CEDAGENT_DEBUG", "1")
    monkeypatch.setenv("CEDAGENT_HOME", str(tmp_path / "home"))
    cache = tmp_path / "home" / "cache"
    cache.mkdir(parents=True)
    (cache / "native").symlink_to(native)
    return tmp_path / "home"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny", seed=3)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    def call(*argv: str | os.PathLike[str], stdin: str = "") -> Ran:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with redirect_stdout(out), redirect_stderr(err):
            code = run([str(part) for part in argv])
        return Ran(code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def scripted(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Script]:
    """Let the command line load a model that writes these outputs."""

    def use(*outputs: str, **more: Any) -> Script:
        model = Script(outputs, model_dir=tiny, **more)
        monkeypatch.setattr(loading, "ensure_model", lambda *_, **__: model.model_dir)
        monkeypatch.setattr(loading, "open_engine", lambda *_, **__: model)
        return model

    return use
