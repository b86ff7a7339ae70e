"""An output is judged by what the case asks of it, and by nothing else."""

import pytest

from cedagent.chat.output import Call, Output
from cedagent.upcycle.data.conversation import Step
from cedagent.upcycle.evaluation.judgement import contains, json_equal, judge, order_of


def calls(*named):
    return Step(tuple(named), ("",) * len(named), (), True)


def answer(*texts, may_call=False):
    return Step((), (), texts, may_call)


def said(text="", *made):
    found = tuple(Call(name, arguments, "raw") for name, arguments in made)
    return Output(text, found, (), True)


def verdict(step, output, opens=True):
    found = judge(step, output, opens=opens)
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
    assert verdict(calls(("add", {"a": 1}), ("add", {"a": 2})), said("", ("add", {"a": 1})))[0] is (
        False
    )


def test_parallel_calls_may_come_in_any_order_but_each_once():
    step = calls(("add", {"a": 1}), ("add", {"a": 2}), ("sub", {"a": 1}))
    output = said("", ("sub", {"a": 1}), ("add", {"a": 2}), ("add", {"a": 1}))
    assert verdict(step, output) == (True, True, None)
    assert order_of(step, output) == [2, 1, 0]
    same = said("", ("add", {"a": 1}), ("add", {"a": 1}), ("sub", {"a": 1}))
    assert verdict(step, same) == (True, False, None)
    assert order_of(step, same) is None


def test_a_call_that_was_cut_is_not_right():
    cut = Output("", (Call("add", None, '{"a": 1', "malformed"),), ("malformed",), False)
    assert verdict(calls(("add", {"a": 1})), cut) == (True, False, None)


def test_an_answer_is_a_choice_only_where_the_turn_begins():
    step = answer("42")
    assert verdict(step, said("It is 42."), opens=True) == (True, None, True)
    assert verdict(step, said("It is 42."), opens=False) == (None, None, True)
    assert verdict(step, said("It is 43."), opens=False) == (None, None, False)
    assert verdict(step, said("42", ("add", {})), opens=True) == (False, None, False)
    assert verdict(step, said("42", ("add", {})), opens=False) == (None, None, False)


def test_where_any_answer_will_do_only_the_choice_is_judged():
    assert verdict(answer(), said("Hello!")) == (True, None, None)
    assert verdict(answer(), said("", ("add", {}))) == (False, None, None)
    assert verdict(answer(may_call=True), said("", ("add", {}))) == (None, None, None)


def test_all_expected_texts_must_stand_in_the_answer():
    assert verdict(answer("12", "Oslo"), said("In oslo 12."), opens=False)[2] is True
    assert verdict(answer("12", "Oslo"), said("12 in Bergen"), opens=False)[2] is False


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, 1.0, True), (1, True, False), (0, False, False), (None, None, True), (None, 0, False),
        ("1", 1, False), ([1, 2], [2, 1], False), ([1, 2], (1, 2), True), ({}, [], False),
        ({"a": {"b": 1}}, {"a": {"b": 1.0}}, True), ({"a": 1}, {"a": 1, "b": None}, False),
        ("é", "e\u0301", False), ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
    ],
)  # fmt: skip
def test_arguments_are_compared_as_json(a, b, equal):
    assert json_equal(a, b) is equal
    assert json_equal(b, a) is equal


@pytest.mark.parametrize(
    ("text", "expected", "found"),
    [
        ("The sum is 12.", "12", True), ("12, I think", "12", True), ("(12)", "12", True),
        ("312", "12", False), ("120", "12", False), ("12.5", "12", False), ("4.12", "12", False),
        ("12,500", "12", False), ("1,012", "012", False), ("12%", "12", True),
        ("416.50", "416.5", False), ("it is 416.5.", "416.5", True), ("-3", "-3", True),
        ("-3", "3", False), ("at \u22123 degrees", "3", False), ("1-3", "3", True),
        ("the red\n door", "The Red Door", True), ("reddoor", "red door", False),
        ("code xK-7", "xk-7", True), ("a.c", "abc", False), ("abc", "a.c", False),
    ],
)  # fmt: skip
def test_an_answer_contains_numbers_whole_and_words_in_any_case(text, expected, found):
    assert contains(text, expected) is found
