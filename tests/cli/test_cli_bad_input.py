"""Bad input is one clear line on stderr, nothing on stdout, and exit code 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cedagent.errors import EngineError

Cli = Callable[..., Any]

TOOLS = {
    "no_hints.py": (
        "from cedagent import tool\n\n@tool\ndef f(x):\n    'Doc.'\n    return x\n",
        ["no_hints.py", "x"],
    ),
    "not_python.py": ("def f(:\n", ["not_python.py", "line 1"]),
    "raises.py": ("x = 1\ny = x / 0\n", ["raises.py", "line 2", "ZeroDivisionError"]),
    "imports.py": ("import no_such_module_here\n", ["imports.py", "no_such_module_here"]),
    "exits.py": ("raise SystemExit(7)\n", ["exits.py", "SystemExit"]),
    "empty.py": ("x = 1\n", ["empty.py", "at least one tool"]),
}


def assert_one_line(ran: Any, *parts: str, code: int = 2) -> None:
    assert ran.code == code, ran
    assert ran.out == ""
    assert ran.err.startswith("cedagent: ")
    assert ran.err.count("\n") == 1
    for part in parts:
        assert part in ran.err


@pytest.mark.parametrize(
    "command", [["chat", "-p", "x"], ["run", "x"], ["warm"], ["kv", "selftest"]]
)
def test_unknown_model_is_one_line(cli: Cli, command: list[str]) -> None:
    assert_one_line(cli(*command, "-m", "no-such-model"), "no-such-model")


def test_missing_default_model_says_how_to_get_it(cli: Cli) -> None:
    assert_one_line(cli("chat", "-p", "x"), "cedagent model pull")


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_bad_tool_file_is_one_line(cli: Cli, tiny: Path, tmp_path: Path, name: str) -> None:
    text, parts = TOOLS[name]
    path = tmp_path / name
    path.write_text(text)
    assert_one_line(cli("chat", "-m", tiny, "-p", "x", "-t", path), *parts)
    assert_one_line(cli("tools", "check", path), *parts)


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("no/such/file.py", "no such file"),
        ("no_such_module_here:f", "no module of that name"),
        ("cedagent:no_such_name", "no_such_name"),
    ],
)
def test_missing_tool_source_is_one_line(cli: Cli, tiny: Path, source: str, part: str) -> None:
    assert_one_line(cli("chat", "-m", tiny, "-p", "x", "-t", source), part)


@pytest.mark.slow
def test_missing_files_are_one_line(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    missing, binary = tmp_path / "missing.txt", tmp_path / "binary.txt"
    binary.write_bytes(b"abc\xff")
    assert_one_line(cli("chat", "-m", tiny, "-p", "x", "-s", f"@{missing}"), str(missing))
    assert_one_line(cli("chat", "-m", tiny, "-p", "x", "-s", f"@{binary}"), "UTF-8", "byte 3")
    assert_one_line(cli("warm", missing, "-m", tiny), str(missing))
    assert_one_line(cli("kv", "why", missing, "-m", tiny), str(missing))


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["no-such-command"], "no-such-command"),
        (["chat", "--no-such-option"], "--no-such-option"),
        (["chat", "-p", "  "], "prompt is empty"),
        (["chat", "-p", "x", "--temperature", "-1"], "--temperature"),
        (["chat", "-p", "x", "--top-p", "0"], "--top-p"),
        (["chat", "-p", "x", "-c", "--session", "a"], "--session"),
        (["chat", "-p", "x", "--session", "../a"], "../a"),
        (["chat", "-p", "x", "--fork", "nobody"], "nobody"),
        (["chat", "-p", "x", "-c"], "no session to resume"),
        (["chat", "-p", "x", "--kv", "a", "--no-kv"], "--no-kv"),
        (["chat", "-p", "x", "--tool-choice", "nobody"], "calculator"),
        (["chat", "-p", "x", "--temperature", "nan"], "number of at least 0, got nan"),
        (["chat", "-p", "x", "--top-p", "abc"], "at most 1, got abc"),
        (["chat", "-p", "x", "--session", ""], "session name ''"),
        (["chat", "-p", "x", "--tool-choice", "required", "--no-builtin-tools"], "no tools"),
        (["chat", "-p", "x", "-s", "@"], "file after @"),
        (["chat", "-p", "x", "-t", "."], "is a folder"),
        (["chat", "-p", "x", "-t", "/tmp"], "is a folder"),
        (["sessions", "show", "nobody"], "nobody"),
        (["sessions", "rm", "nobody"], "nobody"),
        (["kv", "why"], "--session"),
        (["kv", "why", "--session", "nobody"], "nobody"),
        (["kv", "rm"], "LABEL"),
        (["kv", "rm", "nobody"], "nobody"),
        (["model", "pull", "nobody"], "nobody"),
        (["model", "cost", "no-such.json"], "no-such.json"),
        (["model", "score", "no-such.txt"], "no-such.txt"),
        (["model", "convert", "no-such-folder", "dst", "--encoder-layers", "2"], "no-such-folder"),
    ],
)
def test_bad_argument_is_one_line(
    cli: Cli,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CEDAGENT_MODEL", str(tiny))
    assert_one_line(cli(*argv), part)


def test_unexpected_error_is_one_line_with_code_5(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.delenv("CEDAGENT_DEBUG")
    monkeypatch.setattr("cedagent.cli.loading.ensure_model", broken)
    assert_one_line(cli("chat", "-p", "x"), "RuntimeError: first line", code=5)


def test_engine_error_has_code_5(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise EngineError("no luck")

    monkeypatch.setattr("cedagent.cli.loading.ensure_model", broken)
    assert_one_line(cli("chat", "-p", "x"), "no luck", code=5)


def test_another_system_prompt_or_tool_on_a_session_is_one_line(
    cli: Cli, scripted: Callable[..., Any], tmp_path: Path
) -> None:
    scripted("one", "two")
    assert cli("chat", "-p", "hello", "--session", "s", "-s", "Be brief.").code == 0
    more = tmp_path / "more_tools.py"
    more.write_text(
        "from cedagent import tool\n\n@tool\ndef f(x: int) -> int:\n    'Doc.'\n    return x\n"
    )
    for extra in (["-s", "Be long."], ["-t", str(more)]):
        assert_one_line(cli("chat", "-p", "again", "--session", "s", *extra), "session s")
    ran = cli("chat", "-p", "again", "--session", "s", "-s", "Be brief.")
    assert (ran.code, ran.out) == (0, "two\n")


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--session", "s", "--seed", "6"], "keeps the seed it began with (5)"),
        (["--fork", "s", "--session", "s"], "session s exists"),
        (["--fork", "s@x"], "-1 to 1, got x"),
        (["--fork", "s@2"], "-1 to 1, got 2"),
        (["--fork", "s@"], "got nothing"),
        (["--fork", "nobody"], "no session nobody"),
        (["--session", "../s"], "../s"),
        (["--session", "s", "--tool-choice", "calculator"], "no tools"),
    ],
)
def test_wrong_sessions_are_told_before_the_model_is_loaded(
    cli: Cli,
    scripted: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    part: str,
) -> None:
    scripted("one", "two")
    start = ["chat", "-p", "x", "--session", "s", "--seed", "5", "--no-builtin-tools"]
    assert cli(*start).code == 0

    def loaded(*args: object, **kwargs: object) -> None:
        raise EngineError("the model was loaded")

    monkeypatch.setattr("cedagent.cli.loading.open_engine", loaded)
    assert_one_line(cli("chat", "-p", "x", *argv), part)


def test_tool_file_that_is_no_text_names_no_line(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "binary.py"
    path.write_bytes(bytes(range(256)))
    ran = cli("tools", "check", path)
    assert_one_line(ran, "binary.py")
    assert "None" not in ran.err


def test_tool_named_like_a_builtin_one_is_warned_of(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from cedagent import tool\n\n@tool\ndef now() -> str:\n    'Doc.'\n    return ''\n"
    )
    ran = cli("tools", "check", path)
    assert ran.code == 0
    assert "now is also a built-in tool" in ran.err
