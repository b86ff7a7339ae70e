"""Reasoning on the command line: dimmed on a terminal, absent from a pipe, `thinking` in JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from cedagent.chat.control import Mark
from cedagent.chat.dsml_render import call_block
from cedagent.cli import loading
from cedagent.cli.render import Lines, Plain, Terminal
from cedagent.events import Done, Text, Thinking, ToolArgs, ToolStart, Usage
from cedagent.testing import ScriptedModel

Cli = Callable[..., Any]
Scripted = Callable[..., Any]

EVENTS = (
    Thinking("Two "),
    Thinking("and two.\x1b[2J"),
    Text("Four."),
    Done("Four.", "end", Usage()),
)


def drawn(kind: type[Plain] | type[Lines], *events: Any) -> str:
    out = io.StringIO()
    renderer = kind(out)
    for event in events:
        renderer.event(event)
    return out.getvalue()


@pytest.fixture
def reasoner(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ScriptedModel]:
    """Let the command line load a DSML model that writes these outputs."""

    def use(*outputs: str, thinking: bool = True) -> ScriptedModel:
        model = ScriptedModel(outputs, chat_format="dsml", thinking=thinking)
        monkeypatch.setattr(model, "close", lambda: None)
        monkeypatch.setattr(loading, "ensure_model", lambda *_, **__: model.model_dir)
        monkeypatch.setattr(loading, "open_engine", lambda *_, **__: model)
        return model

    return use


def test_a_terminal_shows_reasoning_dimmed_and_the_answer_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = drawn(Terminal, *EVENTS)
    assert shown == "\x1b[2mTwo \x1b[0m\x1b[2mand two.[2J\x1b[0m\nFour.\n"
    call = drawn(Terminal, Thinking("hm"), ToolStart(0, "f"), ToolArgs(0, "{}"))
    assert call.startswith("\x1b[2mhm\x1b[0m\n")
    monkeypatch.setenv("NO_COLOR", "1")
    assert drawn(Terminal, *EVENTS) == "Two and two.[2J\nFour.\n"


def test_a_pipe_holds_the_answer_alone_and_json_lines_hold_all() -> None:
    assert drawn(Plain, *EVENTS) == "Four.\n"
    lines = [json.loads(line) for line in drawn(Lines, *EVENTS).splitlines()]
    assert [line["kind"] for line in lines] == ["thinking", "thinking", "text", "done"]
    assert lines[0] == {"kind": "thinking", "delta": "Two "}


def test_chat_reasons_when_it_is_told_to(cli: Cli, reasoner: Callable[..., ScriptedModel]) -> None:
    block = "".join(call_block([("calculator", {"expression": "2^10"})]))
    reasoner(f"A power.</think>{block}", "Done.</think>1024.")
    ran = cli("chat", "-p", "2^10?", "--thinking", "--effort", "low", "--session", "s")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        'calculator {"expression": "2^10"}',
        "  calculator = 1024",
        "1024.",
    ]
    shown = cli("sessions", "show", "s", "--json")
    head = json.loads(shown.out)[0]
    assert (head["chat_format"], head["thinking"], head["effort"]) == ("dsml", True, 50)


def test_json_lines_carry_the_reasoning(cli: Cli, reasoner: Callable[..., ScriptedModel]) -> None:
    reasoner("Hm.</think>Yes.")
    ran = cli("run", "Sure?", "--thinking", "--jsonl")
    events = [json.loads(line) for line in ran.out.splitlines()]
    said = {
        kind: "".join(event["delta"] for event in events if event["kind"] == kind)
        for kind in ("thinking", "text")
    }
    assert said == {"thinking": "Hm.", "text": "Yes."}
    assert events[-1]["text"] == "Yes."


def test_a_session_goes_on_as_it_began(cli: Cli, reasoner: Callable[..., ScriptedModel]) -> None:
    reasoner("Hm.</think>A.", "Ho.</think>B.", "Ha.</think>C.")
    assert cli("chat", "-p", "x", "--thinking", "--effort", "9", "--session", "s").code == 0
    assert cli("chat", "-p", "y", "-c").out == "B.\n"
    again = ["chat", "-p", "y", "--thinking", "--effort", "9"]
    assert cli(*again, "--session", "s").out == "C.\n"
    for asked, told in (
        (["--no-thinking"], "--no-thinking: session s began with --thinking and goes on so; leave"),
        (["--thinking", "--effort", "10"], "--effort: session s began with an effort of 9 and"),
    ):
        for where in (["--session", "s"], ["--fork", "s"]):
            ran = cli("chat", "-p", "y", *asked, *where)
            assert (ran.code, ran.out) == (2, "")
            assert told in ran.err
            assert ran.err.count("\n") == 1


def test_nothing_is_told_of_an_effort_that_nobody_asked_for(
    cli: Cli, reasoner: Callable[..., ScriptedModel]
) -> None:
    reasoner("Hm.</think>A.", "B.")
    assert cli("chat", "-p", "x", "--thinking", "--session", "s").code == 0
    ran = cli("chat", "-p", "y", "--no-thinking", "-c")
    assert (ran.code, ran.out) == (2, "")
    assert "effort" not in ran.err
    assert "75" not in ran.err
    reasoner("A.", thinking=False)
    assert cli("chat", "-p", "x", "--no-thinking", "--session", "t").code == 0
    ran = cli("chat", "-p", "y", "--thinking", "-c")
    assert "--thinking: session t began without --thinking and goes on so" in ran.err


def test_warming_is_by_effort(
    cli: Cli, reasoner: Callable[..., ScriptedModel], tmp_path: Any
) -> None:
    model = reasoner()
    seen: list[str] = []
    model.store = None
    model.warm = lambda ids, **_: seen.append(model.tokenizer.decode(ids)) or _used()  # type: ignore[method-assign]
    prompt = tmp_path / "s.txt"
    prompt.write_text("S")
    for more in (["--thinking", "--effort", "7"], []):
        cli("warm", prompt, "--no-builtin-tools", *more)
    assert seen[0].startswith("Reasoning Effort: 7 (")
    assert seen[1] == "S"


def _used() -> Any:
    from cedagent.engine.protocol import PrefillUsage

    return PrefillUsage()


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--effort", "50"], "--effort 50: expected --thinking with it"),
        (["--effort", "50", "--no-thinking"], "--effort 50: expected --thinking with it"),
        (["--effort", "low"], "--effort low: expected --thinking with it"),
        (["--effort", "max", "--no-thinking"], "--effort max: expected --thinking with it"),
        (["--thinking", "--effort", "0"], "expected a whole number from 1 to 100"),
        (["--thinking", "--effort", "xhigh"], "low, high, max, got 'xhigh'"),
        (["--thinking", "--effort", "7.5"], "got '7.5'"),
    ],
)
@pytest.mark.parametrize("command", [["chat", "-p", "x"], ["run", "x"], ["warm"]])
def test_a_wrong_effort_is_told_before_the_model_is_loaded(
    cli: Cli, command: list[str], argv: list[str], part: str
) -> None:
    ran = cli(*command, *argv, "-m", "no-such-model")
    assert (ran.code, ran.out) == (2, "")
    assert part in ran.err
    assert ran.err.count("\n") == 1


def test_a_model_that_does_not_reason_says_so(cli: Cli, scripted: Scripted) -> None:
    scripted("x")
    ran = cli("chat", "-p", "x", "--thinking")
    assert (ran.code, ran.out) == (2, "")
    assert "the chat format chatml does not reason" in ran.err
    assert ran.err.count("\n") == 1
    assert cli("chat", "-p", "x", "--no-thinking").out == "x\n"


def test_a_shown_session_tells_reasoning_from_answer(
    cli: Cli, reasoner: Callable[..., ScriptedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = reasoner("Hm.\nHo.</think>Yes.")
    chat = ("chat", "-p", "Sure?", "--thinking")
    assert cli(*chat, "--session", "s").code == 0
    (model.model_dir / "config.json").write_text("{}")
    shown = cli("sessions", "show", "s", "-m", model.model_dir).out
    assert shown.endswith("\n(reasoning) Hm.\n    Ho.\nYes.\n")
    # Cut off, there is no mark behind the reasoning; it is told apart all the same.
    assert cli(*chat, "--session", "t", "--max-tokens", "3").code == 3
    shown = cli("sessions", "show", "t", "-m", model.model_dir).out
    assert shown.endswith("\n(reasoning) Hm.\n(limit)\n")
    from cedagent.chat.tokenizer import Tokenizer
    from cedagent.cli.transcript import lines_of

    tokenizer = Tokenizer.load(model.model_dir)
    cut = {"kind": "output", "n": 2, "ids": tokenizer.encode("ab")[:2], "ending": "limit"}
    rest = [*tokenizer.encode("c"), tokenizer.control_id(Mark.END_THINK), *tokenizer.encode("d")]
    end = {"kind": "output", "n": len(rest), "ids": rest, "ending": "end"}
    head = {"kind": "head", "name": "s", "model": "m", "tools": [], "system": "", "thinking": True}
    begun = {"kind": "append", "role": "user", "ids": [1], "text": "q"}
    more = {"kind": "append", "role": "more", "ids": []}
    lines = list(lines_of([head, begun, cut, more, end, begun, cut], tokenizer))
    dim = "\x1b[2m(reasoning) {}\x1b[0m"
    assert lines[1:] == [
        *("> q", dim.format("ab"), "(limit)", dim.format("c"), "d"),
        *("> q", dim.format("ab"), "(limit)"),
    ]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "(reasoning) ab" in list(lines_of([head, begun, cut], tokenizer))
    # Without reasoning all of it is the answer.
    assert "ab" in list(lines_of([head | {"thinking": False}, begun, cut], tokenizer))
