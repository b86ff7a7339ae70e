"""Whatever the DSML grammar lets a model write, the tool's signature accepts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cedagent.chat import CallGrammar, Tokenizer, chat_format
from cedagent.chat.control import Mark
from cedagent.model.tokenizer_build import build_tiny_dsml
from tests.agent.test_hints_under_grammar import HINTS, biased_pick, tool_for
from tests.chat.sampling import Pick, sample

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_tiny_dsml(389).to_str())


def ending_pick(seed: int, tokenizer: Tokenizer) -> Pick:
    """Random ids that lean to the end of a text, which is two tokens long."""
    rng, plain = random.Random(seed), biased_pick(seed, tokenizer)
    (end,) = tokenizer.encode("</")

    def pick(choices: list[int]) -> int:
        return end if end in choices and rng.random() < 0.2 else plain(choices)

    return pick


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_every_call_that_the_grammar_allows_is_accepted(hint: Any, tokenizer: Tokenizer) -> None:
    made = tool_for(hint)
    fmt = chat_format("dsml", tokenizer=tokenizer)
    marks = frozenset({tokenizer.control_id(Mark.DSML)})
    grammar = CallGrammar(fmt, tokenizer, [made.spec], choice="use")
    n_complete = 0
    for seed in range(6):
        pick = ending_pick(seed, tokenizer)
        ids = sample(grammar.start(), tokenizer, fmt, pick, limit=900, marks=marks)
        parser = fmt.parser()
        for token in ids:
            parser.push(token)
        output = parser.finish()
        if output.complete:
            (call,) = output.calls
            assert call.arguments is not None, call
            made.signature.convert(call.arguments)
            n_complete += 1
    assert n_complete >= 2
