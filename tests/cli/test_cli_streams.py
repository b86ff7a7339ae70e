"""Streams and files that fail: closed, full or gone; every end is one line or none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cedagent.cli import interrupt
from cedagent.cli.interrupt import Terminated

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = os.pathsep.join(str(ROOT / part) for part in (".", "kvstore", "kernels"))
Cli = Callable[..., Any]


def shell(line: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which $CED is the command line."""
    env = {
        "CEDAGENT_HOME": str(home),
        "PYTHONPATH": SOURCES,
        "CED": f"{sys.executable} -m cedagent",
    }
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_closed_stdout_is_one_line(home: Path) -> None:
    ran = shell("$CED sessions ls >&-", home)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "standard output is closed" in ran.stderr


def test_closed_stdin_and_stderr_do_no_harm(home: Path) -> None:
    ran = shell("$CED sessions ls <&- 2>&-", home)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("No sessions yet")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["sessions ls", "--help", "kv ls --json"])
def test_full_stdout_is_one_line(home: Path, command: str) -> None:
    ran = shell(f"$CED {command} >/dev/full", home)
    assert ran.returncode == 5
    assert ran.stderr == (
        "cedagent: standard output: No space left on device; make room and try again\n"
    )


@pytest.mark.parametrize("command", ["--help", "chat --help", "kv"])
def test_reader_that_leaves_early_is_no_error(home: Path, command: str) -> None:
    # `true` reads nothing: every write fails.
    ran = shell(f"$CED {command} | true", home)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("group", [[], ["kv"], ["sessions"], ["model"], ["tools"]])
def test_bare_group_prints_its_help(cli: Cli, group: list[str]) -> None:
    ran = cli(*group)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Usage: cedagent")
    assert len(ran.out.splitlines()) > 5


def test_folder_that_cannot_be_made_is_one_line(cli: Cli) -> None:
    ran = cli("model", "tiny", "/proc/x")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith("cedagent: /proc/x: ")


def test_session_that_may_not_be_removed_is_one_line(
    cli: Cli, scripted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted("one")
    cli("chat", "-p", "x", "--session", "s")

    def forbidden(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "unlink", forbidden)
    ran = cli("sessions", "rm", "s")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "s.jsonl: Permission denied; change its permissions" in ran.err


def test_termination_is_an_exit_code(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*args: object, **kwargs: object) -> None:
        raise Terminated(interrupt.ENDINGS[0])

    monkeypatch.setattr("cedagent.cli.loading.ensure_model", ended)
    assert cli("chat", "-p", "x").code == 143


@pytest.mark.parametrize("group", ["kv", "sessions", "model", "tools"])
def test_no_help_line_is_cut(cli: Cli, group: str) -> None:
    commands = cli(group, "--help").out.partition("Commands:")[2]
    assert commands
    assert "..." not in commands
