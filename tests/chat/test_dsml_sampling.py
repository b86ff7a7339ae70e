"""Under the grammar every DSML call parses and validates, whatever the weights."""

from __future__ import annotations

import random

import jsonschema
import pytest

from cedagent.chat import CallGrammar, Output, Tokenizer, ToolSpec, chat_format
from cedagent.chat.control import Mark
from cedagent.chat.dsml import Dsml
from tests.chat.reading import MARKS, check_events, marked, read, shown
from tests.chat.sampling import (
    SCHEMAS,
    TOOLS,
    Pick,
    check_calls,
    highest,
    lowest,
    obj,
    random_pick,
    sample,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chat(awkward_dsml: Tokenizer) -> Dsml:
    return chat_format("dsml", tokenizer=awkward_dsml)


@pytest.fixture(scope="module")
def thinking(awkward_dsml: Tokenizer) -> Dsml:
    return chat_format("dsml", tokenizer=awkward_dsml, thinking=True)


def checked(fmt: Dsml, tokenizer: Tokenizer, ids: list[int]) -> Output:
    """Read sampled ids and check the result; one that ended also reads as a text."""
    output, events = read(fmt, ids)
    check_events(output, events)
    check_calls(output)
    if output.complete and not MARKS.search(tokenizer.decode(ids)):
        message = fmt.parse(shown(tokenizer, ids))
        assert message["content"] == output.text
        assert len(message["tool_calls"]) == len(output.calls)
    return output


def marks_of(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(map(tokenizer.control_id, (Mark.DSML, Mark.END_THINK)))


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_a_named_tool_is_called_once_and_its_arguments_validate(
    awkward_dsml: Tokenizer, chat: Dsml, name: str
) -> None:
    grammar = CallGrammar(chat, awkward_dsml, TOOLS, choice=name)
    marks = marks_of(awkward_dsml)
    n_complete = 0
    for seed in range(12):
        pick = random_pick(seed, awkward_dsml)
        ids = sample(grammar.start(), awkward_dsml, chat, pick, limit=2000, marks=marks)
        output = checked(chat, awkward_dsml, ids)
        assert output.text == ""
        assert [call.name for call in output.calls] == [name]
        n_complete += output.complete
    assert n_complete >= 3


def test_random_weights_make_single_and_parallel_calls_of_any_tool(
    awkward_dsml: Tokenizer, thinking: Dsml
) -> None:
    grammar = CallGrammar(thinking, awkward_dsml, TOOLS, choice="required")
    counts: list[int] = []
    names: set[str] = set()
    for seed in range(30):
        pick = random_pick(seed, awkward_dsml)
        marks = marks_of(awkward_dsml)
        ids = sample(grammar.start(), awkward_dsml, thinking, pick, limit=900, marks=marks)
        output = checked(thinking, awkward_dsml, ids)
        assert output.text == ""
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
    awkward_dsml: Tokenizer, chat: Dsml, name: str, pick: Pick
) -> None:
    constraint = CallGrammar(chat, awkward_dsml, TOOLS, choice=name).start()
    marks = marks_of(awkward_dsml)
    output = checked(chat, awkward_dsml, sample(constraint, awkward_dsml, chat, pick, marks=marks))
    assert output.calls[0].name == name


def test_weights_that_only_want_digits_write_finite_numbers(
    awkward_dsml: Tokenizer, chat: Dsml
) -> None:
    schema = obj(
        {"a": {"type": "number"}, "b": {"type": "integer"}, "c": {"type": "string"}, "d": {}},
        *"abcd",
    )
    grammar = CallGrammar(chat, awkward_dsml, [ToolSpec("f", "", schema)], choice="f")
    marks = marks_of(awkward_dsml)
    for wanted in ("9", "0", "e999.9999999", "-.00000000000000999", ".4e9999"):
        rng = random.Random(wanted)

        def pick(choices: list[int], wanted: str = wanted, rng: random.Random = rng) -> int:
            texts = {i: awkward_dsml.decode([i]) for i in choices}
            digits = [i for i, t in texts.items() if t and set(t) <= set(wanted)]
            ends = [i for i, t in texts.items() if t in ("</", "")]
            return rng.choice(ends if ends and rng.random() < 0.1 else digits or choices)

        ids = sample(grammar.start(), awkward_dsml, chat, pick, limit=2000, marks=marks)
        output, _ = read(chat, ids)
        assert output.malformed == () or not output.complete
        if output.complete:
            jsonschema.validate(output.calls[0].arguments, schema)


def test_auto_reaches_calls_from_random_text(awkward_dsml: Tokenizer, thinking: Dsml) -> None:
    grammar = CallGrammar(thinking, awkward_dsml, TOOLS)
    marks = marks_of(awkward_dsml)
    n_calls = 0
    for seed in range(15):
        constraint = grammar.start()
        ids = marked(awkward_dsml, f'Two.</think>So: 12 "é\n\n\n<{Mark.DSML}')
        for token in ids:
            constraint.advance(token)
        pick = random_pick(seed, awkward_dsml)
        ids += sample(constraint, awkward_dsml, thinking, pick, limit=900, marks=marks)
        output = checked(thinking, awkward_dsml, ids)
        assert (output.reasoning, output.text) == ("Two.", 'So: 12 "é\n')
        n_calls += sum(call.error is None for call in output.calls)
        # Without help, random text: whatever it stumbles into is right.
        ids = sample(grammar.start(), awkward_dsml, thinking, pick, limit=200, marks=marks)
        checked(thinking, awkward_dsml, ids)
    assert n_calls >= 10
