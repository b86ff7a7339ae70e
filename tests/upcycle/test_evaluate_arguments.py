"""Arguments are right when they mean the same to the tool, and only then."""

import pytest

from cedagent.agent.calculator import evaluate
from cedagent.chat.template import ToolSpec
from cedagent.upcycle.data.builtin import CALCULATOR
from cedagent.upcycle.data.schemas import flag, list_of, maybe, part, record, text, tool, whole
from cedagent.upcycle.evaluation.arguments import json_equal, read_formula, same_arguments

ORDER = tool(
    "order",
    "Order things.",
    {
        "to": text(),
        "express": flag(default=False),
        "note": maybe(text()),
        "guests": record({"adults": whole(), "children": whole(default=0)}),
        "boxes": list_of(part("Box"), default=[]),
    },
    parts={"Box": record({"label": text(), "fragile": flag(default=True)})},
)
LEAST = {"to": "Ada", "guests": {"adults": 2}}


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, 1.0, True), (1, True, False), (0, False, False), (None, None, True), (None, 0, False),
        ("1", 1, False), ([1, 2], [2, 1], False), ([1, 2], (1, 2), True), ({}, [], False),
        ({"a": {"b": 1}}, {"a": {"b": 1.0}}, True), ({"a": 1}, {"a": 1, "b": None}, False),
        ("é", "e\u0301", False), ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True), ("Rom", "rom", False),
        ("a", "a ", False), (5.0, 5, True), ([[]], [{}], False),
    ],
)  # fmt: skip
def test_values_are_compared_as_json(a, b, equal):
    assert json_equal(a, b) is equal
    assert json_equal(b, a) is equal


@pytest.mark.parametrize(
    ("more", "same"),
    [
        ({"express": False}, True), ({"express": True}, False), ({"note": None}, True),
        ({"note": ""}, False), ({"boxes": []}, True), ({"boxes": [{"label": "x"}]}, False),
        ({"guests": {"adults": 2, "children": 0}}, True), ({"guests": {"adults": 2.0}}, True),
        ({"guests": {"adults": 2, "children": 1}}, False), ({"to": "ada"}, False),
        ({"other": None}, False),
    ],
)  # fmt: skip
def test_a_default_may_be_given_or_left_out(more, same):
    assert same_arguments({**LEAST, **more}, LEAST, tool=ORDER) is same
    assert same_arguments(LEAST, {**LEAST, **more}, tool=ORDER) is same


def test_defaults_inside_lists_and_shared_parts_count_too():
    boxes = {**LEAST, "boxes": [{"label": "P1", "fragile": True}, {"label": "P2"}]}
    assert same_arguments({**LEAST, "boxes": [{"label": "P1"}, {"label": "P2"}]}, boxes, tool=ORDER)
    soft = {**LEAST, "boxes": [{"label": "P1"}, {"label": "P2", "fragile": False}]}
    assert not same_arguments(soft, boxes, tool=ORDER)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("8*5", "8 * 5"), ("5 * 8", "8 * 5"), ("3 times 4", "3*4"), ("7 x 2", "2 * 7"),
        ("327 * 125", "327 * 125.00"), ("5% of 80", "5 percent of 80"), ("5% of 80", "80 * 5%"),
        ("39 * 2.5 + 3 * 4", "3 * 4 + 2.50 * 39"), ("2 plus 3", "3 + 2"), ("2**3", "2 ^ 3"),
        ("10 minus 4", "10-4"), ("9 divided by 2", "9 / 2"), ("SQRT(9)", "sqrt(9)"),
        ("2 to the power of 5", "2^5"), ("1.500", "1.5"),
    ],
)  # fmt: skip
def test_formulas_that_differ_in_spelling_are_the_same(a, b):
    given, expected = {"expression": a}, {"expression": b}
    assert same_arguments(given, expected, tool=CALCULATOR)
    # The calculator agrees.
    assert evaluate(a) == evaluate(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("10 - 4", "4 - 10"), ("9 / 2", "2 / 9"), ("92 + 12%", "12% + 92"), ("2 ^ 3", "3 ^ 2"),
        ("2 * 3 + 4", "2 * 4 + 3"), ("(2 + 3) * 4", "2 + 3 * 4"), ("avg(1, 2)", "avg(1, 3)"),
        ("40", "8 * 5"), ("1.50", "1.05"), ("100", "1"), ("2 * 3", "2 * 3 * 1"), ("12 3", "1 23"),
    ],
)  # fmt: skip
def test_other_formulas_are_not(a, b):
    assert read_formula(a) != read_formula(b)
    assert not same_arguments({"expression": a}, {"expression": b}, tool=CALCULATOR)


def test_only_the_calculators_formulas_are_read_as_formulas():
    other = ToolSpec("note", "", {"type": "object", "properties": {"expression": text()}})
    assert not same_arguments({"expression": "2*3"}, {"expression": "3*2"}, tool=other)
    assert same_arguments({"expression": 5}, {"expression": 5.0}, tool=CALCULATOR)
