"""The generators' own outputs are right by the judge's rules, for every kind of case."""

import pytest

from cedagent.chat.output import Call, Output
from cedagent.upcycle.data import KINDS, heldout_conversations
from cedagent.upcycle.data.conversation import case_of, contains
from cedagent.upcycle.data.transcripts import train_conversation
from cedagent.upcycle.evaluation.judgement import Judge


def verdicts(kind, *, seed, n):
    """Yield the verdict on each output that a case asks for, with the step."""
    for made in heldout_conversations(kind, seed=seed, n=n):
        case = case_of(made)
        judge = Judge(case.tools)
        for i, (turn, steps) in enumerate(zip(made.turns, case.steps, strict=True)):
            for number, (said, step) in enumerate(zip(turn.outputs, steps, strict=True)):
                calls = tuple(Call(name, dict(arguments), "") for name, arguments in said.calls)
                output = Output("" if calls else said.text, calls, (), True)
                asked = "\n".join(case.user[: i + 1])
                yield judge.verdict(step, output, chooses=number == 0, said=asked), step, turn


def check(kind, *, seed, n):
    answers = judged = 0
    for verdict, step, turn in verdicts(kind, seed=seed, n=n):
        assert verdict.good, (turn, verdict)
        assert not step.calls or verdict.arguments
        answers += not step.calls
        judged += verdict.answer is not None
    return judged / answers


@pytest.mark.parametrize("kind", [*KINDS, "needle_500"])
def test_what_the_generators_say_is_right(kind):
    check(kind, seed=4, n=12)


@pytest.mark.slow
def test_of_many_cases_all_are_right_and_most_answers_have_a_result_to_bring():
    judged = {kind: check(kind, seed=0, n=200) for kind in (*KINDS, "needle_1000")}
    assert judged["needle_1000"] == 1
    assert judged["multi_step"] > 0.9
    assert min(judged["known"], judged["unseen"]) > 0.6


@pytest.mark.slow
def test_no_answer_that_is_taught_lacks_what_the_tools_returned():
    for i in range(3_000):
        made = train_conversation(f"train/3/{i}", count=len)
        for turn in made.turns:
            for said in turn.outputs:
                if not said.calls:
                    assert all(contains(said.text, item) for item in said.contains), (i, turn)
