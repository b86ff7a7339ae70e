"""Keys that come while the chat is busy: Ctrl-C gets through, a paste stays one message."""

from __future__ import annotations

import json
import os
import re
import signal
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cedagent.cli.keyboard import edited

Screens = Callable[..., Any]
CTRL_C, CTRL_D = "\x03", "\x04"
ASK = [
    "--temperature",
    "1.2",
    "--tool-choice",
    "none",
    "--no-builtin-tools",
    "--no-kv",
    "--seed",
    "5",
]
PASTE = "".join(f"pasted line {n} of many\n" for n in range(260))


def messages_of(home: Path) -> list[str]:
    (path,) = (home / "sessions").glob("*.jsonl")
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [entry["text"] for entry in entries if entry.get("role") == "user"]


def outputs_of(home: Path) -> list[str]:
    (path,) = (home / "sessions").glob("*.jsonl")
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [entry["ending"] for entry in entries if entry["kind"] == "output"]


def paste(shown: Any, text: str) -> None:
    """Send text while the terminal takes it; what it does not take in 3 s is not sent."""
    os.set_blocking(shown.master, False)
    data, stop = text.encode(), time.monotonic() + 3
    while data and time.monotonic() < stop:
        try:
            data = data[os.write(shown.master, data) :]
        except BlockingIOError:
            time.sleep(0.01)
    os.set_blocking(shown.master, True)


@pytest.mark.slow
@pytest.mark.parametrize("marks", [("", ""), ("\x1b[200~", "\x1b[201~")])
def test_ctrl_c_after_a_long_paste_stops_the_answer_and_discards_the_paste(
    screen: Screens, heavy: Path, home: Path, marks: tuple[str, str]
) -> None:
    assert len(PASTE) > 6000
    with screen("chat", "-m", str(heavy), *ASK, home=home) as shown:
        shown.wait_for("Ctrl-D leaves.*>")
        shown.send("tell me a long story\r")
        shown.wait_for("long story.*\n.*\n?.{20}")
        paste(shown, marks[0] + PASTE + marks[1])
        started = time.monotonic()
        shown.send(CTRL_C)
        assert "pasted line" not in shown.wait_for("cancelled.*>")
        assert time.monotonic() - started < 10
        shown.send("/usage\r")
        shown.wait_for("rows: .*>")
        shown.send(CTRL_D)
        assert shown.wait_for_end() == 0
    assert messages_of(home) == ["tell me a long story"]
    assert outputs_of(home) == ["cancelled"]


@pytest.mark.slow
def test_paste_during_an_answer_is_one_message_and_is_not_echoed_into_it(
    screen: Screens, heavy: Path, home: Path
) -> None:
    argv = ["chat", "-m", str(heavy), *ASK, "--max-tokens", "60"]
    with screen(*argv, home=home) as shown:
        shown.wait_for("Ctrl-D leaves.*>")
        shown.send("first\r")
        shown.wait_for("first.*\n.*\n?.{5}")
        paste(shown, PASTE)
        assert "pasted line" not in shown.wait_for("stopped after 60 tokens")
        shown.wait_for("pasted line 259 of many")
        shown.send("\r")
        shown.wait_for(r"reading.*to do 0 .*\n>")
        shown.send(CTRL_D)
        assert shown.wait_for_end() == 0
    assert messages_of(home) == ["first", PASTE.strip()]


@pytest.mark.slow
def test_lines_typed_before_the_first_prompt_are_one_message(
    screen: Screens, heavy: Path, home: Path
) -> None:
    argv = ["chat", "-m", str(heavy), *ASK, "--max-tokens", "3"]
    with screen(*argv, home=home) as shown:
        shown.send("one line\nanother line\n")
        shown.wait_for("Ctrl-D leaves.*>.*another line")
        shown.send("\r")
        shown.wait_for("stopped after 3 tokens.*>")
        shown.send(CTRL_D)
        assert shown.wait_for_end() == 0
    assert messages_of(home) == ["one line\nanother line"]


@pytest.mark.slow
def test_ctrl_d_during_an_answer_leaves_after_it(screen: Screens, heavy: Path, home: Path) -> None:
    argv = ["chat", "-m", str(heavy), *ASK, "--max-tokens", "60"]
    with screen(*argv, home=home) as shown:
        before = termios.tcgetattr(shown.master)
        shown.wait_for("Ctrl-D leaves.*>")
        shown.send("first\r")
        shown.wait_for("first.*\n.*\n?.{5}")
        shown.send(CTRL_D)
        assert shown.wait_for_end() == 0
        assert termios.tcgetattr(shown.master) == before
    assert outputs_of(home) == ["limit"]


@pytest.mark.slow
def test_what_was_typed_ahead_does_not_approve_a_call(
    screen: Screens, heavy: Path, home: Path, tmp_path: Path
) -> None:
    path = tmp_path / "asking.py"
    path.write_text(
        "from cedagent import tool\n\n@tool(approve='ask')\ndef wipe(flag: bool) -> str:\n"
        "    'Remove a thing.'\n    return 'it ran'\n"
    )
    argv = ["chat", "-m", str(heavy), "-t", str(path), "--no-builtin-tools", "--no-kv"]
    with screen(*argv, "--tool-choice", "wipe", "--max-tokens", "60", home=home) as shown:
        shown.wait_for("Ctrl-D leaves.*>")
        shown.send("go\r")
        shown.send("y\n")
        shown.wait_for(r"Run wipe .*\[y/N\] ")
        time.sleep(0.5)
        shown.send("nay\x7f\x7f\x7f")
        shown.send("n\n")
        assert "it ran" not in shown.wait_for("refused.*\n>")
        shown.send(CTRL_C)
        shown.wait_for("to leave, press Ctrl-D.*>")
        shown.send("go\r")
        shown.wait_for(r"Run wipe .*\[y/N\] ")
        shown.send("y\n")
        shown.wait_for("it ran")


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("moment", ["answer", "prompt"])
def test_termination_logs_the_partial_answer_and_gives_the_terminal_back(
    screen: Screens, heavy: Path, home: Path, signum: int, code: int, moment: str
) -> None:
    with screen("chat", "-m", str(heavy), *ASK, home=home) as shown:
        before = termios.tcgetattr(shown.master)
        shown.wait_for("Ctrl-D leaves.*>")
        if moment == "answer":
            shown.send("tell me a long story\r")
            shown.wait_for("long story.*\n.*\n?.{20}")
        shown.process.send_signal(signum)
        assert shown.wait_for_end() == code
        assert termios.tcgetattr(shown.master) == before
        assert "Traceback" not in shown.text
    if moment == "answer":
        assert outputs_of(home) == ["cancelled"]


@pytest.mark.slow
def test_closing_the_terminal_during_an_answer_logs_the_partial_answer(
    screen: Screens, heavy: Path, home: Path
) -> None:
    with screen("chat", "-m", str(heavy), *ASK, home=home) as shown:
        shown.wait_for("Ctrl-D leaves.*>")
        shown.send("tell me a long story\r")
        shown.wait_for("long story.*\n.*\n?.{20}")
        os.close(shown.master)
        try:
            assert shown.process.wait(30) == 129
        finally:
            # What closes it at the end finds a descriptor of that number.
            shown.master = os.open(os.devnull, os.O_RDWR)
    assert outputs_of(home) == ["cancelled"]


@pytest.mark.slow
def test_chat_goes_on_without_a_history_that_cannot_be_kept(
    screen: Screens, heavy: Path, home: Path
) -> None:
    (home / "history").mkdir()
    with screen("chat", "-m", str(heavy), *ASK, "--max-tokens", "3", home=home) as shown:
        shown.wait_for("no history is kept: .*history: Is a directory.*Ctrl-D leaves.*>")
        shown.send("hello\r")
        shown.wait_for("stopped after 3 tokens.*>")
        shown.send(CTRL_D)
        assert shown.wait_for_end() == 0
    assert len(re.findall("no history", shown.text)) == 1


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("a\rb\r\nc\n", "a\nb\nc"),
        ("\x1b[200~one\ntwo\x1b[201~", "one\ntwo"),
        ("abd\x7fc\x1b[D\x1bOA", "abc"),
        ("first\nwrong\x15right", "first\nright"),
        ("\x07bell\x9b", "bell"),
        ("\x7f\x15", ""),
    ],
)
def test_keys_become_the_text_that_they_would_have_made(keys: str, text: str) -> None:
    assert edited(keys) == text
