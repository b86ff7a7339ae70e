"""An output is judged by what the case asks of it, and by nothing else."""

import pytest

from cedagent.chat.output import Call, Output
from cedagent.upcycle.data.conversation import Step, contains
from cedagent.upcycle.data.schemas import tool
from cedagent.upcycle.evaluation.judgement import Judge, is_settled

JUDGE = Judge([tool(name, "", {}) for name in ("add", "sub")])


def calls(*named):
    return Step(tuple(named), ("",) * len(named), (), True)


def answer(*texts, may_call=False):
    return Step((), (), texts, may_call)


def said(text="", *made):
    found = tuple(Call(name, arguments, "raw") for name, arguments in made)
    return Output(text, found, (), True)


def verdict(step, output, chooses=True, **more):
    found = JUDGE.verdict(step, output, chooses=chooses, **more)
    return found.tool, found.arguments, found.answer


def test_a_right_call_is_right_in_tool_and_arguments():
    step = calls(("add", {"a": 1, "b": [True, None]}))
    assert verdict(step, said("", ("add", {"b": [True, None], "a": 1.0}))) == (True, True, None)
    assert verdict(step, said("", ("add", {"a": 1, "b": [1, None]}))) == (True, False, None)
    assert verdict(step, said("", ("add", {"a": 1}))) == (True, False, None)
    assert verdict(step, said("", ("sub", {"a": 1, "b": [True, None]}))) == (False, None, None)
    assert verdict(step, said("no idea")) == (False, None, None)


def test_one_call_too_many_or_too_few_is_the_wrong_choice():
    step = calls(("add", {"a": 1}))
    twice = said("", ("add", {"a": 1}), ("add", {"a": 1}))
    assert verdict(step, twice)[0] is False
    both = calls(("add", {"a": 1}), ("add", {"a": 2}))
    assert verdict(both, said("", ("add", {"a": 1})))[0] is False


def test_parallel_calls_may_come_in_any_order_but_each_once():
    step = calls(("add", {"a": 1}), ("add", {"a": 2}), ("sub", {"a": 1}))
    output = said("", ("sub", {"a": 1}), ("add", {"a": 2}), ("add", {"a": 1}))
    assert verdict(step, output) == (True, True, None)
    assert JUDGE.order_of(step, output) == [2, 1, 0]
    same = said("", ("add", {"a": 1}), ("add", {"a": 1}), ("sub", {"a": 1}))
    assert verdict(step, same) == (True, False, None)
    assert JUDGE.order_of(step, same) is None


def test_a_call_that_was_cut_is_not_right():
    cut = Output("", (Call("add", None, '{"a": 1', "malformed"),), ("malformed",), False)
    assert verdict(calls(("add", {"a": 1})), cut) == (True, False, None)


def test_an_answer_is_a_choice_only_where_the_model_chooses():
    step = answer("42")
    assert verdict(step, said("It is 42."), chooses=True) == (True, None, True)
    assert verdict(step, said("It is 42."), chooses=False) == (None, None, True)
    assert verdict(step, said("It is 43."), chooses=False) == (None, None, False)
    assert verdict(step, said("42", ("add", {})), chooses=True) == (False, None, False)
    assert verdict(step, said("42", ("add", {})), chooses=False) == (None, None, False)


def test_where_any_answer_will_do_only_the_choice_is_judged():
    assert verdict(answer(), said("Hello!")) == (True, None, None)
    assert verdict(answer(), said("", ("add", {}))) == (False, None, None)
    assert verdict(answer(may_call=True), said("", ("add", {}))) == (None, None, None)


def test_all_expected_texts_must_stand_in_the_answer():
    assert verdict(answer("12", "Oslo"), said("In oslo 12."), chooses=False)[2] is True
    assert verdict(answer("12", "Oslo"), said("12 in Bergen"), chooses=False)[2] is False


def test_what_the_user_said_is_no_result_that_an_answer_must_bring():
    step, output = answer("garage", "23.5"), said("It is 23.5.")
    assert verdict(step, output, chooses=False, said="Heat the Garage.")[2] is True
    assert verdict(step, said("Done."), chooses=False, said="Heat the garage.")[2] is False
    # Nothing is left to look for.
    given = "Heat the garage to 23.5 degrees."
    assert verdict(step, said("Done."), chooses=False, said=given) == (None, None, None)
    assert verdict(answer("23"), said("Done."), chooses=False, said=given)[2] is False


def test_a_call_that_nobody_expects_settles_an_output():
    step = calls(("add", {}), ("add", {}), ("sub", {}))
    assert not is_settled(step, [])
    assert not is_settled(step, ["sub", "add", "add"])
    assert is_settled(step, ["sub", "sub"])
    assert is_settled(step, ["mul"])
    assert is_settled(answer("7"), ["add"])
    assert not is_settled(answer("7"), [])


@pytest.mark.parametrize(
    ("text", "expected", "found"),
    [
        ("The sum is 12.", "12", True), ("12, I think", "12", True), ("(12)", "12", True),
        ("312", "12", False), ("120", "12", False), ("12.5", "12", False), ("4.12", "12", False),
        ("12,500", "12", False), ("1,012", "012", False), ("12%", "12", True),
        ("416.50", "416.5", False), ("it is 416.5.", "416.5", True), ("-3", "-3", True),
        ("-3", "3", False), ("at \u22123 degrees", "3", False), ("1-3", "3", True),
        ("at \u22123 degrees", "-3", True), ("4,711 pieces", "4711", True), ("4,71", "471", False),
        ("1,234,567", "1234567", True), ("12,3456", "123456", False), ("12,345", "12,345", True),
        ("platform 21a", "21", False), ("room Q7", "7", False), ("42b8bd", "42", False),
        ("\u20ac43", "43", True), ("43 EUR", "43", True), ("13:33:51", "13:33", True),
        ("the red\n door", "The Red Door", True), ("reddoor", "red door", False),
        ("Weimar", "Wei", False), ("it is Wei's", "wei", True), ("in lib/a.csv.", "a.csv", True),
        ("models/, a", "models/", True), ("code xK-7", "xk-7", True), ("a.c", "abc", False),
        ("abc", "a.c", False),
    ],
)  # fmt: skip
def test_an_answer_contains_numbers_and_words_whole_and_in_any_case(text, expected, found):
    assert contains(text, expected) is found
