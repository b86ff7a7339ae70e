"""Names of control tokens in tools are text: a mask holds a control id only where the syntax does.

Whatever a tool, its parameters and its fixed values are called, an output can be finished, and is
read back as what was allowed.
"""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedagent.chat import CallGrammar, ChatFormat, Tokenizer, ToolSpec, chat_format
from cedagent.chat.control import CHATML, Mark
from cedagent.errors import ConfigError, ToolDefinitionError
from tests.chat.reading import result
from tests.chat.sampling import allowed, obj

CONTROL = [*map(str, Mark), CHATML.turn_start, CHATML.turn_end, "<|endoftext|>"]
NAMES = st.lists(
    st.sampled_from([*CONTROL, "a", "é", "<", "</", "\N{FULLWIDTH VERTICAL LINE}", '"', " ", "\\"]),
    min_size=1,
    max_size=3,
).map("".join)


def places_of_dsml(said: str) -> set[str]:
    """Control tokens that the layout has behind a text that begins after the last mark."""
    if said == " calls>":
        return {Mark.END}
    lead = "</" if said.startswith(" parameter name=") else "<"
    return {Mark.DSML} if said.endswith((lead, "</")) else set()


def places_of_chatml(said: str) -> set[str]:
    return {CHATML.turn_end} if said.endswith("\n</tool_call>") else set()


def finish(
    fmt: ChatFormat, tokenizer: Tokenizer, tool: ToolSpec, *, seed: int
) -> tuple[list[int], bool]:
    """Sample a call of the tool; every mask on the way holds control ids in their places alone."""
    places = places_of_dsml if fmt.name == "dsml" else places_of_chatml
    constraint = CallGrammar(fmt, tokenizer, [tool], choice=tool.name).start()
    rng = random.Random(seed)
    ids: list[int] = []
    said = b""
    while not constraint.is_finished() and len(ids) < 900:
        choices = allowed(constraint)
        assert choices
        control = set(choices) & tokenizer.control_ids
        assert {tokenizer.token_name(i) for i in control} <= places(said.decode(errors="replace"))
        ids.append(rng.choice(sorted(control) if control else choices))
        constraint.advance(ids[-1])
        data = tokenizer.token_bytes(ids[-1])
        said = b"" if data is None else said + data
    return ids, constraint.is_finished()


@pytest.fixture(scope="module", params=["dsml", "chatml", "awkward dsml", "awkward chatml"])
def pair(request: pytest.FixtureRequest) -> tuple[ChatFormat, Tokenizer]:
    """A format and its tokenizer."""
    fixtures = {"dsml": "tiny_dsml", "chatml": "tiny"}
    fixtures |= {"awkward dsml": "awkward_dsml", "awkward chatml": "awkward"}
    tokenizer: Tokenizer = request.getfixturevalue(fixtures[request.param])
    return chat_format(request.param.split()[-1], tokenizer=tokenizer), tokenizer


def schema_of(key: str, value: str) -> dict[str, Any]:
    """Names and fixed values at every depth: texts of their own, and inside JSON."""
    inner = obj({key: {"type": "null"}, "z": {"const": value}}, key, "z")
    return obj({key: {"type": "boolean"}, "e": {"enum": [value]}, "o": inner}, key, "e", "o")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [*CONTROL, "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}User>", "<think>x", "a</think>b"],
)
def test_a_control_tokens_name_is_spelled_as_text(
    pair: tuple[ChatFormat, Tokenizer], name: str
) -> None:
    fmt, tokenizer = pair
    ids, finished = finish(fmt, tokenizer, ToolSpec(name, "", schema_of(name, name)), seed=5)
    assert finished
    (call,) = result(fmt, ids).calls
    assert (call.name, call.error) == (name, None)
    assert call.arguments is not None
    flag = call.arguments[name]
    assert call.arguments == {name: flag, "e": name, "o": {name: None, "z": name}}


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(tool=NAMES, key=NAMES, value=NAMES, seed=st.integers(0, 99))
def test_no_mask_holds_a_control_id_outside_its_places(
    pair: tuple[ChatFormat, Tokenizer], tool: str, key: str, value: str, seed: int
) -> None:
    fmt, tokenizer = pair
    key = f"k{key}"
    schema = schema_of(key, value)
    ids, finished = finish(fmt, tokenizer, ToolSpec(tool, "", schema), seed=seed)
    assert finished
    (call,) = result(fmt, ids).calls
    assert (call.name, call.error) == (tool, None)
    jsonschema.validate(call.arguments, schema)


def test_text_under_every_choice_holds_the_end_mark_alone(
    pair: tuple[ChatFormat, Tokenizer],
) -> None:
    fmt, tokenizer = pair
    tool = ToolSpec(CONTROL[3], "", schema_of(CONTROL[5], CONTROL[-2]))
    for choice in ("auto", "none"):
        constraint = CallGrammar(fmt, tokenizer, [tool], choice=choice).start()
        for token in tokenizer.encode("a " + " ".join(CONTROL)):
            assert set(allowed(constraint)) & tokenizer.control_ids <= fmt.stop_ids
            constraint.advance(token)


def test_ids_that_a_vocabulary_lacks_are_in_no_mask(tiny: Tokenizer, chatml: ChatFormat) -> None:
    grammar = CallGrammar(chatml, tiny, [], vocab_size=tiny.vocab_size + 9)
    assert max(allowed(grammar.start())) < tiny.vocab_size
    with pytest.raises(ConfigError, match=r"the tokenizer's 397 ids, got 300"):
        CallGrammar(chatml, tiny, [], vocab_size=300)


@pytest.mark.parametrize("step", [0.1, 7.0, 1.5, 0, -3])
@pytest.mark.parametrize("kind", ["number", "integer"])
def test_only_multiples_of_whole_numbers_are_promised(
    pair: tuple[ChatFormat, Tokenizer], step: float, kind: str
) -> None:
    fmt, tokenizer = pair
    part = {"type": kind, "multipleOf": step}
    for schema in (part, {"type": "array", "items": part}, obj({"multipleOf": part})):
        with pytest.raises(ToolDefinitionError, match=f"^tool 'f': .*multipleOf, got {step};"):
            CallGrammar(fmt, tokenizer, [ToolSpec("f", "", obj({"x": schema}))])
    # A value or a parameter of that name is none.
    named = obj({"multipleOf": {"const": {"multipleOf": step}}, "default": {"multipleOf": 3}})
    CallGrammar(fmt, tokenizer, [ToolSpec("f", "", named)])
    with pytest.raises(ToolDefinitionError, match="multipleOf"):
        CallGrammar(fmt, tokenizer, [ToolSpec("f", "", obj({"default": part}))])


@pytest.mark.parametrize("schema", [False, {"enum": []}, {"anyOf": [False]}, {"allOf": [False]}])
def test_a_parameter_that_no_value_fits_is_refused_in_one_clear_line(
    tiny_dsml: Tokenizer, schema: Any
) -> None:
    fmt = chat_format("dsml", tokenizer=tiny_dsml)
    with pytest.raises(ToolDefinitionError, match=r"^tool 'f': parameter 'x': .* fits") as error:
        CallGrammar(fmt, tiny_dsml, [ToolSpec("f", "", obj({"x": schema}))])
    assert "panic" not in str(error.value)
    assert len(str(error.value)) < 200


def test_tools_that_json_or_unicode_cannot_say_are_refused(
    pair: tuple[ChatFormat, Tokenizer],
) -> None:
    fmt, tokenizer = pair
    tools = [
        ToolSpec("f", "", obj({"x": {"type": "number", "default": float("nan")}})),
        ToolSpec("f", "", obj({"x": {"const": object()}})),
        ToolSpec("f", "", obj({"\ud800": {"type": "null"}})),
    ]
    for tool in tools:
        with pytest.raises(ToolDefinitionError, match=r"^tool 'f': expected") as error:
            CallGrammar(fmt, tokenizer, [tool])
        assert "\n" not in str(error.value)
