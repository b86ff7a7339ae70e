"""The chat in a real terminal: Ctrl-C in an answer and in a prefill, Ctrl-D, slash commands."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cedagent.model.tiny import write_tiny

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = os.pathsep.join(str(ROOT / part) for part in (".", "kvstore", "kernels"))
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][AB0]|\x1b[=>]|\r")
CTRL_C, CTRL_D = "\x03", "\x04"

pytestmark = pytest.mark.slow


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

    def wait_for(self, pattern: str, timeout_s: float = 60) -> str:
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
def screen(*argv: str, home: Path, **env: str) -> Iterator[Screen]:
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


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that takes long enough to be interrupted."""
    return write_tiny(
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


def session_of(home: Path) -> list[dict[str, object]]:
    (path,) = (home / "sessions").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(heavy: Path, home: Path) -> None:
    argv = ["chat", "-m", str(heavy), "--temperature", "1.2", "--tool-choice", "none"]
    with screen(*argv, "--no-builtin-tools", home=home) as shown:
        shown.wait_for("Ctrl-D leaves.*>")
        shown.send("tell me a long story\r")
        shown.wait_for("long story.*\n.*\n?.{20}")
        started = time.monotonic()
        shown.send(CTRL_C)
        shown.wait_for("cancelled.*>")
        assert time.monotonic() - started < 10
        shown.send("/usage\r")
        assert "sampled" in shown.wait_for("rows: .*>")
        shown.send(CTRL_C)
        shown.wait_for("to leave, press Ctrl-D.*>")
        shown.send("/nonsense\r")
        shown.wait_for("no command /nonsense.*nothing was sent.*>")
        shown.send(CTRL_D)
        assert shown.wait_for_end() == 0
    entries = session_of(home)
    outputs = [entry for entry in entries if entry["kind"] == "output"]
    assert [entry["ending"] for entry in outputs] == ["cancelled"]
    assert not [entry for entry in entries if "nonsense" in str(entry.get("text"))]


def test_ctrl_c_stops_a_prefill_within_a_tile_and_keeps_the_session(
    heavy: Path, home: Path, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.txt"
    rules.write_text(" ".join(f"rule {n}" for n in range(700)))
    argv = ["chat", "-m", str(heavy), "-s", f"@{rules}", "--no-builtin-tools", "--session", "s"]
    with screen(*argv, "--no-kv", "--max-tokens", "3", home=home) as shown:
        shown.wait_for("Ctrl-D leaves.*>")
        shown.send("hello\r")
        shown.wait_for("reused .*to do ")
        started = time.monotonic()
        shown.send(CTRL_C)
        shown.wait_for("cancelled while the prompt was read.*>")
        assert time.monotonic() - started < 5
        shown.send("/usage\r")
        used = shown.wait_for("encoded ([0-9,]+) .*>")
        encoded = int(re.findall(r"encoded ([0-9,]+) ", used)[-1].replace(",", ""))
        total = len(next(e["ids"] for e in session_of(home) if e["kind"] == "head"))  # type: ignore[arg-type]
        assert encoded < total
        assert encoded % 128 == 0
        shown.send("hello again\r")
        shown.wait_for("stopped after 3 tokens.*>", 120)
        shown.send("/quit\r")
        assert shown.wait_for_end() == 0
    kinds = [(e["kind"], e.get("ending")) for e in session_of(home)]
    assert kinds[1:] == [
        ("append", None),
        ("output", "cancelled"),
        ("append", None),
        ("output", "limit"),
    ]


def test_ctrl_c_in_a_one_shot_leaves_with_130(heavy: Path, home: Path) -> None:
    argv = ["chat", "-m", str(heavy), "-p", "a story", "--temperature", "1.2"]
    with screen(*argv, "--tool-choice", "none", "--no-builtin-tools", home=home) as shown:
        shown.wait_for(".{20}")
        time.sleep(0.5)
        shown.send(CTRL_C)
        assert shown.wait_for_end() == 130


def test_sessions_switch_fork_and_the_last_one_resumes(heavy: Path, home: Path) -> None:
    argv = ["chat", "-m", str(heavy), "--no-builtin-tools", "--max-tokens", "4"]
    with screen(*argv, "--session", "first", home=home) as shown:
        shown.wait_for("Session first.*>")
        shown.send("hello\r")
        shown.wait_for("4 tokens.*>")
        shown.send("/fork\r")
        shown.wait_for("Session first-fork, 1 turn.*>")
        shown.send("/new second\r")
        shown.wait_for("Session second.*>")
        shown.send("/switch first\r")
        shown.wait_for("Session first, 1 turn.*/continue.*>")
        shown.send("/continue\r")
        shown.wait_for("4 tokens.*>")
        shown.send("/switch nobody\r")
        shown.wait_for("no session nobody.*>")
        shown.send("/sessions\r")
        shown.wait_for("first \\*.*>")
        shown.send(CTRL_D)
        assert shown.wait_for_end() == 0
    with screen(*argv, "-c", home=home, NO_COLOR="1") as shown:
        shown.wait_for("Session first, 1 turn.*>")
        shown.send("/quit\r")
        assert shown.wait_for_end() == 0
