"""Every string and every parse of the release's own encoder, as `tests/vectors` has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cedagent.chat import Tokenizer, chat_format
from cedagent.chat.dsml import Dsml
from cedagent.errors import ChatFormatError
from tests.chat.reading import check_events, marked, read

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "chat" / "dsml_vectors.json").read_text("utf-8")
)


@pytest.fixture(scope="module")
def release() -> Dsml:
    return chat_format("dsml", tools_template=VECTORS["tools_template"])


def test_the_file_has_every_kind_of_case() -> None:
    assert len(VECTORS["encode"]) >= 9
    assert {"expected", "error"} == {
        key for case in VECTORS["parse"] for key in case if key in ("expected", "error")
    }


@pytest.mark.parametrize("case", VECTORS["encode"], ids=lambda case: case["name"])
def test_rendered_strings_are_equal(release: Dsml, case: dict[str, Any]) -> None:
    settings = {
        "thinking": case["thinking_mode"] == "thinking",
        "effort": case["reasoning_effort"],
        "drop_thinking": case["drop_thinking"],
    }
    assert release.render(case["messages"], **settings) == case["expected"]
    # Tools may come beside the messages, and without the wrapper around each.
    tools = case["messages"][0].get("tools")
    if tools:
        first = {key: value for key, value in case["messages"][0].items() if key != "tools"}
        for given in (tools, [tool["function"] for tool in tools]):
            rest = case["messages"][1:]
            assert release.render([first, *rest], tools=given, **settings) == case["expected"]


@pytest.mark.parametrize("case", VECTORS["parse"], ids=lambda case: case["name"])
def test_parsed_completions_are_equal(release: Dsml, case: dict[str, Any]) -> None:
    thinking = case["thinking_mode"] == "thinking"
    if case.get("error"):
        with pytest.raises(ChatFormatError, match="expected ") as error:
            release.parse(case["completion"], thinking=thinking)
        assert "\n" not in str(error.value)
    else:
        assert release.parse(case["completion"], thinking=thinking) == case["expected"]


@pytest.mark.parametrize("case", VECTORS["parse"], ids=lambda case: case["name"])
def test_the_same_completions_from_token_ids(tiny_dsml: Tokenizer, case: dict[str, Any]) -> None:
    fmt = chat_format("dsml", tokenizer=tiny_dsml, thinking=case["thinking_mode"] == "thinking")
    output, events = read(fmt, marked(tiny_dsml, case["completion"]))
    check_events(output, events)
    assert output.complete
    if case.get("error"):
        assert len(output.malformed) == len(output.calls) == 1
        return
    expected = case["expected"]
    assert (output.text, output.reasoning) == (expected["content"], expected["reasoning_content"])
    assert [(call.name, call.arguments) for call in output.calls] == [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in expected["tool_calls"]
    ]
