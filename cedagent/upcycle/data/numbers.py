"""Exact sums, written as the calculator tool writes its results.

Knows fractions and square roots. Invariant: `shown` gives the calculator's own text for the same
value: exact decimals where there are any, else fifteen digits.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction


def exact(value: int | float | str) -> Fraction:
    """Return the number that people mean by a decimal."""
    return Fraction(str(value))


def shown(value: Fraction) -> str:
    """Return the value in decimal."""
    with localcontext() as context:
        context.prec = 200
        quotient = Decimal(value.numerator) / Decimal(value.denominator)
        if (value * 10**40).denominator == 1:
            text = f"{quotient:f}"
            return text
        context.prec = 15
        short = (+quotient).normalize()
    return f"{short:f}" if -7 <= short.adjusted() <= 20 else f"{short:e}".replace("e+", "e")


def square_root(value: int) -> str:
    """Return the square root in decimal."""
    with localcontext() as context:
        context.prec = 50
        exact_root = Decimal(value).sqrt()
        if exact_root == exact_root.to_integral_value():
            return f"{exact_root:f}".split(".")[0]
        context.prec = 15
        return f"{(+exact_root).normalize():f}"


def plain(value: Fraction, *, places: int = 2) -> int | float:
    """Return a JSON number rounded to so many decimals; an int where there are none."""
    rounded = round(value, places)
    return int(rounded) if rounded.denominator == 1 else float(rounded)
