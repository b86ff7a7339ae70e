"""Under the grammar every call parses, names a listed tool and validates, whatever the weights."""

from __future__ import annotations

import random

import jsonschema
import pytest

from cedagent.chat import CallGrammar, ChatFormat, Tokenizer, ToolSpec
from tests.chat.reading import result
from tests.chat.sampling import (
    SCHEMAS,
    TOOLS,
    Pick,
    allowed,
    check_calls,
    highest,
    lowest,
    obj,
    random_pick,
    sample,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_a_named_tool_is_called_once_and_its_arguments_validate(
    awkward: Tokenizer, fmt: ChatFormat, name: str
) -> None:
    grammar = CallGrammar(fmt, awkward, TOOLS, choice=name)
    n_complete = 0
    for seed in range(25):
        ids = sample(grammar.start(), awkward, fmt, random_pick(seed, awkward))
        output = result(fmt, ids)
        assert output.text == ""
        assert len(output.calls) == 1
        assert output.calls[0].name == name or not output.complete
        check_calls(output)
        n_complete += output.complete
    assert n_complete >= 8


def test_random_weights_make_single_and_parallel_calls_of_any_tool(
    awkward: Tokenizer, fmt: ChatFormat
) -> None:
    grammar = CallGrammar(fmt, awkward, TOOLS, choice="required")
    counts: list[int] = []
    names: set[str] = set()
    for seed in range(60):
        ids = sample(grammar.start(), awkward, fmt, random_pick(seed, awkward), limit=700)
        output = result(fmt, ids)
        assert output.text == ""
        check_calls(output)
        names |= {call.name for call in output.calls if call.error is None}
        if output.complete:
            assert output.calls
            counts.append(len(output.calls))
    assert {1, 2} <= set(counts)
    assert max(counts) >= 3
    assert len(names) >= 6


@pytest.mark.parametrize("pick", [lowest, highest])
@pytest.mark.parametrize("name", list(SCHEMAS))
def test_weights_that_always_want_one_end_of_the_vocabulary(
    awkward: Tokenizer, fmt: ChatFormat, name: str, pick: Pick
) -> None:
    # Some of these never end; what they began is a correct call up to there.
    ids = sample(CallGrammar(fmt, awkward, TOOLS, choice=name).start(), awkward, fmt, pick)
    output = result(fmt, ids)
    check_calls(output)
    assert output.calls[0].name == name


def test_weights_that_only_want_digits_write_finite_numbers_inside_their_bounds(
    awkward: Tokenizer, fmt: ChatFormat
) -> None:
    schema = obj(
        {
            "a": {"type": "number"},
            "b": {"type": "integer"},
            "c": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
            "d": {"type": "number", "exclusiveMaximum": 12.5, "minimum": -1},
            "e": {"type": "number", "minimum": -0.3, "exclusiveMaximum": 0.30000000000000004},
        },
        *"abcde",
    )
    tools = [ToolSpec("f", "", schema), ToolSpec("g", "", obj({"x": {}}, "x"))]
    for wanted in ("9", "0", "e999.9999999", "-.00000000000000999", ".4e9999", ".29999999"):
        for tool in tools:
            grammar = CallGrammar(fmt, awkward, [tool], choice=tool.name)
            rng = random.Random(wanted)

            def pick(choices: list[int], wanted: str = wanted, rng: random.Random = rng) -> int:
                texts = {i: awkward.decode([i]) for i in choices}
                digits = [i for i, t in texts.items() if t and set(t) <= set(wanted)]
                return rng.choice(digits or choices)

            ids = sample(grammar.start(), awkward, fmt, pick, limit=2000)
            output = result(fmt, ids)
            if tool.name == "f":
                assert output.complete
            if output.complete:
                assert output.malformed == ()
                jsonschema.validate(output.calls[0].arguments, tool.parameters)


def test_an_exponent_in_one_piece_does_not_make_a_short_number_overflow(
    awkward: Tokenizer, fmt: ChatFormat
) -> None:
    tool = ToolSpec("f", "", obj({"a": {"type": "number"}}, "a"))
    constraint = CallGrammar(fmt, awkward, [tool], choice="f").start()
    for token in awkward.encode('<tool_call>\n{"name": "f", "arguments": {"a": 7'):
        constraint.advance(token)
    choices = {awkward.decode([i]) for i in allowed(constraint)}
    assert "e9" in choices
    assert "e999" not in choices


def test_auto_reaches_calls_from_random_text(awkward: Tokenizer, fmt: ChatFormat) -> None:
    grammar = CallGrammar(fmt, awkward, TOOLS, choice="auto")
    n_calls = 0
    for seed in range(30):
        constraint = grammar.start()
        ids = [*awkward.encode('So: 12 "é\n'), *awkward.encode("<tool_call>")]
        for token in ids:
            constraint.advance(token)
        ids += sample(constraint, awkward, fmt, random_pick(seed, awkward))
        output = result(fmt, ids)
        assert output.text == 'So: 12 "é'
        check_calls(output)
        n_calls += sum(call.error is None for call in output.calls)
        # Without help, random text: whatever tags it stumbles into, calls are right.
        ids = sample(grammar.start(), awkward, fmt, random_pick(seed + 1000, awkward), limit=200)
        check_calls(result(fmt, ids))
    assert n_calls >= 20
