"""What tools say to people is one clean line, wherever it goes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import cedagent as ca
from cedagent.events import Done, Notice, Usage
from cedagent.testing import ScriptedModel, call

Make = Callable[..., ScriptedModel]
ODD = "  first\nsecond\u2028third \ud800\r\n\x85fourth\x1c"


def as_line(event: ca.Event) -> str:
    line = json.dumps(ca.as_json(event), ensure_ascii=False)
    assert len(line.splitlines()) == 1
    return line.encode().decode()


def test_notices_and_reasons_are_folded_wherever_they_are_made() -> None:
    expected = "first second third ? fourth"
    assert Notice(ODD).message == expected
    assert Done("", "error", Usage(), ODD).message == expected
    assert as_line(Notice(ODD))


def test_what_a_tool_notifies_or_aborts_with_is_one_clean_line(scripted: Make) -> None:
    @ca.tool(paged=False)
    def speak(ctx: ca.Context) -> str:
        """Speak."""
        ctx.notify(ODD)
        raise ca.Abort(ODD)

    with ca.Agent(scripted(call("speak"), "", "x"), tools=[speak]).session("s") as session:
        events = list(session.stream("Go."))
        lines = [as_line(event) for event in events]
        assert sum("first second third ? fourth" in line for line in lines) == 3
        assert events[-1].kind == "done"
        assert "a tool ended the run: first second third ? fourth" in lines[-1]
    with ca.Agent(scripted(call("speak"), "", "x"), tools=[speak]).session("s") as session:
        assert session.run("Hi.").text == "x"


@pytest.mark.parametrize("kind", [ca.Abort, ValueError])
def test_an_error_that_cannot_say_what_it_is_is_still_a_result(
    scripted: Make, kind: type[Exception]
) -> None:
    class Mute(kind):  # type: ignore[misc,valid-type]  # a base that is chosen by the test
        def __str__(self) -> str:
            raise RuntimeError("no")

    @ca.tool(paged=False)
    def fail() -> str:
        """Fail."""
        raise Mute

    result = ca.Agent(scripted(call("fail"), "x"), tools=[fail]).run("Go.")
    assert "Mute" in result.tool_calls[0].result
