"""Conversations as messages: what is rendered, what is forgotten, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedagent.chat import Tokenizer, chat_format
from cedagent.chat.control import Mark
from cedagent.chat.dsml import Dsml
from cedagent.errors import ChatFormatError, ConfigError
from tests.chat.reading import MARKS

M = Mark
U, A, E, T, NT = M.USER, M.ASSISTANT, M.END, M.THINK, M.END_THINK
EFFORT = f"{M.SYSTEM}" + (
    "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
)
TOOL = {"name": "f", "description": "", "parameters": {"type": "object"}}
NAN = float("nan")


@pytest.fixture(scope="module")
def texts() -> Dsml:
    return chat_format("dsml", tools_template="<{tool_schemas}>")


def say(role: str, content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(*, name: str = "f", arguments: Any = None) -> dict[str, Any]:
    return say("assistant", "a", tool_calls=[{"name": name, "arguments": arguments}])


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([say("system", "s")], f"{M.SYSTEM}s"),
        ([say("user", "a"), say("system", "s")], f"{U}a{M.SYSTEM}s{A}{NT}"),
        ([say("user", "a"), say("assistant", "b")], f"{U}a{A}{NT}b{E}"),
        ([say("user", "a"), say("assistant", None), say("user", "c")],
         f"{U}a{A}{NT}{E}{U}c{A}{NT}"),
        ([say("developer", "d"), say("user", "a")], f"{U}d{U}a{A}{NT}"),
        ([say("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
         f"{U}a\n\nb{A}{NT}"),
        ([say("latest_reminder", "r"), say("user", "a")], f"{M.REMINDER}r{U}a{A}{NT}"),
        ([say("user", "a", task="query")], f"{U}a{M.QUERY}"),
        ([say("user", "a", task="action")], f"{U}a{A}{NT}{M.ACTION}"),
        ([say("user", "a"), say("assistant", "b", task="title")], f"{U}a{A}{NT}b{E}{M.TITLE}"),
        ([say("tool", "1"), say("user", "a"), say("tool", [{"type": "text", "text": "2"}])],
         f"{U}<tool_result>1</tool_result>\n\na\n\n<tool_result>2</tool_result>{A}{NT}"),
        ([say("system", "", tools=[TOOL]), say("user", "a")],
         f"{M.SYSTEM}\n\n<{json.dumps(TOOL)}>{U}a{A}{NT}"),
        ([say("developer", "d", tools=[{"type": "function", "function": TOOL}])],
         f"{U}d\n\n<{json.dumps(TOOL)}>{A}{NT}"),
    ],
)  # fmt: skip
def test_turns(texts: Dsml, messages: list[dict[str, Any]], expected: str) -> None:
    assert texts.render(messages) == M.BEGIN + expected


def test_a_response_format_is_part_of_the_system_turn(texts: Dsml) -> None:
    text = texts.render([say("system", "s", response_format={"type": "object"})])
    assert text.startswith(f"{M.BEGIN}{M.SYSTEM}s\n\n## Response Format:\n\n")
    assert text.endswith('\n{"type": "object"}')


def test_tools_beside_messages_make_a_system_turn_if_there_is_none(texts: Dsml) -> None:
    text = texts.render([say("user", "a")], tools=[TOOL])
    assert text == f"{M.BEGIN}{M.SYSTEM}\n\n<{json.dumps(TOOL)}>{U}a{A}{NT}"
    both = texts.render([say("system", "s", tools=[{**TOOL, "name": "g"}])], tools=[TOOL])
    assert both.index('"f"') < both.index('"g"')


REASONED = [
    say("user", "a"),
    say("assistant", "b", reasoning_content="r"),
    say("user", "c"),
    say("assistant", "d", reasoning_content="q"),
]


def test_reasoning_is_kept_unless_it_is_to_be_dropped(texts: Dsml) -> None:
    kept = f"{M.BEGIN}{EFFORT}{U}a{A}{T}r{NT}b{E}{U}c{A}{T}q{NT}d{E}"
    assert texts.render(REASONED, thinking=True) == kept
    assert texts.render(REASONED, thinking=True, drop_thinking=True) == (
        f"{M.BEGIN}{EFFORT}{U}a{A}{NT}b{E}{U}c{A}{T}q{NT}d{E}"
    )
    # With tools nothing is dropped, so that each longer prompt begins with the shorter one.
    tools = {"tools": [TOOL], "thinking": True, "drop_thinking": True}
    whole = texts.render(REASONED, **tools)
    assert "r</think>" in whole
    for n in (1, 3):
        assert whole.startswith(texts.render(REASONED[:n], **tools))
    # Without thinking none of it is there.
    assert texts.render(REASONED) == f"{M.BEGIN}{U}a{A}{NT}b{E}{U}c{A}{NT}d{E}"


def test_the_answer_to_a_task_has_no_reasoning(texts: Dsml) -> None:
    messages = [say("user", "a", task="action"), say("assistant", "search")]
    text = texts.render(messages, thinking=True)
    assert text == f"{M.BEGIN}{EFFORT}{U}a{A}{T}{M.ACTION}search{E}"


def test_a_format_with_thinking_renders_and_parses_with_it() -> None:
    fmt = chat_format("dsml", thinking=True, effort=7)
    assert fmt.render([say("user", "a")]).endswith(f"{U}a{A}{T}")
    assert "Effort: 7 " in fmt.render([say("user", "a")])
    assert "Effort: 9 " in fmt.render([say("user", "a")], effort=9)
    assert fmt.render([say("user", "a")], thinking=False) == f"{M.BEGIN}{U}a{A}{NT}"
    assert fmt.parse(f"r{NT}b{E}")["reasoning_content"] == "r"
    assert fmt.parse(f"b{E}", thinking=False)["content"] == "b"


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "expected at least one, got none"),
        (["hello"], "message 0: expected a role"),
        ([say("user", "a"), say("robot", "b")], "message 1: expected a role .* got 'robot'"),
        ([say("user", 5)], r"message 0 \(user\): expected content"),
        ([say("user", [{"type": "image_url"}])], "expected content that is a text"),
        ([say("user", "a", tools=[TOOL])], "system messages alone"),
        ([say("user", "a", response_format={"a": 1})], "system messages alone"),
        ([say("user", "a", task="dance")], "expected a task of action"),
        ([say("user", "a", reasoning_content="r")], "assistant messages alone"),
        ([say("user", "a", tool_calls=[{}])], "assistant messages alone"),
        ([say("assistant", "a", tool_calls=[{"function": {}}])], "a function with a name"),
        (
            [say("assistant", "a", tool_calls=[{"name": "f", "arguments": "{"}])],
            "arguments in JSON",
        ),
        ([say("assistant", "a", tool_calls=[{"name": "f", "arguments": "[1]"}])], "an object"),
        ([say("system", "a", tools=["f"])], "a function with a name"),
        (None, "messages: expected a list, got None"),
        (5, "messages: expected a list, got 5"),
        ("hello", "messages: expected a list, got 'hello'"),
        ([say("system", "a", tools=5)], r"message 0 \(system\): tools: expected a list, got 5"),
        ([say("system", "a", tools=[{**TOOL, "parameters": NAN}])], "'f': expected JSON values"),
        ([say("system", "a", tools=[{**TOOL, "strict": {1}}])], "'f': expected JSON values"),
        ([say("system", "a", response_format={"a": NAN})], "response_format: expected JSON values"),
        ([say("user", "a", task=["action"])], "expected a task of action"),
        ([say("assistant", "a", tool_calls=5)], "tool_calls: expected a list, got 5"),
        ([call(arguments=[])], r"an object, got \[\]"),
        ([call(arguments=5)], "an object, got 5"),
        ([call(arguments={"x": NAN})], "call of 'f': expected JSON values"),
        ([call(arguments={"x": [float("inf")]})], "call of 'f': expected JSON values"),
        ([call(arguments='{"x": NaN}')], "arguments in JSON"),
        ([call(arguments='{"x": 1e999}')], "arguments in JSON"),
        ([call(arguments={"x": {1}})], "call of 'f': expected JSON values"),
        ([call(arguments={1: 2})], "names that are texts, got 1"),
        ([call(arguments={'" string="true">': 1})], "without the marks that end one"),
        ([call(arguments={M.DSML: 1})], "without marks of the layout"),
        ([call(name='a">\n')], "without the marks that end one, got 'a"),
        ([call(name=f"a{M.END}")], "without marks of the layout"),
        ([call(name="a" * 2000)], "names of at most 9.. characters"),
        ([call(name="")], "the name of a tool"),
        ([say("user", "a\ud800b")], "half a surrogate pair"),
        ([call(arguments={"x": "\udc00"})], "half a surrogate pair"),
    ],
)
def test_what_has_no_place_in_the_layout_is_refused_in_one_line(
    texts: Dsml, messages: list[Any], fault: str
) -> None:
    with pytest.raises(ChatFormatError, match=fault) as error:
        texts.render(messages)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 250
    with pytest.raises(ConfigError, match="effort"):
        texts.render([say("user", "a")], thinking=True, effort=101)


@pytest.mark.parametrize("tools", [5, "f", [5], [{**TOOL, "parameters": NAN}], [{"name": 5}]])
def test_wrong_tools_beside_messages_are_refused_in_one_line(texts: Dsml, tools: Any) -> None:
    with pytest.raises(ChatFormatError, match=r"^tools: .*expected") as error:
        texts.render([say("user", "a")], tools=tools)
    assert "\n" not in str(error.value)


def test_a_template_or_a_completion_that_is_no_text_is_refused(tiny: Tokenizer) -> None:
    for name in ("dsml", "chatml"):
        with pytest.raises(ConfigError, match=r"a tools template with one \{tool.* got 5"):
            chat_format(name, tokenizer=tiny, tools_template=5)  # type: ignore[call-overload]
    with pytest.raises(ChatFormatError, match="a text to parse, got None"):
        chat_format("dsml").parse(None)  # type: ignore[arg-type]


def test_calls_without_arguments_have_none(texts: Dsml) -> None:
    shown = {texts.render([call(arguments=given)]) for given in (None, "", {}, "{}")}
    assert len(shown) == 1


CONTENT = st.text(max_size=12).filter(lambda text: not MARKS.search(text))
KEYS = st.text(max_size=5).filter(lambda text: not MARKS.search(text) and '" string' not in text)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | CONTENT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)
CALLS = st.lists(
    st.tuples(KEYS.filter(bool), st.dictionaries(KEYS, VALUES, max_size=3)), max_size=3
)


@settings(deadline=None, max_examples=100)
@given(
    content=CONTENT.filter(lambda text: not text.endswith("<")),
    reasoning=CONTENT,
    calls=CALLS,
    thinking=st.booleans(),
)
def test_what_is_rendered_is_parsed_back(
    content: str, reasoning: str, calls: list[tuple[str, dict[str, Any]]], thinking: bool
) -> None:
    fmt = chat_format("dsml", thinking=thinking)
    reasoning = reasoning if thinking else ""
    given_calls = [
        {"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for name, arguments in calls
    ]
    answer = say("assistant", content, reasoning_content=reasoning, tool_calls=given_calls)
    before = fmt.render([say("user", "q")])
    whole = fmt.render([say("user", "q"), answer])
    assert whole.startswith(before)
    message = fmt.parse(whole.removeprefix(before))
    assert message["role"] == "assistant"
    assert message["content"] == content
    assert message["reasoning_content"] == reasoning
    parsed = [call["function"] for call in message["tool_calls"]]
    assert [(f["name"], json.loads(f["arguments"])) for f in parsed] == calls
    assert fmt.render([say("user", "q"), message]) == whole
