"""Exact arithmetic with bounds: fractions where they do, fifty decimal digits where they do not.

Knows numbers and functions, no text of formulas. Every result is bounded in size before it is
computed, so that no formula can keep the machine busy. Raises ArithmeticProblem with one line.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

Number = Fraction | Decimal
"""A Fraction is exact; a Decimal stands for a number that no fraction is."""

MAX_DIGITS = 1_000
_MAX_BITS = int(MAX_DIGITS * math.log2(10))
_SHOWN_DIGITS = 15
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640629")
_E = Decimal("2.71828182845904523536028747135266249775724709369995957496696762772407663035")
CONTEXT = decimal.Context(prec=50, Emax=99_999, Emin=-99_999, rounding=decimal.ROUND_HALF_EVEN)


class ArithmeticProblem(Exception):
    """A formula has no value that can be given; the message is one line."""


def constant(name: str) -> Number | None:
    """Return pi, tau or e by name, or None."""
    return {"pi": _PI, "π": _PI, "tau": CONTEXT.multiply(_PI, Decimal(2)), "e": _E}.get(name)


def checked(value: Number) -> Number:
    """Return the value if it is small enough to go on with."""
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
            raise ArithmeticProblem(f"the result has more than {MAX_DIGITS:,} digits")
    elif not value.is_finite() or (value and abs(value.adjusted()) > MAX_DIGITS):
        raise ArithmeticProblem(f"the result has more than {MAX_DIGITS:,} digits")
    return value


def add(a: Number, b: Number) -> Number:
    """Return a + b."""
    return _both(a, b, lambda x, y: x + y, CONTEXT.add)


def subtract(a: Number, b: Number) -> Number:
    """Return a - b."""
    return _both(a, b, lambda x, y: x - y, CONTEXT.subtract)


def multiply(a: Number, b: Number) -> Number:
    """Return a * b."""
    return _both(a, b, lambda x, y: x * y, CONTEXT.multiply)


def divide(a: Number, b: Number) -> Number:
    """Return a / b."""
    if not b:
        raise ArithmeticProblem("division by zero")
    return _both(a, b, lambda x, y: x / y, CONTEXT.divide)


def floor_divide(a: Number, b: Number) -> Number:
    """Return the quotient rounded down."""
    return floor(divide(a, b))


def modulo(a: Number, b: Number) -> Number:
    """Return a - b * floor(a / b), which has the sign of b."""
    return subtract(a, multiply(b, floor_divide(a, b)))


def power(a: Number, b: Number) -> Number:
    """Return a to the power b."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        if b.denominator == 1:
            return _integer_power(a, b.numerator)
        exact = _exact_root(a, b.denominator) if b.denominator <= 64 else None
        if exact is not None:
            return _integer_power(exact, b.numerator)
    if a < 0:
        raise ArithmeticProblem("a negative number to a fractional power is not real")
    if not a:
        if b < 0:
            raise ArithmeticProblem("division by zero")
        return Fraction(0)
    return exponential(multiply(b, natural_log(a)))


def magnitude(a: Number) -> Number:
    """Return the value without its sign."""
    return -a if a < 0 else a


def square_root(a: Number) -> Number:
    """Return the square root, exact where it is."""
    if a < 0:
        raise ArithmeticProblem("the square root of a negative number is not real")
    exact = _exact_root(a, 2) if isinstance(a, Fraction) else None
    return CONTEXT.sqrt(_decimal(a)) if exact is None else exact


def cube_root(a: Number) -> Number:
    """Return the cube root, also of a negative number."""
    root = power(magnitude(a), Fraction(1, 3))
    return -root if a < 0 else root


def exponential(a: Number) -> Number:
    """Return e to the power a."""
    if magnitude(a) > 2_400:
        raise ArithmeticProblem(f"the result has more than {MAX_DIGITS:,} digits")
    return checked(CONTEXT.exp(_decimal(a)))


def natural_log(a: Number) -> Number:
    """Return the logarithm to base e."""
    if a <= 0:
        raise ArithmeticProblem("the logarithm of zero or a negative number is not real")
    return Fraction(0) if a == 1 else CONTEXT.ln(_decimal(a))


def logarithm(a: Number, base: Number) -> Number:
    """Return the logarithm to a base, exact where it is a whole number."""
    bottom = natural_log(base)
    if not bottom:
        raise ArithmeticProblem("there is no logarithm to base 1")
    value = divide(natural_log(a), bottom)
    whole = Fraction(int(_decimal(value).to_integral_value(context=CONTEXT)))
    is_exact = isinstance(a, Fraction) and isinstance(base, Fraction)
    return whole if is_exact and power(base, whole) == a else value


def floor(a: Number) -> Number:
    """Return the largest integer not above a."""
    return Fraction(math.floor(a))


def ceiling(a: Number) -> Number:
    """Return the smallest integer not below a."""
    return Fraction(math.ceil(a))


def rounded(a: Number, places: Number = Fraction(0)) -> Number:
    """Return a rounded to decimal places, halves away from zero, as people round."""
    if places != math.floor(places) or magnitude(places) > 50:
        raise ArithmeticProblem("round: expected a whole number of places, at most 50")
    unit = Fraction(10) ** int(places)
    scaled = Fraction(a) * unit
    whole = math.floor(abs(scaled) + Fraction(1, 2))
    return Fraction(whole if scaled >= 0 else -whole) / unit


def factorial(a: Number) -> Number:
    """Return a!."""
    if a != math.floor(a) or a < 0:
        raise ArithmeticProblem("factorial: expected a whole number of 0 or more")
    if a > 450:
        raise ArithmeticProblem(f"the result has more than {MAX_DIGITS:,} digits")
    return Fraction(math.factorial(int(a)))


def shown(value: Number) -> str:
    """Return the value in decimal: exact if its digits end, else to fifteen digits."""
    if isinstance(value, Fraction):
        exact = _exact_text(value)
        if exact is not None:
            return exact
    number = _decimal(value)
    if abs(number) < Decimal("1e-30"):
        return "0"
    short = number.normalize(decimal.Context(prec=_SHOWN_DIGITS))
    return f"{short:f}" if -7 <= short.adjusted() <= 20 else f"{short:e}".replace("e+", "e")


def _exact_text(value: Fraction) -> str | None:
    top, bottom = value.numerator, value.denominator
    if bottom == 1:
        return str(top)
    twos = (bottom & -bottom).bit_length() - 1
    fives, rest = 0, bottom >> twos
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    places = max(twos, fives)
    if rest != 1 or places > 40:
        return None
    digits = str(abs(top) * 10**places // bottom).rjust(places + 1, "0")
    return f"{'-' if top < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _decimal(a: Number) -> Decimal:
    if isinstance(a, Decimal):
        return a
    return CONTEXT.divide(Decimal(a.numerator), Decimal(a.denominator))


def _both(
    a: Number,
    b: Number,
    exact: Callable[[Fraction, Fraction], Fraction],
    close: Callable[[Decimal, Decimal], Decimal],
) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return checked(exact(a, b))
    return checked(close(_decimal(a), _decimal(b)))


def _integer_power(a: Fraction, n: int) -> Number:
    if not a and n < 0:
        raise ArithmeticProblem("division by zero")
    if abs(a) in (0, 1):
        # These stay small, so the exponent may be of any size.
        return a ** (n % 2) if abs(a) == 1 else Fraction(int(n == 0))
    bits = max(a.numerator.bit_length(), a.denominator.bit_length())
    if (bits - 1) * abs(n) > _MAX_BITS:
        raise ArithmeticProblem(f"the result has more than {MAX_DIGITS:,} digits")
    return checked(a**n)


def _exact_root(a: Fraction, n: int) -> Fraction | None:
    if a < 0:
        return None
    top, bottom = _integer_root(a.numerator, n), _integer_root(a.denominator, n)
    return None if top is None or bottom is None else Fraction(top, bottom)


def _integer_root(value: int, n: int) -> int | None:
    if n == 2:
        root = math.isqrt(value)
        return root if root * root == value else None
    low, high = 0, 1 << (value.bit_length() // n + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle**n < value else (low, middle)
    return low if low**n == value else None
