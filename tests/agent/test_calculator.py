from __future__ import annotations

import time
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cedagent as ca
from cedagent.agent.builtin import calculator
from cedagent.agent.calculator import ArithmeticProblem, evaluate

VALUES = {
    # What the issue names.
    "17% of 2450": "416.5",
    "2^10": "1024",
    "sqrt(2)": "1.4142135623731",
    "1,234 * 3": "3702",
    "5% of 80": "4",
    "0.1 + 0.2": "0.3",
    # Percent, as pocket calculators have it.
    "200 + 10%": "220",
    "200 - 10%": "180",
    "200 * 10%": "20",
    "10% + 5%": "0.15",
    "200 + 5% of 80": "204",
    "50%": "0.5",
    "-5%": "-0.05",
    "17 percent of 2450": "416.5",
    "12.5% of 1,000": "125",
    # Remainder.
    "10 % 3": "1",
    "-7 mod 3": "2",
    "10 % (2 + 2)": "2",
    # Precedence.
    "-2^2": "-4",
    "2^-1": "0.5",
    "2^3^2": "512",
    "2 + 3 * 4": "14",
    "(2 + 3) * 4": "20",
    "3 + 4 * 2 / (1 - 5)^2": "3.5",
    "--3": "3",
    "7 // 2": "3",
    "-7 // 2": "-4",
    "2**8": "256",
    # What people write.
    "2pi": "6.28318530717959",
    "2(3+4)": "14",
    "3 x 4": "12",
    "12 \u00d7 3 \u00f7 4": "9",
    "5 \u2212 7": "-2",
    "√16": "4",
    "$1,200 * 2 =": "2400",
    "1_000 + 1": "1001",
    "100 divided by 8": "12.5",
    "3 squared": "9",
    "5!": "120",
    "(1 + 2": "3",
    "1,234,567.5 * 2": "2469135",
    # Exactness.
    "1 - 0.9": "0.1",
    "1/3": "0.333333333333333",
    "1/7*7": "1",
    "2^100": "1267650600228229401496703205376",
    "10^-8": "0.00000001",
    "1/8": "0.125",
    "sqrt(2)^2": "2",
    "4^0.5": "2",
    "8^(1/3)": "2",
    "round(2.675, 2)": "2.68",
    "round(-2.5)": "-3",
    # Functions.
    "sqrt(1,000,000)": "1000",
    "max(1,234)": "234",
    "min(3, 1, 2)": "1",
    "avg(1, 2)": "1.5",
    "log(1000)": "3",
    "log(8, 2)": "3",
    "ln(e)": "1",
    "exp(0)": "1",
    "sin(pi)": "0",
    "sin(30°)": "0.5",
    "cos(60 degrees)": "0.5",
    "tan(45°)": "1",
    "atan(1) * 4": "3.14159265358979",
    "asin(1)": "1.5707963267949",
    "gcd(12, 18)": "6",
    "lcm(4, 6)": "12",
    "floor(-1.5)": "-2",
    "ceil(1.2)": "2",
    "abs(-3)": "3",
    "cbrt(-27)": "-3",
    "(-1)^99999999999": "-1",
    # Reals that are whole come back whole, tiny ones stay, and rounding leaves no rests.
    "(-pi)^2": "9.86960440108936",
    "floor(sqrt(2)^2)": "2",
    "floor(log(1000))": "3",
    "sqrt(2^120)": "1152921504606846976",
    "200pi // (2pi)": "100",
    "tau mod 30°": "0",
    "1/3 * pi * 3 - pi": "0",
    "7/3 * sqrt(2) * 3 mod sqrt(2)": "0",
    "mod(7/11 * ln(3) * 11, ln(3))": "0",
    "1/pi": "0.318309886183791",
    "10 mod pi": "0.57522203923062",
    "10 // pi": "3",
    "max(3, pi, 22/7)": "3.14285714285714",
    "0.1 + sqrt(2) - sqrt(2)": "0.1",
    "exp(-100) * exp(100)": "1",
    "10^-50": "1e-50",
    "100 * (1 + 0.0425/12)^360": "357.064947253799",
    "0^0": "1",
}


@pytest.mark.parametrize(("formula", "value"), VALUES.items())
def test_value(formula: str, value: str) -> None:
    assert evaluate(formula) == value


REFUSED = {
    "9**9**9": "1,000 digits",
    "9^9^9^9^9": "1,000 digits",
    "2^(10^9)": "1,000 digits",
    "10^1000 * 10": "1,000 digits",
    "1e5000": "1,000 digits",
    "exp(10000)": "1,000 digits",
    "exp(10^900)": "1,000 digits",
    "pi^(10^900)": "1,000 digits",
    "999999999!": "1,000 digits",
    "9!!!!": "1,000 digits",
    "1/0": "division by zero",
    "1 % 0": "division by zero",
    "0^-1": "division by zero",
    "sqrt(-1)": "not real",
    "(-8)^0.3": "not real",
    "ln(0)": "not real",
    "tan(pi/2)": "not defined",
    "1 +": "too early",
    "": "nothing",
    "= ?": "nothing",
    "1,23": "1,500",
    "1 2": "unexpected '2'",
    "abc": "known: pi, π, tau, e, abs, acos",
    "__import__('os').system('x')": "unexpected",
    "open('/etc/passwd')": "unknown name",
    "(" * 100 + "1": "levels",
    "-" * 100 + "1": "levels",
    "√" * 400 + "1": "levels",
    "max(1" * 90: "levels",
    "log(8, 0)": "base",
    "asin(2)": "not real",
    "mod(1)": "expected 2 arguments, got 1",
    "1" * 501: "at most 500",
    "round(1.5, 99)": "places",
    "1.5!": "whole number",
    "sqrt()": "unexpected",
    "log(1, 2, 3)": "1 to 2",
    "sin(10^20)": "too large",
}


@pytest.mark.parametrize(("formula", "reason"), REFUSED.items())
def test_refused_in_one_line_and_at_once(formula: str, reason: str) -> None:
    started = time.monotonic()
    with pytest.raises(ArithmeticProblem) as caught:
        evaluate(formula)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 1


@settings(max_examples=300, deadline=2_000)
@given(formula=st.text(st.sampled_from("0123456789.,+-*/^%!()eπ√° ofpisqrtmaxx²"), max_size=40))
def test_any_text_has_a_value_or_one_line(formula: str) -> None:
    try:
        value = evaluate(formula)
    except ArithmeticProblem as caught:
        problem = str(caught)
    else:
        assert Decimal(value).is_finite()
        return
    assert problem
    assert "\n" not in problem


NUMBERS = st.decimals(-1000, 1000, places=2).map(str)


@settings(max_examples=200, deadline=None)
@given(first=NUMBERS, rest=st.lists(st.tuples(st.sampled_from("+-*/"), NUMBERS), max_size=5))
def test_arithmetic_is_exact(first: str, rest: list[tuple[str, str]]) -> None:
    formula = f"({first})" + "".join(f" {sign} ({number})" for sign, number in rest)
    source = "".join(
        f" {sign} Fraction('{number}')" for sign, number in [("+", first), *rest]
    ).removeprefix(" +")
    try:
        expected = eval(source, {"Fraction": Fraction})
    except ZeroDivisionError:
        with pytest.raises(ArithmeticProblem, match="division by zero"):
            evaluate(formula)
        return
    value = evaluate(formula)
    with localcontext(prec=50):
        exact = Decimal(expected.numerator) / Decimal(expected.denominator)
        assert abs(Decimal(value) - exact) <= abs(exact) * Decimal("1e-14")
    if expected.denominator == 1:
        assert value == str(expected.numerator)


def test_the_tool_ships_its_example_and_tells_the_model_what_is_wrong() -> None:
    assert calculator.spec.examples == (("What is 5% of 80?", {"expression": "5% of 80"}),)
    assert calculator("17% of 2450") == "416.5"
    with pytest.raises(ca.ToolError, match="division by zero"):
        calculator("1/0")
