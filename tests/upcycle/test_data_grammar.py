"""What is taught is what serving allows: every output passes the call grammar and parses back."""

from __future__ import annotations

import itertools

import pytest

from cedagent.chat.grammar import CallGrammar
from cedagent.chat.template import chat_format
from cedagent.chat.tokenizer import Tokenizer
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.data import Conversation, heldout_conversations
from cedagent.upcycle.data.examples import conversations
from cedagent.upcycle.data.rendering import output_ids
from cedagent.upcycle.data.skills import known, unseen


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_tiny().to_str())


def check(conversation: Conversation, tokenizer: Tokenizer) -> None:
    fmt = chat_format("chatml", tokenizer=tokenizer)
    grammar = CallGrammar(fmt, tokenizer, conversation.tools)
    for said in (said for turn in conversation.turns for said in turn.outputs):
        constraint, parser = grammar.start(), fmt.parser()
        for token in output_ids(said, fmt, tokenizer=tokenizer):
            constraint.advance(token)
            parser.push(token)
        assert constraint.is_finished()
        output = parser.finish()
        assert output.complete
        calls = [(call.name, call.arguments) for call in output.calls]
        assert calls == [(name, dict(arguments)) for name, arguments in said.calls]
        assert output.text == ("" if said.calls else said.text)


def test_every_training_output_passes_the_grammar(tokenizer) -> None:
    for conversation in itertools.islice(conversations(tokenizer, split="train", seed=21), 8):
        check(conversation, tokenizer)


@pytest.mark.parametrize("kind", ["known", "unseen", "multi_step", "recovery"])
def test_every_expected_output_of_a_case_passes_the_grammar(tokenizer, kind) -> None:
    for conversation in heldout_conversations(kind, seed=8, n=3, tokenizer=tokenizer):
        check(conversation, tokenizer)


@pytest.mark.slow
def test_many_outputs_pass_the_grammar(tokenizer) -> None:
    for conversation in itertools.islice(conversations(tokenizer, split="train", seed=22), 400):
        check(conversation, tokenizer)


def test_every_tool_can_be_enforced(tokenizer) -> None:
    fmt = chat_format("chatml", tokenizer=tokenizer)
    specs = {skill.spec.name: skill.spec for skill in (*known(), *unseen())}
    listed = list(specs.values())
    for i in range(0, len(listed), 8):
        CallGrammar(fmt, tokenizer, listed[i : i + 8])
