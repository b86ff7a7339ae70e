"""Every wrong argument is one line that says what was expected and what came, before a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import cedagent as ca
from cedagent.engine.protocol import Sampling
from cedagent.errors import SessionError, ToolDefinitionError, UsageError
from cedagent.testing import ScriptedModel

Make = Callable[..., ScriptedModel]


@ca.tool(paged=False)
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "a b"},
        {"name": "auto"},
        {"name": "none"},
        {"name": "required"},
        {"description": 5},
        {"timeout": 0},
        {"timeout": math.nan},
        {"timeout": math.inf},
        {"timeout": "5"},
        {"timeout": True},
        {"max_chars": -1},
        {"max_chars": 1.5},
        {"approve": "maybe"},
        {"paged": "no"},
        {"examples": ["q"]},
        {"examples": [("q", "a")]},
        {"examples": 5},
    ],
    ids=str,
)
def test_a_tool_refuses_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    def use(a: int) -> int:
        """Do."""
        return a

    (value,) = settings.values()
    with pytest.raises(ToolDefinitionError, match=r"test_bad_arguments\.py:\d+") as caught:
        ca.tool(**settings)(use)
    message = str(caught.value)
    assert "\n" not in message
    assert "expected" in message
    assert repr(value) in message


@pytest.mark.parametrize(
    "settings",
    [
        {"seconds": math.nan},
        {"seconds": -1},
        {"seconds": "5"},
        {"outputs": 0},
        {"outputs": 1.5},
        {"tokens": True},
        {"result_tokens": None},
    ],
    ids=str,
)
def test_limits_refuse_what_is_no_limit(settings: dict[str, Any]) -> None:
    ((name, value),) = settings.items()
    with pytest.raises(UsageError, match=f"Limits.{name}: expected .* got ") as caught:
        ca.Limits(**settings)
    assert repr(value) in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"system": 5},
        {"tools": "add"},
        # Its text has an address in it, and a test has the same name in every run.
        pytest.param({"tools": add}, id="a tool in place of a list"),
        {"limits": 5},
        {"temperature": math.nan},
        {"temperature": "hot"},
        {"temperature": math.inf},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_p": None},
        {"seed": 1.5},
        {"seed": -1},
        {"seed": 2**64},
        {"approve": "yes"},
        {"tool_choice": "nope"},
        {"tool_choice": None},
        {"tool_choice": "required"},
    ],
    ids=str,
)
def test_an_agent_refuses_settings_that_make_no_sense(
    scripted: Make, settings: dict[str, Any]
) -> None:
    ((name, _),) = settings.items()
    with pytest.raises(UsageError, match=f"^{name}: expected ") as caught:
        ca.Agent(scripted("x"), **settings)
    assert "\n" not in str(caught.value)
    assert ", got " in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_run_refuses_what_is_no_message(scripted: Make) -> None:
    with ca.Agent(scripted("x"), tools=[add]).session("s") as session:
        for prompt in (5, b"x", ["x"]):
            with pytest.raises(UsageError, match=r"^prompt: expected a text or None, got"):
                session.run(prompt)  # type: ignore[arg-type]  # the wrong type is the point
        with pytest.raises(UsageError, match=r"^tool_choice: expected one of"):
            session.run("x", tool_choice="")
        assert session.n_turns == 0
        assert session.run("x").text == "x"


def test_a_session_refuses_what_is_no_name(scripted: Make) -> None:
    with pytest.raises(SessionError, match="session name 5"):
        ca.Agent(scripted()).session(5)  # type: ignore[arg-type]  # the wrong type is the point


@pytest.mark.parametrize("values", [(-1, 1, 0), (0, 2, 0), (0, 1, -1), (0, 1, 0.5)])
def test_sampling_refuses_what_is_out_of_range(values: tuple[Any, Any, Any]) -> None:
    with pytest.raises(UsageError, match=r"expected .* got "):
        Sampling(*values)
