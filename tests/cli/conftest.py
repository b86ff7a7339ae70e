"""A private home, small models, a scripted one, the command line here and on a terminal."""

from __future__ import annotations

import fcntl
import gc
import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cedagent.cli import loading
from cedagent.cli.main import run
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import Checkpoint, tensor_shapes, write_model
from cedagent.model.tiny import write_tiny
from cedagent.testing import ScriptedModel

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = os.pathsep.join(str(ROOT / part) for part in (".", "kvstore", "kernels"))
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][AB0]|\x1b[=>]|\r")


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


class Screen:
    """A process on a terminal of its own, and everything it has written there."""

    def __init__(self, *argv: str, env: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (30, 100))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cedagent", *argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | env,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(slave)
        self.text = ""
        self._seen = 0

    def send(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait_for(self, pattern: str, timeout_s: float = 30) -> str:
        """Wait until new text matches; return what came since the last match."""
        stop = time.monotonic() + timeout_s
        while True:
            match = re.search(pattern, self.text[self._seen :], re.DOTALL)
            if match:
                shown = self.text[self._seen : self._seen + match.end()]
                self._seen += match.end()
                return shown
            left = stop - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.text[self._seen :]!r}"
            if select.select([self.master], [], [], min(left, 0.2))[0]:
                try:
                    data = os.read(self.master, 65536)
                except OSError:
                    data = b""
                assert data or self.process.poll() is None, self.text
                self.text += ESCAPES.sub("", data.decode(errors="replace"))

    def wait_for_end(self, timeout_s: float = 30) -> int:
        stop = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < stop:
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.text += ESCAPES.sub("", os.read(self.master, 65536).decode())
                except OSError:
                    break
        return self.process.wait(max(1.0, stop - time.monotonic()))


def take_terminal() -> None:
    """Make standard input the controlling terminal, so that Ctrl-C becomes SIGINT."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def open_screen(*argv: str, home: Path, **env: str) -> Iterator[Screen]:
    settings = {
        "CEDAGENT_HOME": str(home),
        "PYTHONPATH": SOURCES,
        "TERM": "xterm-256color",
        # The line editor would ask this terminal for its cursor and wait for an answer.
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }
    shown = Screen(*argv, env=settings | env)
    try:
        yield shown
    finally:
        if shown.process.poll() is None:
            os.killpg(shown.process.pid, signal.SIGKILL)
            shown.process.wait()
        os.close(shown.master)


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
        # What a command holds until its process ends is garbage here.
        gc.unfreeze()
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


@pytest.fixture
def screen() -> Callable[..., AbstractContextManager[Screen]]:
    return open_screen


@pytest.fixture(scope="session")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that takes long enough to be interrupted, and never ends by itself."""
    path = write_tiny(
        tmp_path_factory.mktemp("model") / "heavy",
        n_layers=16,
        n_encoder_layers=12,
        hidden_size=384,
        n_heads=6,
        n_kv_heads=2,
        head_dim=64,
        intermediate_size=1536,
        max_position_embeddings=16_384,
        seed=3,
    )
    never_ends(path)
    return path


def never_ends(model_dir: Path) -> None:
    """Make the end of a turn too unlikely to be drawn: one channel speaks against it alone."""
    config = LlamaConfig.load(model_dir)
    checkpoint = Checkpoint(model_dir, config, dtype="float32")
    tensors = {
        name: checkpoint.vector(name) if len(shape) == 1 else checkpoint.matrix(name)[0]
        for name, shape in tensor_shapes(config).items()
    }
    embedding = tensors["model.embed_tokens.weight"].clone()
    embedding[:, 0] = 4
    embedding[config.eos_token_id, 0] = -4
    tensors["model.embed_tokens.weight"] = embedding
    write_model(model_dir, config, tensors, int8=tensors)
