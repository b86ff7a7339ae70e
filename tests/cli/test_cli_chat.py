"""One-shot and piped chat: what is on stdout, what is on stderr, and the exit code."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cedagent.cli.main import run
from cedagent.testing import call

Cli = Callable[..., Any]
Scripted = Callable[..., Any]


def test_one_shot_prints_call_result_and_sentence(cli: Cli, scripted: Scripted) -> None:
    scripted(call("calculator", expression="17% of 2450"), "It is 416.5.")
    ran = cli("chat", "-p", "What is 17% of 2450?", "--tool-choice", "calculator")
    assert ran.code == 0
    assert ran.err == ""
    assert ran.out.splitlines() == [
        'calculator {"expression": "17% of 2450"}',
        "  calculator = 416.5",
        "It is 416.5.",
    ]


def test_run_is_the_one_shot_alias(cli: Cli, scripted: Scripted) -> None:
    scripted("Hello.")
    assert cli("run", "say", "hello").out == "Hello.\n"


def test_pipe_answers_one_prompt_per_line_in_one_session(cli: Cli, scripted: Scripted) -> None:
    model = scripted("one", "two", "three")
    ran = cli("chat", stdin="first\n\n  \nsecond\nthird")
    assert (ran.code, ran.out, ran.err) == (0, "one\ntwo\nthree\n", "")
    assert len(model.prefills) == 3
    assert [before for before, _ in model.prefills[1:]] > [0, 0]


def test_bytes_that_are_no_utf8_do_not_end_the_chat(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted("one", "two")
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9\nand na\xc3\xafve\n"), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run(["chat", "--session", "s"]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert run(["sessions", "show", "s"]) == 0
    shown = capsys.readouterr().out
    assert "> caf\N{REPLACEMENT CHARACTER}\n" in shown
    assert "> and naïve\n" in shown


def test_dash_reads_the_whole_input_as_one_prompt(cli: Cli, scripted: Scripted) -> None:
    scripted("both")
    assert cli("chat", "-p", "-", stdin="first\nsecond\n").out == "both\n"
    shown = cli("sessions", "ls", "--json")
    assert json.loads(shown.out)[0]["first"] == "first\nsecond\n"


def test_jsonl_is_one_event_per_line_and_nothing_else(cli: Cli, scripted: Scripted) -> None:
    scripted(call("calculator", expression="2^10"), "1024, naïvely.")
    ran = cli("chat", "-p", "What is 2^10?", "--jsonl")
    events = [json.loads(line) for line in ran.out.splitlines()]
    kinds = [event["kind"] for event in events]
    assert kinds[0] == "prefill"
    assert kinds[-1] == "done"
    assert {"tool_start", "tool_args", "tool_end", "text"} <= set(kinds)
    assert next(e for e in events if e["kind"] == "tool_end")["result"] == "1024"
    text = "".join(event["delta"] for event in events if event["kind"] == "text")
    assert text == "1024, naïvely."
    assert events[-1]["usage"]["sampled"] > 0
    assert ran.err == ""


def test_continue_resumes_the_last_session(cli: Cli, scripted: Scripted) -> None:
    scripted("one", "two")
    cli("chat", "-p", "first", "--session", "mine")
    ran = cli("chat", "-c", "-p", "second")
    assert ran.out == "two\n"
    (session,) = json.loads(cli("sessions", "ls", "--json").out)
    assert (session["name"], session["turns"]) == ("mine", 2)


def test_fork_starts_from_a_copy_up_to_a_turn(cli: Cli, scripted: Scripted) -> None:
    scripted("one", "two", "three")
    cli("chat", stdin="a\nb\n")
    origin = json.loads(cli("sessions", "ls", "--json").out)[0]["name"]
    ran = cli("chat", "--fork", f"{origin}@1", "--session", "copy", "-p", "other")
    assert (ran.code, ran.out) == (0, "two\n")
    turns = {s["name"]: s["turns"] for s in json.loads(cli("sessions", "ls", "--json").out)}
    assert turns == {origin: 2, "copy": 2}


def test_session_with_fewer_tools_resumes_without_naming_them(cli: Cli, scripted: Scripted) -> None:
    scripted("one", "two")
    cli("chat", "-p", "a", "--session", "bare", "--no-builtin-tools")
    ran = cli("chat", "-p", "b", "--session", "bare")
    assert (ran.code, ran.out, ran.err) == (0, "two\n", "")


def test_limit_has_code_3_and_says_so_on_stderr(cli: Cli, scripted: Scripted) -> None:
    scripted("a long answer that does not end within two tokens")
    ran = cli("chat", "-p", "go", "--max-tokens", "2")
    assert ran.code == 3
    assert ran.out.endswith("\n")
    assert ran.err.count("\n") == 1
    assert "2 tokens" in ran.err


def test_full_context_has_code_3(cli: Cli, scripted: Scripted) -> None:
    scripted("one", context_limit=64)
    ran = cli("chat", "-p", "word " * 200, "--no-builtin-tools")
    assert ran.code == 3
    assert ran.err.count("\n") == 1


def test_refused_call_has_code_4(cli: Cli, scripted: Scripted, tmp_path: Path) -> None:
    path = tmp_path / "asking.py"
    path.write_text(
        "from cedagent import tool\n\n@tool(approve='ask')\ndef wipe(name: str) -> str:\n"
        "    'Remove a thing.'\n    raise SystemExit('it ran')\n"
    )
    scripted(call("wipe", {"name": "all"}), "Not done.")
    ran = cli("chat", "-p", "wipe it", "-t", path)
    assert ran.code == 4
    assert "it ran" not in ran.out
    assert ran.out.endswith("Not done.\n")
    assert ran.err.count("\n") == 1
    assert "wipe was not run" in ran.err
    assert "the user refused" not in ran.out, "nobody was asked"


def test_tool_error_goes_to_the_model_and_is_no_failure(cli: Cli, scripted: Scripted) -> None:
    scripted(call("calculator", expression="2 +* 3"), "I mistyped that.")
    ran = cli("chat", "-p", "x")
    assert ran.code == 0
    assert "calculator failed: Error: " in ran.out


def test_tools_of_a_file_are_offered(cli: Cli, scripted: Scripted, tmp_path: Path) -> None:
    path = tmp_path / "words.py"
    path.write_text(
        "from cedagent import tool\n\n@tool\ndef count(word: str) -> int:\n"
        "    'Count letters.'\n    return len(word)\n"
    )
    scripted(call("count", word="tree"), "Four.")
    ran = cli("chat", "-p", "x", "-t", path, "--no-builtin-tools")
    assert "  count = 4\n" in ran.out


def test_control_characters_never_reach_the_output(cli: Cli, scripted: Scripted) -> None:
    scripted("red \x1b[31malert\x07 \x9b2J done")
    ran = cli("chat", "-p", "x")
    assert not set(ran.out) & {"\x1b", "\x07", "\x9b"}


def test_notices_of_the_engine_are_warnings_said_once(cli: Cli, scripted: Scripted) -> None:
    model = scripted("one", "two")
    model.notices.append("the disk is full")
    ran = cli("chat", stdin="a\nb\n")
    assert ran.err == "cedagent: the disk is full\n"
    assert ran.code == 0


@pytest.mark.parametrize("fmt", [[], ["--jsonl"]])
def test_real_model_answers_in_a_pipe(cli: Cli, tiny: Path, fmt: list[str]) -> None:
    ran = cli("chat", "-m", tiny, "--max-tokens", "12", *fmt, stdin="What is 2^10?\n")
    assert ran.code in (0, 3)
    assert "\x1b" not in ran.out
    assert ran.out.endswith("\n")


def test_same_seed_gives_the_same_answer_with_and_without_the_store(cli: Cli, tiny: Path) -> None:
    argv = ["chat", "-m", tiny, "-p", "x", "--temperature", "0.9", "--seed", "7"]
    argv += ["--max-tokens", "40"]
    first, again, without = cli(*argv), cli(*argv), cli(*argv, "--no-kv")
    assert first.out == again.out == without.out
    assert cli(*argv[:-3], "8", *argv[-2:]).out != first.out
