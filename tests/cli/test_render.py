"""What events look like: plain, with colour, as JSON; control characters never pass."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedagent.cli.conversation import Pace
from cedagent.cli.render import RESULT_LINES, Lines, Plain, Terminal, printable
from cedagent.cli.report import count, size
from cedagent.events import Done, Prefill, Text, ToolArgs, ToolEnd, ToolStart, Usage


def shown(*events: object, terminal: bool = False) -> str:
    out = io.StringIO()
    renderer = Terminal(out) if terminal else Plain(out)
    for event in events:
        renderer.event(event)  # type: ignore[arg-type]
    return out.getvalue()


@given(st.text())
def test_printable_keeps_text_and_drops_controls(text: str) -> None:
    got = printable(text)
    assert all(ch in "\t\n" or not (ord(ch) < 32 or 127 <= ord(ch) < 160) for ch in got)
    assert [ch for ch in text if ch.isprintable()] == [ch for ch in got if ch.isprintable()]


@given(st.lists(st.text(max_size=20)))
def test_plain_text_is_the_deltas_and_ends_with_a_newline(deltas: list[str]) -> None:
    got = shown(*map(Text, deltas), Done("", "end", Usage()))
    text = printable("".join(deltas))
    assert got == (text if text.endswith("\n") or not text else text + "\n")


def test_calls_and_results_stand_on_lines_of_their_own() -> None:
    got = shown(
        Text("Let me see."),
        ToolStart(0, "now"),
        ToolArgs(0, "{}"),
        ToolStart(1, "add"),
        ToolArgs(1, '{"a": '),
        ToolArgs(1, "1}"),
        ToolEnd(0, "now", {}, "noon", False, 0.1),
        ToolEnd(1, "add", {"a": 1}, "Error: no\nsecond", True, 0.1),
        Text("So."),
        Done("So.", "end", Usage()),
    )
    assert got.splitlines() == [
        "Let me see.",
        "now {}",
        'add {"a": 1}',
        "  now = noon",
        "  add failed: Error: no",
        "    second",
        "So.",
    ]


def test_long_results_are_cut_on_the_screen_and_say_so() -> None:
    result = "\n".join(str(n) for n in range(RESULT_LINES + 7))
    got = shown(ToolEnd(0, "f", {}, result, False, 0.0))
    assert "... (7 more lines)" in got


def test_colour_on_terminals_unless_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    event = ToolEnd(0, "f", {}, "1", False, 0.0)
    assert "\x1b[" in shown(event, terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in shown(event, terminal=True)


def test_lines_are_json_with_unicode_as_it_is() -> None:
    out = io.StringIO()
    Lines(out).event(Text("naïve\n\x1b"))
    assert out.getvalue().count("\n") == 1
    assert "naïve" in out.getvalue()
    assert json.loads(out.getvalue()) == {"kind": "text", "delta": "naïve\n\x1b"}


def test_pace_leaves_out_prefills_and_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 11.0, 12.0, 50.0, 60.0, 61.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    pace = Pace()
    for event in (
        Prefill(1, 1, 0),
        Text("a"),
        ToolStart(0, "f"),
        ToolEnd(0, "f", {}, "1", False, 38.0),
        Prefill(2, 2, 0),
        Text("b"),
    ):
        pace.note(event)
    assert pace.tokens_per_second(Usage(sampled=4, forced=2)) == pytest.approx(2.0)


def test_sizes_and_counts_read_well() -> None:
    assert [size(n) for n in (0, 999, 1000, 3_132_000)] == ["0 B", "999 B", "1.0 kB", "3.1 MB"]
    assert [count(n, "block") for n in (0, 1, 2000)] == ["0 blocks", "1 block", "2,000 blocks"]
