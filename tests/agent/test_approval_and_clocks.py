"""Approvals come before tools start; clocks run from a tool's own start, whatever else goes on."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import cedagent as ca
from cedagent.testing import ScriptedModel, ScriptedSequence, call

Make = Callable[..., ScriptedModel]


@ca.tool(paged=False, approve="ask")
def risky(n: int) -> str:
    """Do something risky."""
    return f"did {n}"


def test_a_timeout_does_not_wait_until_the_output_is_settled(
    scripted: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settling, answered = threading.Event(), threading.Event()
    real = ScriptedSequence.settle

    def settle(self: ScriptedSequence, label: str = "output") -> int:
        settling.set()
        answered.wait(10)
        return real(self, label)

    @ca.tool(paged=False, timeout=0.05)
    def slow(ctx: ca.Context) -> str:
        """Take long."""
        assert settling.wait(10)
        while not ctx.cancelled:
            time.sleep(0.005)
        return "late"

    monkeypatch.setattr(ScriptedSequence, "settle", settle)
    with ca.Agent(scripted(call("slow"), "x"), tools=[slow]).session() as session:
        for event in session.stream("Go."):
            if isinstance(event, ca.ToolEnd):
                assert "timed out after 0.05 s" in event.result
                assert event.seconds < 5
                assert not answered.is_set()
                answered.set()


@pytest.mark.slow
def test_no_tool_starts_before_all_are_approved_and_no_clock_runs(scripted: Make) -> None:
    order: list[str] = []

    @ca.tool(paged=False, timeout=0.5)
    def quick() -> str:
        """Be quick."""
        order.append("quick")
        return "ok"

    def approve(name: str, arguments: dict[str, Any]) -> bool:
        time.sleep(0.6)
        order.append(f"asked {arguments['n']}")
        return True

    calls = [call("quick"), call("risky", n=1), call("risky", n=2)]
    agent = ca.Agent(scripted("\n".join(calls), "x"), tools=[quick, risky], approve=approve)
    result = agent.run("Go.")
    assert [made.result for made in result.tool_calls] == ["ok", "did 1", "did 2"]
    assert order == ["asked 1", "asked 2", "quick"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_slow_approver_is_left_when_the_run_is_cancelled(scripted: Make, is_async: bool) -> None:
    asked, let_go = threading.Event(), threading.Event()

    def approve(name: str, arguments: dict[str, Any]) -> bool:
        asked.set()
        return let_go.wait(30)

    async def approve_async(name: str, arguments: dict[str, Any]) -> bool:
        asked.set()
        await asyncio.sleep(30)
        return True

    ran: list[int] = []

    @ca.tool(paged=False)
    def note() -> str:
        """Note it."""
        ran.append(1)
        return "noted"

    model = scripted(
        "\n".join([call("risky", n=1), call("risky", n=2), call("note")]), "", "Hello."
    )
    approver = approve_async if is_async else approve
    with ca.Agent(model, tools=[risky, note], approve=approver).session("s") as session:

        def cancel() -> None:
            asked.wait(10)
            session.cancel()

        threading.Thread(target=cancel).start()
        started = time.monotonic()
        result = session.run("Go.")
        assert time.monotonic() - started < 5
        let_go.set()
        assert result.stop_reason == "cancelled"
        said = [made.result for made in result.tool_calls]
        assert said[:2] == ["Error: interrupted before it was approved"] * 2
        assert said[2] == "Error: interrupted before it was run"
        assert ran == []
        assert session.run("Hi.").text == "Hello."


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [KeyError, SystemExit, KeyboardInterrupt])
def test_an_approver_that_raises_refuses_that_call_alone(
    scripted: Make, kind: type[BaseException], is_async: bool
) -> None:
    @ca.tool(paged=False)
    def safe() -> str:
        """Be safe."""
        return "fine"

    def approve(name: str, arguments: dict[str, Any]) -> bool:
        if arguments.pop("n") == 1:
            raise kind("secret\nsecond line")
        return True

    async def approve_async(name: str, arguments: dict[str, Any]) -> bool:
        if arguments["n"] == 1:
            raise KeyError("secret\nsecond line")
        return True

    model = scripted("\n".join([call("safe"), call("risky", n=1), call("risky", n=2)]), "x")
    approver = approve_async if is_async else approve
    result = ca.Agent(model, tools=[safe, risky], approve=approver).run("Go.")
    first, second, third = result.tool_calls
    assert (first.result, third.result) == ("fine", "did 2")
    assert second.error
    assert second.result.startswith("Error: not run: asking for an approval of risky failed: ")
    assert ("KeyError" if is_async else kind.__name__) in second.result
    assert second.arguments == {"n": 1}
    assert result.text == "x"


def test_an_awaitable_of_a_plain_function_is_awaited(scripted: Make) -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    @ca.tool(paged=False)
    @logged
    async def fetch(n: int) -> str:
        """Fetch it."""
        await asyncio.sleep(0.01)
        return f"fetched {n}"

    @ca.tool(paged=False, timeout=0.05)
    @logged
    async def slow() -> str:
        """Take long."""
        await asyncio.sleep(30)
        return "late"

    before = set(threading.enumerate())
    model = scripted(call("fetch", n=1) + "\n" + call("slow"), "x")
    started = time.monotonic()
    result = ca.Agent(model, tools=[fetch, slow]).run("Go.")
    assert time.monotonic() - started < 5
    assert [made.result for made in result.tool_calls] == [
        "fetched 1",
        "Error: slow timed out after 0.05 s",
    ]
    for thread in set(threading.enumerate()) - before:
        thread.join(1)
    assert set(threading.enumerate()) <= before


def test_an_error_while_the_output_settles_gives_up_the_tools(
    scripted: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = threading.Event()

    @ca.tool(paged=False)
    def slow(ctx: ca.Context) -> str:
        """Take long."""
        while not ctx.cancelled:
            time.sleep(0.005)
        given_up.set()
        return "late"

    def settle(self: ScriptedSequence, label: str = "output") -> int:
        raise ca.CedError("the engine broke")

    monkeypatch.setattr(ScriptedSequence, "settle", settle)
    with pytest.raises(ca.CedError, match="the engine broke"):
        ca.Agent(scripted(call("slow"), "x"), tools=[slow]).run("Go.")
    assert given_up.wait(5)
