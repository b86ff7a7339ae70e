"""Agents on DSML: reasoning is shown and no answer, calls are tags, and a session keeps its way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cedagent as ca
from cedagent.chat.control import Mark
from cedagent.chat.dsml_render import call_block
from cedagent.errors import ConfigError, SessionError, UsageError
from cedagent.paths import sessions_dir
from cedagent.testing import ScriptedModel

D = Mark.DSML


@ca.tool(paged=False)
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@ca.tool(paged=False)
def say(text: str) -> str:
    """Say it."""
    return text


def calls(*made: tuple[str, dict[str, Any]]) -> str:
    return "".join(call_block(made))


def model(*outputs: str, thinking: bool = True, **more: Any) -> ScriptedModel:
    return ScriptedModel(outputs, chat_format="dsml", thinking=thinking, **more)


def text_of(model: ScriptedModel, session: ca.Session) -> str:
    return b"".join(
        model.tokenizer.token_bytes(i) or model.tokenizer.token_name(i).encode()
        for i in session.ids
    ).decode()


def test_reasoning_is_an_event_of_its_own_and_no_part_of_the_answer() -> None:
    script = model(
        f"Add é first.</think>Let me see.{calls(('add', {'a': 1}), ('say', {'text': 'x<y'}))}",
        "Now I know.</think>It is 3.",
    )
    with ca.Agent(script, tools=[add, say], thinking=True).session("s") as session:
        events = list(session.stream("1 + 2?"))
        for n in range(len(events)):
            assert as_json_kinds(events[: n + 1])
        thought = "".join(e.delta for e in events if isinstance(e, ca.Thinking))
        assert thought == "Add é first.Now I know."
        said = "".join(e.delta for e in events if isinstance(e, ca.Text))
        assert said == "Let me see.It is 3."
        done = events[-1]
        assert isinstance(done, ca.Done)
        assert (done.text, done.stop_reason) == ("It is 3.", "end")
        ends = [e for e in events if isinstance(e, ca.ToolEnd)]
        assert [(e.name, e.arguments, e.result) for e in ends] == [
            ("add", {"a": 1}, "3"),
            ("say", {"text": "x<y"}, "x<y"),
        ]
        assert done.usage.forced > 20
        text = text_of(script, session)
    # All reasoning stays; results stand in call order in one user turn.
    assert "<think>Add é first.</think>Let me see.\n\n<" in text
    assert (
        f"{Mark.END}{Mark.USER}<tool_result>3</tool_result>\n\n<tool_result>x<y</tool_result>"
        f"{Mark.ASSISTANT}<think>Now I know.</think>It is 3.{Mark.END}"
    ) in text


def as_json_kinds(events: list[ca.events.Event]) -> list[str]:
    return [json.loads(json.dumps(ca.as_json(event)))["kind"] for event in events]


def test_the_kind_of_reasoning_in_json_is_thinking() -> None:
    assert ca.as_json(ca.Thinking("hm")) == {"kind": "thinking", "delta": "hm"}


def test_without_thinking_nothing_is_reasoned() -> None:
    script = model(f"So.{calls(('add', {'a': 1}))}", "3.", thinking=False)
    with ca.Agent(script, tools=[add]).session() as session:
        events = list(session.stream("1 + 2?"))
        assert not any(isinstance(e, ca.Thinking) for e in events)
        assert Mark.THINK not in text_of(script, session)
        assert events[-1].text == "3."


@pytest.mark.parametrize("choice", ["required", "add"])
def test_a_choice_holds_after_the_reasoning(choice: str) -> None:
    script = model(f"Hm.</think>{calls(('add', {'a': 1}))}", "Ok.</think>3.")
    result = ca.Agent(script, tools=[add, say], thinking=True).run("1 + 2?", tool_choice=choice)
    assert [made.result for made in result.tool_calls] == ["3"]
    assert result.text == "3."


@pytest.mark.parametrize(
    ("stop_at", "closing"),
    [("think", "</think>"), ("text", ""), ("call", "")],
)
def test_a_cancelled_output_is_closed_and_the_session_goes_on(stop_at: str, closing: str) -> None:
    block = calls(("add", {"a": 12345678}))
    script = model(f"thinking hard</think>writing much{block}", "Hm.</think>Hello.", token_s=0.002)
    with ca.Agent(script, tools=[add], thinking=True).session("s") as session:
        for event in session.stream("Go."):
            kind = {ca.Thinking: "think", ca.Text: "text", ca.ToolArgs: "call"}.get(type(event))
            if kind == stop_at:
                session.cancel()
        assert isinstance(event, ca.Done)
        assert event.stop_reason == "cancelled"
        text = text_of(script, session)
        assert text.endswith(f"{closing}{Mark.END}")
        assert text.rpartition("<think>")[2].count("</think>") == 1
        assert session.unfinished is None
    with ca.Agent(script, tools=[add]).session("s") as session:
        result = session.run("Hi.")
        assert (result.text, result.tool_calls) == ("Hello.", ())


def test_a_cancel_after_a_complete_call_answers_it() -> None:
    block = calls(("add", {"a": 1}), ("add", {"a": 22222222}))
    script = model(f"Hm.</think>{block}", "", "Hm.</think>Hello.", token_s=0.002)
    with ca.Agent(script, tools=[add], thinking=True).session() as session:
        n_starts = 0
        for event in session.stream("Go."):
            n_starts += isinstance(event, ca.ToolStart)
            if n_starts == 2:
                session.cancel()
        text = text_of(script, session)
        assert text.count("<tool_result>Error: interrupted before it was run</tool_result>") == 1
        assert text.endswith(f"{Mark.ASSISTANT}<think></think>{Mark.END}")
        assert session.run("Hi.").text == "Hello."


def test_a_limit_inside_the_reasoning_can_be_continued() -> None:
    script = model("a long thought of many words</think>Yes.")
    agent = ca.Agent(script, thinking=True, limits=ca.Limits(tokens=9))
    with agent.session("s") as session:
        first = session.run("Go.")
        assert (first.stop_reason, first.text) == ("limit", "")
    with ca.Agent(script).session("s") as session:
        events = list(session.stream(None))
        assert "".join(e.delta for e in events if isinstance(e, ca.Thinking)).endswith("words")
        assert events[-1].text == "Yes."
        assert "<think>a long thought of many words</think>Yes." in text_of(script, session)


def test_a_malformed_call_is_answered_with_an_error() -> None:
    script = model("x", thinking=False)
    bad = f'\n\n<{D} calls>\n<{D} invoke name="add">\n<{D}parameter</{D} calls>'
    # The grammar would not let it through; a log may still hold it.
    with ca.Agent(script, tools=[add]).session("s") as session:
        transcript = session._transcript
        transcript.append(transcript.user_ids("Go."), role="user")
        ids = [*script._ids_of(bad), *script.format.stop_ids]
        transcript.output(ids, ending="end")
        assert session.unfinished == "calls"
        script.outputs = ("", "Sorry.")
        result = session.run()
        (made,) = result.tool_calls
        assert made.error
        assert "malformed call: expected ' parameter name=" in made.result
        assert result.text == "Sorry."


def test_effort_is_part_of_the_prefix_and_of_the_head() -> None:
    script = model("Hm.</think>A.", "Hm.</think>B.")
    agent = ca.Agent(script, system="S", thinking=True, effort="low")
    assert agent.warm().tokens == len(agent.format.begin("S", ()))
    with agent.session("s") as session:
        session.run("x")
        assert "Reasoning Effort: 50 (" in text_of(script, session)
        path = session.path
    assert path is not None
    head = json.loads(path.read_text("utf-8").splitlines()[0])
    assert (head["thinking"], head["effort"]) == (True, 50)
    other = ca.Agent(script, system="S", thinking=True, effort=51)
    assert other.format.begin("S", ()) != agent.format.begin("S", ())


def test_a_resumed_session_keeps_its_way_of_reasoning() -> None:
    script = model("Hm.</think>A.", "Ho.</think>B.", "Ha.</think>C.", "So.</think>D.")
    with ca.Agent(script, thinking=True, effort=9).session("s") as session:
        session.run("x")
        ids = session.ids
    for asked, fault in (
        ({"thinking": False}, "began with thinking on, which stays as it is, got off"),
        ({"thinking": True, "effort": 10}, "began with effort 9, .* got 10"),
        ({"thinking": True, "effort": 1}, "began with effort 9, .* got 1;"),
    ):
        with pytest.raises(SessionError, match=f"^session s: it {fault}") as error:
            ca.Agent(script, **asked).session("s")
        assert "\n" not in str(error.value)
    for asked in ({}, {"thinking": True}, {"thinking": True, "effort": 9}):
        with ca.Agent(script, **asked).session("s") as session:
            assert session.ids[: len(ids)] == ids
            events = list(session.stream("y"))
            assert any(isinstance(e, ca.Thinking) for e in events)
            with session.fork() as fork:
                assert fork._transcript.format.effort == 9


def test_a_session_that_began_without_thinking_stays_so() -> None:
    script = model("A.", "B.", thinking=False)
    with ca.Agent(script).session("s") as session:
        session.run("x")
    with pytest.raises(SessionError, match=r"began with thinking off, .* got on"):
        ca.Agent(script, thinking=True).session("s")
    with ca.Agent(script, thinking=False).session("s") as session:
        assert session.run("y").text == "B."


def test_logs_from_before_thinking_are_resumed() -> None:
    script = ScriptedModel(["A.", "B."])
    with ca.Agent(script).session("s") as session:
        session.run("x")
        path = session.path
    assert path is not None
    from cedagent.agent.log import decode_line, encode_line

    first, *rest = path.read_bytes().splitlines(keepends=True)
    head = decode_line(first[:-1])
    assert head is not None
    assert (head.pop("thinking"), head.pop("effort")) == (False, None)
    path.write_bytes(encode_line(head) + b"".join(rest))
    with ca.Agent(script).session("s") as session:
        assert session.run("y").text == "B."


def test_settings_that_the_format_does_not_have_are_one_line() -> None:
    for more, fault in (
        ({"thinking": True}, "thinking: .* chatml does not reason"),
        ({"effort": 50}, "effort 50: .* chatml does not reason"),
    ):
        with pytest.raises(ConfigError, match=fault) as error:
            ca.Agent(ScriptedModel([]), **more)
        assert "\n" not in str(error.value)
    ca.Agent(ScriptedModel([]), thinking=False)
    for more, fault in (
        ({"thinking": 1}, "thinking: expected True, False or None"),
        ({"thinking": True, "effort": 0}, "effort: expected a whole number from 1 to 100"),
        ({"effort": 50}, "effort 50: expected thinking"),
        ({"tools_template": 5}, "tools_template: expected a text"),
        ({"tools_template": "none"}, r"one \{tool_schemas\}"),
    ):
        with pytest.raises(UsageError, match=fault):
            ca.Agent(model(), **more)


def test_the_wording_around_tools_is_the_users_the_checkpoints_or_ours(tmp_path: Path) -> None:
    script = model()
    ours = script.tokenizer.decode(ca.Agent(script, tools=[add]).format.begin(None, []))
    assert ours == ""
    script.model_dir.joinpath("encoding").mkdir()
    script.model_dir.joinpath("encoding", "encoding.py").write_text("T = 'Theirs {tool_schemas}'")
    for more, word in (({}, "Theirs {"), ({"tools_template": "Mine {tool_schemas}"}, "Mine {")):
        agent = ca.Agent(script, tools=[add], **more)
        assert word in script.tokenizer.decode(agent.format.begin("S", agent.specs))


@pytest.fixture(scope="module")
def shared() -> Iterator[ScriptedModel]:
    script = model()
    yield script
    script.close()


WORDS = st.text(st.sampled_from("ab é東🎉\n<"), max_size=9)
OUTPUTS = st.lists(
    st.tuples(
        WORDS,
        WORDS.filter(lambda text: not text.endswith("<")),
        st.lists(
            st.builds(lambda a: ("add", {"a": a}), st.integers(-9, 99))
            | st.builds(lambda text: ("say", {"text": text}), WORDS),
            max_size=2,
        ),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@settings(
    deadline=None,
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(outputs=OUTPUTS, stops=st.lists(st.integers(1, 40), max_size=2))
def test_ids_are_only_appended_and_the_log_gives_them_back(
    shared: ScriptedModel,
    outputs: list[tuple[str, str, list[tuple[str, dict[str, Any]]]]],
    stops: list[int],
) -> None:
    texts = [f"{thought}</think>{said}{calls(*made)}" for thought, said, made in outputs]
    shared.outputs = (*texts, *["Hm.</think>End."] * 12)
    name = f"s{len(list(sessions_dir().glob('*')))}"
    ids: tuple[int, ...] = ()
    for n_tokens in [*stops, None]:
        limits = ca.Limits(tokens=n_tokens, repeated_calls=9)
        agent = ca.Agent(shared, tools=[add, say], thinking=True, limits=limits)
        with agent.session(name) as session:
            assert tuple(session.ids)[: len(ids)] == ids
            result = session.run(None if session.unfinished else "Go.")
            assert tuple(session.ids)[: len(ids)] == ids
            ids = tuple(session.ids)
            if result.stop_reason == "end":
                assert Mark.END_THINK not in result.text
    with ca.Agent(shared, tools=[add, say]).session(name) as session:
        assert session.ids == ids
