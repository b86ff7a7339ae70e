"""What each tool choice admits, what is forced, and which tools are refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cedagent.chat import CallGrammar, ChatFormat, Tokenizer, ToolSpec
from cedagent.errors import ChatFormatError, ToolDefinitionError
from tests.chat.reading import result
from tests.chat.sampling import SCHEMAS, TOOLS, allowed, lowest, obj, random_pick, sample


def test_text_may_precede_calls_and_nothing_but_calls_follows(
    awkward: Tokenizer, fmt: ChatFormat
) -> None:
    end = awkward.control_id("<|im_end|>")
    grammar = CallGrammar(fmt, awkward, TOOLS[:2], choice="auto")
    constraint = grammar.start()
    for token in awkward.encode("Let me see: 2 < 3 <tool_call"):
        assert end in allowed(constraint)
        assert len(allowed(constraint)) > 200
        constraint.advance(token)
    constraint.advance(awkward.encode(">")[0])
    assert end not in allowed(constraint)
    assert {awkward.decode([i])[:1] for i in allowed(constraint)} == {"\n"}
    with pytest.raises(ChatFormatError, match=r"id that the call grammar allows, got .*'x'"):
        constraint.advance(awkward.encode("x")[0])
    # The model may also say nothing at all, or only text.
    constraint = grammar.start()
    constraint.advance(end)
    assert constraint.is_finished()


@pytest.mark.parametrize("tools", [TOOLS, []])
def test_no_call_is_possible_without_choice_or_tools(
    awkward: Tokenizer, fmt: ChatFormat, tools: list[ToolSpec]
) -> None:
    tag = awkward.encode("<tool_call>")
    glued = {
        i for i in range(awkward.vocab_size) if b"<tool_call>" in (awkward.token_bytes(i) or b"")
    }
    assert glued
    grammar = CallGrammar(fmt, awkward, tools, choice="none" if tools else "auto")
    for seed in range(10):
        rng = random.Random(seed)
        constraint = grammar.start()
        ids: list[int] = []
        while not constraint.is_finished() and len(ids) < 200:
            choices = allowed(constraint)
            assert not glued.intersection(choices)
            # Weights that want nothing more than to write the tag.
            wanted = [i for i in tag if i in choices]
            ids.append(rng.choice(wanted if wanted and rng.random() < 0.8 else choices))
            constraint.advance(ids[-1])
        assert result(fmt, ids).calls == ()
    constraint = grammar.start()
    for token in tag[:-1]:
        constraint.advance(token)
    assert tag[-1] not in allowed(constraint)
    assert awkward.encode("-")[0] in allowed(constraint)


def test_text_stays_valid_utf8(awkward: Tokenizer, fmt: ChatFormat) -> None:
    for choice in ("auto", "none"):
        grammar = CallGrammar(fmt, awkward, TOOLS, choice=choice)
        for seed in range(5):
            ids = sample(grammar.start(), awkward, fmt, random_pick(seed, awkward), limit=120)
            constraint_text = b"".join(awkward.token_bytes(i) or b"" for i in ids)
            if ids[-1] in fmt.stop_ids:
                constraint_text.decode()


def test_the_stop_token_alone_is_allowed_behind_the_named_call_and_ends_it(
    awkward: Tokenizer, fmt: ChatFormat
) -> None:
    end = awkward.control_id("<|im_end|>")
    constraint = CallGrammar(fmt, awkward, TOOLS, choice="nothing").start()
    text = '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>'
    for token in awkward.encode(text):
        assert constraint.forced() is not None
        assert end not in allowed(constraint)
        constraint.advance(token)
    assert constraint.forced() == end
    assert not constraint.is_finished()
    constraint.advance(end)
    assert constraint.is_finished()
    with pytest.raises(ChatFormatError, match="has ended"):
        constraint.mask()
    with pytest.raises(ChatFormatError, match=r"got .*im_end"):
        constraint.advance(end)


def test_the_structure_is_forced_in_the_tokenizers_own_spelling(
    tiny: Tokenizer, chatml: ChatFormat
) -> None:
    constraint = CallGrammar(chatml, tiny, TOOLS, choice="optional").start()
    text = '<tool_call>\n{"name": "optional", "arguments": {"'
    forced: list[int] = []
    while (token := constraint.forced()) is not None:
        forced.append(token)
        constraint.advance(token)
    assert tiny.decode(forced) == text
    assert forced == tiny.encode(text)


def test_a_worked_example_is_what_the_grammar_allows(awkward: Tokenizer, fmt: ChatFormat) -> None:
    arguments = {"text": 'a "b" é\n', "whole": -12, "real": 1.5e-7, "flag": True, "none": None}
    tool = ToolSpec("scalars", "", SCHEMAS["scalars"], ((("Q?"), arguments),))
    shown = awkward.decode(fmt.begin("", [tool]))
    example = shown[shown.index("<tool_call>\n") : shown.rindex("</tool_call>") + 12]
    constraint = CallGrammar(fmt, awkward, [tool], choice="scalars").start()
    for token in awkward.encode(example):
        constraint.advance(token)
    assert fmt.stop_ids.issuperset(allowed(constraint))


def test_starts_are_independent(awkward: Tokenizer, fmt: ChatFormat) -> None:
    grammar = CallGrammar(fmt, awkward, TOOLS, choice="required")
    one, two = grammar.start(), grammar.start()
    before = two.mask()
    for token in awkward.encode("<tool_call>\n{"):
        one.advance(token)
    assert two.mask() == before == grammar.start().mask()
    assert one.mask() != before


def test_more_logits_than_tokens_are_masked(awkward: Tokenizer, fmt: ChatFormat) -> None:
    n = awkward.vocab_size + 37
    for choice in ("auto", "none", "required"):
        constraint = CallGrammar(fmt, awkward, TOOLS, choice=choice, vocab_size=n).start()
        assert len(constraint.mask()) == (n + 7) // 8
        assert max(allowed(constraint)) < awkward.vocab_size


def test_unknown_choices_list_the_known_ones(awkward: Tokenizer, fmt: ChatFormat) -> None:
    with pytest.raises(ChatFormatError, match="auto, none, required, nothing, scalars, got 'calc'"):
        CallGrammar(fmt, awkward, TOOLS[:2], choice="calc")
    with pytest.raises(ChatFormatError, match="at least one tool"):
        CallGrammar(fmt, awkward, [], choice="required")


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "if"),
        ({"type": "string", "format": "path"}, "format: path"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"$ref": "https://example.org/schema"}, "example.org"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "oneOf"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"anyOf": [{"type": "object", "minProperties": 2}, {"type": "null"}]}, "minProperties"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"type": "strnig"}, "strnig"),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "none", "broken"])
def test_a_schema_that_cannot_be_enforced_names_the_tool_and_the_fault(
    awkward: Tokenizer, fmt: ChatFormat, schema: dict[str, Any], fault: str, choice: str
) -> None:
    tools = [*TOOLS, ToolSpec("broken", "", obj({"x": schema}, "x"))]
    with pytest.raises(ToolDefinitionError) as error:
        CallGrammar(fmt, awkward, tools, choice=choice)
    line = str(error.value)
    assert line.startswith("tool 'broken': expected ")
    assert fault in line
    assert "\n" not in line


def test_parameters_must_be_an_object_and_names_distinct(
    awkward: Tokenizer, fmt: ChatFormat
) -> None:
    with pytest.raises(ToolDefinitionError, match=r"'t': expected parameters of .*got 'array'"):
        CallGrammar(fmt, awkward, [ToolSpec("t", "", {"type": "array"})], choice="auto")
    for name in ("", "nothing"):
        with pytest.raises(ToolDefinitionError, match="distinct names"):
            CallGrammar(fmt, awkward, [*TOOLS, ToolSpec(name, "", obj({}))], choice="auto")


@pytest.mark.parametrize("name", ["a.b-c", "größe", 'quo"te', "日本", "a/b//c #d", "back\\slash"])
def test_any_tool_name_can_be_called(awkward: Tokenizer, fmt: ChatFormat, name: str) -> None:
    tools = [ToolSpec("other", "", obj({})), ToolSpec(name, "", obj({}))]
    ids = sample(CallGrammar(fmt, awkward, tools, choice=name).start(), awkward, fmt, lowest)
    assert [call.name for call in result(fmt, ids).calls] == [name]


def test_long_outputs_do_not_exhaust_the_matcher(awkward: Tokenizer, fmt: ChatFormat) -> None:
    constraint = CallGrammar(fmt, awkward, TOOLS, choice="auto").start()
    text = "word <tool_ " * 400 + '<tool_call>\n{"name": "scalars", "arguments": {"text": "'
    for token in awkward.encode(text + "x" * 4000):
        constraint.mask()
        constraint.advance(token)
    assert allowed(constraint)


def test_a_call_needs_a_majority_only_where_text_may_stand_in_its_place(
    awkward: Tokenizer, fmt: ChatFormat
) -> None:
    first = awkward.encode("<tool_call>")[0]
    constraint = CallGrammar(fmt, awkward, TOOLS[:2], choice="auto").start()
    assert constraint.majority() == first
    assert first in allowed(constraint)
    constraint.advance(first)
    assert constraint.majority() is None
    constraint = CallGrammar(fmt, awkward, TOOLS[:2], choice="auto").start()
    constraint.advance(awkward.encode("So")[0])
    assert constraint.majority() is None
    for tools, choice in (
        (TOOLS[:2], "required"), (TOOLS[:2], "none"), (TOOLS[:2], TOOLS[0].name), ([], "auto")
    ):  # fmt: skip
        assert CallGrammar(fmt, awkward, tools, choice=choice).start().majority() is None
