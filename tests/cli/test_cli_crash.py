"""kill -9 in the middle of a turn, and commands beside a running chat."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = os.pathsep.join(str(ROOT / part) for part in (".", "kvstore", "kernels"))
Cli = Callable[..., Any]

ASK = ["--no-builtin-tools", "--tool-choice", "none", "--temperature", "1.3", "--seed", "11"]
STORY = "Tell me a story of many words. " * 40


def start(home: Path, *argv: str) -> subprocess.Popen[str]:
    env = {"CEDAGENT_HOME": str(home), "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "cedagent", *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | env,
        text=True,
    )


def read_until(process: subprocess.Popen[str], kind: str) -> None:
    """Read events until one of this kind has come."""
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["kind"] == kind:
            return
    raise AssertionError(f"the process ended without {kind}")


@pytest.mark.stress
@pytest.mark.parametrize("moment", ["prefill", "text"])
def test_after_kill_9_the_session_goes_on(cli: Cli, tiny: Path, home: Path, moment: str) -> None:
    argv = ["-m", str(tiny), "--session", "s", *ASK, "--max-tokens", "3000", "--jsonl"]
    process = start(home, "chat", *argv, "-p", STORY)
    read_until(process, moment)
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    log = home / "sessions" / "s.jsonl"
    kinds = [json.loads(line)["kind"] for line in log.read_text().splitlines()]
    assert kinds == ["head", "append"], "an unfinished output is not in the log"
    ran = cli("chat", "-c", "-m", tiny, "-p", "And then?", *ASK, "--max-tokens", "5", "--jsonl")
    assert ran.code == 3
    done = json.loads(ran.out.splitlines()[-1])
    assert done["usage"]["sampled"] == 5
    (session,) = json.loads(cli("sessions", "ls", "--json").out)
    assert (session["name"], session["turns"]) == ("s", 2)
    assert cli("kv", "verify").code == 0


@pytest.mark.stress
def test_warm_beside_a_running_chat_works_or_says_why_not(cli: Cli, tiny: Path, home: Path) -> None:
    process = start(home, "chat", "-m", str(tiny), *ASK, "--max-tokens", "20", "--jsonl")
    assert process.stdin is not None
    try:
        process.stdin.write(STORY + "\n")
        process.stdin.flush()
        read_until(process, "done")
        ran = cli("warm", "-m", tiny)
        assert ran.code in (0, 5)
        if ran.code == 5:
            assert ran.err.count("\n") == 1
            assert "in use by another process" in ran.err
        # The chat is none the worse for it.
        process.stdin.write("And then?\n")
        process.stdin.flush()
        read_until(process, "done")
    finally:
        process.stdin.close()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
    assert cli("warm", "-m", tiny).code == 0


@pytest.mark.stress
def test_session_open_elsewhere_is_one_line(cli: Cli, tiny: Path, home: Path) -> None:
    process = start(home, "chat", "-m", str(tiny), *ASK, "--session", "s", "--jsonl")
    assert process.stdin is not None
    try:
        process.stdin.write("hello\n")
        process.stdin.flush()
        read_until(process, "prefill")
        ran = cli("chat", "-m", tiny, "--session", "s", "-p", "x", "--no-kv")
        assert ran.code == 2
        assert (ran.out, ran.err.count("\n")) == ("", 1)
        assert "open in another place" in ran.err
    finally:
        process.kill()
        process.communicate()
