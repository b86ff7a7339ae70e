from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Sequence

import pytest

import cedagent as ca
from cedagent.testing import ScriptedModel, call

Make = Callable[..., ScriptedModel]


@ca.tool(paged=False)
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def text_of(model: ScriptedModel, session: ca.Session) -> str:
    """The session's ids with control tokens spelled out."""
    return "".join(model.tokenizer.token_name(token) for token in session.ids)


def test_cancelled_during_prefill(scripted: Make) -> None:
    model = scripted("never", "Hello.", tile_s=0.02)
    with ca.Agent(model).session("s") as session:
        for event in session.stream("long " * 500):
            if isinstance(event, ca.Prefill) and event.done >= 256:
                session.cancel()
                cancelled_at = time.monotonic()
        assert time.monotonic() - cancelled_at < 2
        assert isinstance(event, ca.Done)
        assert event.stop_reason == "cancelled"
        assert event.usage.sampled == 0
        assert 256 <= event.usage.encoded < session.n_tokens - 128
        assert text_of(model, session).endswith("<|im_start|>assistant\n<|im_end|>\n")
        assert session.unfinished is None
        assert session.run("Hi.").text == "Hello."


def test_cancelled_while_decoding(scripted: Make) -> None:
    model = scripted("abcdefghij" * 20, "Hello.", token_s=0.002)
    with ca.Agent(model).session("s") as session:
        said = ""
        for event in session.stream("Go."):
            if isinstance(event, ca.Text):
                said += event.delta
                if len(said) >= 12:
                    session.cancel()
        assert isinstance(event, ca.Done)
        assert event.stop_reason == "cancelled"
        assert event.text == said
        assert 12 <= len(said) < 60
        assert text_of(model, session).endswith(f"assistant\n{said}<|im_end|>\n")
    with ca.Agent(model).session("s") as session:
        assert session.unfinished is None
        assert session.run("Hi.").text == "Hello."


def test_cancelled_inside_a_call(scripted: Make) -> None:
    model = scripted(call("add", a=1234567890), "Hello.", token_s=0.002)
    with ca.Agent(model, tools=[add]).session("s") as session:
        for event in session.stream("Go."):
            if isinstance(event, ca.ToolArgs) and "1" in event.delta:
                session.cancel()
        assert isinstance(event, ca.Done)
        assert event.stop_reason == "cancelled"
        assert text_of(model, session).endswith("\n</tool_call><|im_end|>\n")
        result = session.run("Hi.")
        assert result.text == "Hello."
        assert result.tool_calls == ()


def test_cancelled_after_a_complete_call_answers_it(scripted: Make) -> None:
    ran: list[int] = []

    @ca.tool(paged=False)
    def note(n: int) -> str:
        """Note it."""
        ran.append(n)
        return "noted"

    script = call("note", n=1) + "\n" + call("note", n=2)
    model = scripted(script, "", "Hello.")
    cancelled, real = threading.Event(), model.next_id

    def held(ids: Sequence[int]) -> int:
        # The second call goes no further than its name before the run is cancelled.
        if model.tokenizer.decode(ids[-60:]).endswith('"arguments": {"n": '):
            n_calls = model.tokenizer.decode(ids).count('"name": "note"')
            assert n_calls < 3 or cancelled.wait(10)
        return real(ids)

    model.next_id = held
    with ca.Agent(model, tools=[note]).session("s") as session:
        for event in session.stream("Go."):
            if isinstance(event, ca.ToolStart) and event.call_id == 1:
                session.cancel()
                cancelled.set()
        assert ran == []
        text = text_of(model, session)
        assert text.count("<tool_response>\nError: interrupted") == 1
        assert text.endswith("assistant\n<|im_end|>\n")
        assert session.unfinished is None
        assert session.run("Hi.").text == "Hello."


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_cancelled_while_a_tool_runs(scripted: Make, kind: str) -> None:
    noticed = threading.Event()

    @ca.tool(paged=False)
    def thread(ctx: ca.Context) -> str:
        """Take long."""
        while not ctx.cancelled:
            time.sleep(0.005)
        noticed.set()
        return "late"

    @ca.tool(paged=False)
    async def loop() -> str:
        """Take long."""
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            noticed.set()
            raise
        return "late"

    model = scripted(call("add", a=1) + "\n" + call(kind), "", "Hello.")
    with ca.Agent(model, tools=[thread, loop, add]).session("s") as session:
        for event in session.stream("Go."):
            if isinstance(event, ca.ToolEnd) and event.name == "add":
                session.cancel()
                cancelled_at = time.monotonic()
        assert time.monotonic() - cancelled_at < 1
        assert isinstance(event, ca.Done)
        assert event.stop_reason == "cancelled"
        assert event.message == "cancelled while tools ran"
        assert noticed.wait(1)
        text = text_of(model, session)
        assert "<tool_response>\n3\n</tool_response>" in text
        # A tool that sees the cancel in time may still have its say.
        said = "(late|Error: interrupted before it finished)"
        assert re.search(f"<tool_response>\n{said}\n</tool_response>", text)
        assert session.run("Hi.").text == "Hello."


def test_leaving_a_stream_early_cancels_it(scripted: Make) -> None:
    model = scripted("x" * 500, "Hello.", token_s=0.002)
    with ca.Agent(model).session("s") as session:
        for event in session.stream("Go."):
            if isinstance(event, ca.Text):
                break
        del event
        assert session.unfinished is None
        assert session.run("Hi.").text == "Hello."


def test_cancelling_the_task_of_arun_cancels_the_run(scripted: Make) -> None:
    async def main() -> None:
        model = scripted("x" * 2000, "Hello.", token_s=0.002)
        with ca.Agent(model).session("s") as session:
            task = asyncio.create_task(session.arun("Go."))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert session.unfinished is None
            assert (await session.arun("Hi.")).text == "Hello."

    asyncio.run(main())


def test_a_token_limit_stops_an_output_and_it_goes_on(scripted: Make) -> None:
    whole = scripted("Let me add. " + call("add", a=1), "It is 3.")
    with ca.Agent(whole, tools=[add]).session() as session:
        session.run("Go.")
        expected = session.ids
    model = scripted("Let me add. " + call("add", a=1), "It is 3.")
    limits = ca.Limits(tokens=7)
    with ca.Agent(model, tools=[add], limits=limits).session("s") as session:
        result = session.run("Go.")
        n = 0
        while result.stop_reason == "limit":
            assert "Limits.tokens" in result.message
            assert result.usage.sampled + result.usage.forced <= 7
            n += 1
            result = session.run()
        assert n > 5
        assert result.text == "It is 3."
        assert session.ids == expected


@pytest.mark.parametrize(("stretch", "times"), [("a", 400), ("one, two, three, ", 40)])
def test_an_output_that_only_repeats_itself_is_stopped_and_goes_on(
    scripted: Make, stretch: str, times: int
) -> None:
    model = scripted("Well: " + stretch * times + "done.")
    n_stretch = len(model.tokenizer.encode(stretch))
    session = ca.Agent(model).session("s")
    result = session.run("Go.")
    assert result.stop_reason == "limit"
    assert result.message == (
        "stopped after the same words again and again (Limits.repeated_tokens); it can be continued"
    )
    assert 128 < result.usage.sampled < 128 + 2 * n_stretch + 10
    runs = 1
    while session.unfinished is not None:
        runs += 1
        result = session.run(None)
    assert result.stop_reason == "end"
    assert result.text == "Well: " + stretch * times + "done."
    assert runs > 2


def test_repetition_has_no_end_of_its_own_without_the_limit(scripted: Make) -> None:
    model = scripted("na " * 300)
    result = ca.Agent(model, limits=ca.Limits(repeated_tokens=None)).run("Sing.")
    assert result.stop_reason == "end"
    assert result.text == "na " * 300


def test_what_differs_now_and_then_is_no_repetition(scripted: Make) -> None:
    rows = "".join(f"row {i % 7} {'x' * 20}\n" for i in range(30))
    assert ca.Agent(scripted(rows)).run("Go.").stop_reason == "end"


def test_a_limit_inside_a_call_then_another_message(scripted: Make) -> None:
    model = scripted(call("add", a=1), "Hello.")
    with ca.Agent(model, tools=[add], limits=ca.Limits(tokens=20)).session("s") as session:
        assert session.run("Go.").stop_reason == "limit"
        assert session.unfinished == "output"
        assert session.run("Never mind.").text == "Hello."
        assert "</tool_call><|im_end|>\n<|im_start|>user\nNever" in text_of(model, session)


def test_an_output_limit_leaves_calls_to_go_on_with(scripted: Make) -> None:
    model = scripted(call("add", a=1), "It is 3.")
    with ca.Agent(model, tools=[add], limits=ca.Limits(outputs=1)).session("s") as session:
        result = session.run("Go.")
        assert (result.stop_reason, result.tool_calls) == ("limit", ())
        assert session.unfinished == "calls"
        again = session.run()
        assert again.tool_calls[0].result == "3"
        assert again.text == "It is 3."


def test_calls_that_were_not_run_are_answered_before_another_message(scripted: Make) -> None:
    model = scripted(call("add", a=1), "", "Hello.")
    with ca.Agent(model, tools=[add], limits=ca.Limits(outputs=1)).session("s") as session:
        session.run("Go.")
        assert session.run("Never mind.").text == "Hello."
        assert "<tool_response>\nError: not run" in text_of(model, session)


def test_a_batch_beyond_the_call_limit_is_not_begun(scripted: Make) -> None:
    model = scripted(call("add", a=1), call("add", a=2) + "\n" + call("add", a=3), "Done.")
    with ca.Agent(model, tools=[add], limits=ca.Limits(tool_calls=2)).session("s") as session:
        result = session.run("Go.")
        assert result.stop_reason == "limit"
        assert "Limits.tool_calls" in result.message
        assert [made.arguments for made in result.tool_calls] == [{"a": 1}]
        assert len(session.run().tool_calls) == 2


def test_a_time_limit_gives_up_tools_and_keeps_their_results(scripted: Make) -> None:
    @ca.tool(paged=False)
    def slow() -> str:
        """Take long."""
        time.sleep(3)
        return "late"

    model = scripted(call("slow") + "\n" + call("add", a=1), "Done.")
    limits = ca.Limits(seconds=0.3)
    with ca.Agent(model, tools=[slow, add], limits=limits).session("s") as session:
        result = session.run("Go.")
        assert result.stop_reason == "limit"
        assert "Limits.seconds" in result.message
        assert [made.error for made in result.tool_calls] == [True, False]
        assert session.unfinished == "append"
        assert session.run().text == "Done."


def test_a_time_limit_stops_a_prefill_and_it_goes_on(scripted: Make) -> None:
    model = scripted("Done.", tile_s=0.02)
    agent = ca.Agent(model, limits=ca.Limits(seconds=0.1))
    with agent.session("s") as session:
        assert session.run("long " * 500).stop_reason == "limit"
        assert session.unfinished == "append"
    with ca.Agent(model).session("s") as session:
        assert session.run().text == "Done."


def test_the_same_call_again_is_refused_and_then_ends_the_run(scripted: Make) -> None:
    ran: list[int] = []

    @ca.tool(paged=False)
    def look(n: int) -> str:
        """Look."""
        ran.append(n)
        return "nothing"

    model = scripted(*[call("look", n=1)] * 9)
    result = ca.Agent(model, tools=[look]).run("Go.")
    assert ran == [1, 1]
    assert result.stop_reason == "limit"
    assert "again" in result.message
    assert [made.error for made in result.tool_calls] == [False, False, True, True]


def test_the_same_call_with_new_results_is_no_loop(scripted: Make) -> None:
    ran: list[int] = []

    @ca.tool(paged=False)
    def poll() -> int:
        """Poll."""
        ran.append(1)
        return len(ran)

    model = scripted(*[call("poll")] * 7, "Done.")
    assert ca.Agent(model, tools=[poll]).run("Go.").text == "Done."
    assert len(ran) == 7


def test_a_full_context_is_told_before_prefill_and_while_decoding(scripted: Make) -> None:
    model = scripted("".join(map(str, range(170))), context_limit=300)
    with ca.Agent(model).session("s") as session:
        before = session.ids
        result = session.run("y" * 400)
        assert (result.stop_reason, session.ids) == ("context", before)
        assert "another session" in result.message
        assert "\n" not in result.message
        result = session.run("Go.")
        assert result.stop_reason == "context"
        assert session.n_tokens == 300
        assert 50 < len(result.text) < 300
        assert session.run("More.").stop_reason == "context"
        assert session.run().stop_reason == "context"
        assert session.n_tokens == 300


def test_tools_are_not_run_when_their_results_cannot_fit(scripted: Make) -> None:
    ran: list[int] = []

    @ca.tool(paged=False)
    def look(n: int) -> str:
        """Look."""
        ran.append(n)
        return "z" * 3000

    probe = ca.Agent(scripted(), tools=[look])
    base = len(probe.format.begin(None, probe.specs)) + len(probe.format.user("Go."))
    for extra in range(60, 900, 37):
        ran.clear()
        model = scripted(call("look", n=1), "D" * 5, context_limit=base + extra)
        with ca.Agent(model, tools=[look]).session() as session:
            result = session.run("Go.")
            assert session.n_tokens <= base + extra + 2
            assert bool(ran) == bool(result.tool_calls)
            if ran:
                assert result.stop_reason == "end"
    assert ran
