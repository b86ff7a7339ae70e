"""Held-out cases: what drives an engine and what a judge needs."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import UsageError
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.data import KINDS, heldout_conversations, tool_cases
from cedagent.upcycle.data.builtin import BUILTIN
from cedagent.upcycle.data.conversation import case_of
from cedagent.upcycle.data.documents import long_document
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.records import RECORDS
from cedagent.upcycle.data.skills import known, unseen
from cedagent.upcycle.data.transcripts import all_chains


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_tiny().to_str())


@pytest.mark.parametrize("kind", [*KINDS, "needle_400"])
def test_a_case_is_whole(kind) -> None:
    for case in tool_cases(kind=kind, seed=3, n=25):
        assert case.kind == kind
        names = [spec.name for spec in case.tools]
        assert len(set(names)) == len(names)
        assert len(case.user) == len(case.steps) >= 1
        for message, steps in zip(case.user, case.steps, strict=True):
            assert message.strip()
            *calling, last = steps
            assert not last.may_call
            assert last.calls == last.results == ()
            for step in calling:
                assert step.may_call
                assert len(step.calls) == len(step.results) >= 1
                assert {name for name, _ in step.calls} <= set(names)


def test_each_kind_is_what_it_says() -> None:
    unseen_names = {skill.spec.name for skill in unseen()}
    known_names = {skill.spec.name for skill in known()}
    for case in tool_cases(kind="known", seed=1, n=40):
        called = {name for steps in case.steps for step in steps for name, _ in step.calls}
        assert called <= known_names
    for case in tool_cases(kind="unseen", seed=1, n=40):
        called = {name for steps in case.steps for step in steps for name, _ in step.calls}
        assert called <= unseen_names
    for case in tool_cases(kind="multi_step", seed=1, n=40):
        assert sum(step.may_call for step in case.steps[0]) in (2, 3)
        assert case.steps[0][-1].answer_contains
    for case in tool_cases(kind="chat", seed=1, n=40):
        assert not any(step.may_call for steps in case.steps for step in steps)


def test_known_cases_have_calls_and_refusals_and_the_default_tools() -> None:
    cases = tool_cases(kind="known", seed=2, n=150)
    none = [case for case in cases if not any(s.may_call for steps in case.steps for s in steps)]
    assert 5 < len(none) < 35
    assert any(len(step.calls) > 1 for case in cases for steps in case.steps for step in steps)
    assert any(len(case.user) > 1 for case in cases)
    first_screen = [case for case in cases if case.tools == BUILTIN and case.system is None]
    assert len(first_screen) > 10
    called = {n for case in cases for steps in case.steps for step in steps for n, _ in step.calls}
    assert len(called) > 25


def test_multi_step_cases_have_all_chains() -> None:
    cases = tool_cases(kind="multi_step", seed=1, n=120)
    seen = {tuple(step.calls[0][0] for step in case.steps[0] if step.calls) for case in cases}
    assert len(seen) >= len({tuple(s.name for s in c.specs) for c in all_chains()}) - 2


def test_later_arguments_stand_in_earlier_results() -> None:
    for case in tool_cases(kind="multi_step", seed=4, n=60):
        steps = case.steps[0]
        said = case.user[0] + "\n".join(steps[0].results)
        for step in steps[1:-1]:
            for _, arguments in step.calls:
                for value in arguments.values():
                    if isinstance(value, str) and " * " not in value and " + " not in value:
                        parts = value.split("/") if value.count("/") else [value]
                        assert all(p in said for p in parts if " - " not in p), (said, value)
            said += "\n".join(step.results)


def test_a_longer_list_begins_with_the_shorter_one() -> None:
    assert tool_cases(kind="known", seed=5, n=7) == tool_cases(kind="known", seed=5, n=20)[:7]
    assert tool_cases(kind="known", seed=5, n=7) != tool_cases(kind="known", seed=6, n=7)


def test_needles_have_their_length_and_depth(tokenizer) -> None:
    for n_tokens in (800, 2_100):
        cases = tool_cases(kind=f"needle_{n_tokens}", seed=1, n=10, tokenizer=tokenizer)
        for i, case in enumerate(cases):
            # The nearest row; a short text has few of them.
            assert case.depth == pytest.approx((i + 0.5) / 10, abs=0.2)
            (text,) = case.steps[0][0].results
            assert len(tokenizer.encode(text)) == pytest.approx(n_tokens, rel=0.2)
            (needle,) = case.steps[0][1].answer_contains
            at = text.index(needle) / len(text)
            # A word such as a first name may also stand elsewhere.
            assert at <= case.depth + 0.25
            assert needle in text[int(max(0, case.depth - 0.05) * len(text)) :]


def test_a_needle_names_one_row(tokenizer) -> None:
    for made in heldout_conversations("needle_900", seed=2, n=16, tokenizer=tokenizer):
        said = made.turns[0]
        text = said.outputs[0].results[0]
        asked = [line for line in text.split("\n") if name_in(line) and name_in(line) in said.user]
        assert len(asked) == 1, (said.user, asked)
        assert said.outputs[1].contains[0] in asked[0]


def test_a_name_inside_another_one_does_not_name_two_rows() -> None:
    numbers = itertools.count(1)
    trains = next(kind for kind in RECORDS if "platform" in kind.wants)
    kind = replace(trains, row=lambda draw: trains.row(draw) | {"name": f"IC {next(numbers)}"})
    draw = Draw("few", split="train")
    # It counts rows on a sample first, so that the document begins with a later number: 13.
    document = long_document(draw, 3_000, depth=0.0, count=lambda text: len(text) // 2, kind=kind)
    assert document.target["name"] == "IC 13"
    named = [line for line in document.text.split("\n") if "IC 13" in line]
    assert len(named) == 1
    assert "IC 129" in document.text
    assert "IC 130" not in document.text


def name_in(line: str) -> str:
    """Return what a row of any kind of document is asked by."""
    shapes = (
        r"(\w+) = .*", r'\{"name": "([\w-]+)".*', r"- [\w ]+ will (.*) by [\d-]+\.",
        r"- (.*) \(\w\w-\d+\): .*", r".* (job \d+) in \d+ ms", r"\d\d:\d\d  (\w\w \d+)  .*",
        r"About (.*) we agreed on this: .*", r"([\w ]+),[^,]*,[^,]*@[^,]*,.*",
    )  # fmt: skip
    matches = [re.fullmatch(shape, line) for shape in shapes]
    return next((match[1] for match in matches if match is not None), "")


def test_needles_without_a_tokenizer_are_about_as_long(tokenizer) -> None:
    for case in tool_cases(kind="needle_600", seed=1, n=8):
        assert 800 < len(case.steps[0][0].results[0]) < 2_600


@pytest.mark.parametrize("kind", ["", "seen", "needle", "needle_", "needle_x", "needle_0"])
def test_another_kind_is_refused(kind) -> None:
    with pytest.raises(UsageError, match=r"expected a kind of case, known, unseen, .* needle_N"):
        tool_cases(kind=kind, seed=1, n=1)


def test_a_case_is_the_conversation_without_its_answers() -> None:
    for made in heldout_conversations("known", seed=9, n=10):
        case = case_of(made)
        assert case.user == tuple(turn.user for turn in made.turns)
        for steps, turn in zip(case.steps, made.turns, strict=True):
            assert [step.calls for step in steps] == [said.calls for said in turn.outputs]
            assert [s.answer_contains for s in steps] == [o.contains for o in turn.outputs]
