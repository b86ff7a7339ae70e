"""Sine, cosine and their kin on fifty decimal digits, so that sin(pi) is 0 and sin(30°) is 0.5.

Knows no formulas; angles are in radians. Series are summed until a term no longer counts. Callers
run them under `arithmetic.CONTEXT` as the current decimal context.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

from cedagent.agent.arithmetic import (
    ArithmeticProblem,
    Number,
    constant,
    divide,
    magnitude,
    multiply,
    square_root,
    subtract,
)

_DIGITS = Decimal("1e-52")


def sine(a: Number) -> Number:
    """Return the sine of an angle in radians."""
    x = _reduced(a)
    term = total = x
    n = 1
    while abs(term) > _DIGITS:
        n += 2
        term = -term * x * x / (n * (n - 1))
        total += term
    return _clean(total)


def cosine(a: Number) -> Number:
    """Return the cosine of an angle in radians."""
    x = _reduced(a)
    term = total = Decimal(1)
    n = 0
    while abs(term) > _DIGITS:
        n += 2
        term = -term * x * x / (n * (n - 1))
        total += term
    return _clean(total)


def tangent(a: Number) -> Number:
    """Return the tangent; raises ArithmeticProblem where it has a pole."""
    bottom = cosine(a)
    if not bottom:
        raise ArithmeticProblem("the tangent is not defined there")
    return divide(sine(a), bottom)


def arctangent(a: Number) -> Number:
    """Return the angle in radians whose tangent is a."""
    x = _decimal(a)
    # Halving the angle three times makes the series short.
    for _ in range(3):
        x = x / (1 + (1 + x * x).sqrt())
    term, total, n = x, x, 1
    while abs(term) > _DIGITS:
        term = -term * x * x
        n += 2
        total += term / n
    return total * 8


def arcsine(a: Number) -> Number:
    """Return the angle in radians whose sine is a."""
    if magnitude(a) > 1:
        raise ArithmeticProblem("asin and acos: expected a number between -1 and 1")
    if magnitude(a) == 1:
        return multiply(Fraction(1 if a > 0 else -1, 2), _pi())
    rest = square_root(subtract(Fraction(1), multiply(a, a)))
    return arctangent(divide(a, rest))


def arccosine(a: Number) -> Number:
    """Return the angle in radians whose cosine is a."""
    return _clean(_decimal(subtract(divide(_pi(), Fraction(2)), arcsine(a))))


def _pi() -> Decimal:
    value = constant("pi")
    assert isinstance(value, Decimal)
    return value


def _reduced(a: Number) -> Decimal:
    if magnitude(a) > 10**12:
        raise ArithmeticProblem("an angle beyond 10^12 is too large to be exact")
    x = _decimal(a)
    turn = 2 * _pi()
    return x - turn * math.floor(x / turn)


def _decimal(a: Number) -> Decimal:
    return a if isinstance(a, Decimal) else Decimal(a.numerator) / Decimal(a.denominator)


def _clean(value: Decimal) -> Decimal:
    # What is left of a zero after rounding: sin(pi), cos(pi/2).
    return Decimal(0) if abs(value) < Decimal("1e-22") else value
