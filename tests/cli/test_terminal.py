"""The chat in a real terminal: Ctrl-C in an answer and in a prefill, Ctrl-D, slash commands."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Screens = Callable[..., Any]
CTRL_C, CTRL_D = "\x03", "\x04"

pytestmark = pytest.mark.slow


def session_of(home: Path) -> list[dict[str, object]]:
    (path,) = (home / "sessions").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(
    screen: Screens, heavy: Path, home: Path
) -> None:
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
    screen: Screens, heavy: Path, home: Path, tmp_path: Path
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


def test_ctrl_c_in_a_one_shot_leaves_with_130(screen: Screens, heavy: Path, home: Path) -> None:
    argv = ["chat", "-m", str(heavy), "-p", "a story", "--temperature", "1.2"]
    with screen(*argv, "--tool-choice", "none", "--no-builtin-tools", home=home) as shown:
        shown.wait_for(".{20}")
        time.sleep(0.5)
        shown.send(CTRL_C)
        assert shown.wait_for_end() == 130


def test_sessions_switch_fork_and_the_last_one_resumes(
    screen: Screens, heavy: Path, home: Path
) -> None:
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
