"""What the names in a formula compute: fractions where they do, mpmath's reals of `ctx` elsewhere.

Knows numbers, no text. The arguments of one call are all fractions or all reals. To add a function,
add a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

Function = Callable[..., Any]
TOO_LONG = "the result has more than 1,000 digits"


class ArithmeticProblem(Exception):
    """A formula has no value that can be given; the message is one line."""


def require(holds: bool, problem: str) -> None:
    """Raise ArithmeticProblem with this line unless the condition holds."""
    if not holds:
        raise ArithmeticProblem(problem)


def floor(a: Any) -> int:
    """Return the largest integer not above a."""
    # Python's own floor of a real would go through sixteen digits.
    return math.floor(a) if isinstance(a, Fraction) else int(a.context.floor(a))


def functions(ctx: Any, power: Function, mod: Function) -> dict[str, tuple[range, Function]]:
    """Return for every name how many arguments it takes, and the function."""

    def whole(a: Any) -> int:
        require(floor(a) == a, "expected a whole number")
        return floor(a)

    def factorial(a: Any) -> int:
        require(a >= 0, "factorial: expected a whole number of 0 or more")
        require(a < 450, TOO_LONG)
        return math.factorial(whole(a))

    def rounded(a: Any, places: Any = Fraction(0)) -> Fraction:
        require(abs(places) <= 50, "round: expected at most 50 places")
        unit = Fraction(10) ** whole(places)
        # Halves go away from zero, as people round.
        return (1 if a > 0 else -1) * floor(abs(a) * unit + Fraction(1, 2)) / unit

    def log(a: Any, base: Any = 10) -> Any:
        require(base > 0 and base != 1, "log: expected a base above 0 other than 1")
        return ctx.log(a, base)

    def angle(function: Function, a: Any) -> Any:
        require(abs(a) <= 10**12, "an angle beyond 10^12 is too large to be exact")
        value = function(a)
        require(abs(value) < 1e30, "the tangent is not defined there")
        # What rounding leaves of a zero, as in sin(pi).
        return 0 if abs(value) < 1e-30 < abs(a) else value

    one, several = range(1, 2), range(1, 51)
    rows: dict[str, tuple[range, Function]] = {
        "cbrt": (one, lambda a: ctx.cbrt(abs(a)) * (1 if a > 0 else -1)),
        "exp": (one, lambda a: power(ctx.e, a)),
        "log": (range(1, 3), log),
        "log2": (one, lambda a: log(a, 2)),
        "floor": (one, floor),
        "ceil": (one, lambda a: -floor(-a)),
        "round": (range(1, 3), rounded),
        "abs": (one, abs),
        "factorial": (one, factorial),
        "min": (several, lambda *a: min(a)),
        "max": (several, lambda *a: max(a)),
        "sum": (several, lambda *a: sum(a)),
        "avg": (several, lambda *a: sum(a) / len(a)),
        "mean": (several, lambda *a: sum(a) / len(a)),
        "mod": (range(2, 3), mod),
        "pow": (range(2, 3), power),
        "gcd": (range(2, 51), lambda *a: math.gcd(*map(whole, a))),
        "lcm": (range(2, 51), lambda *a: math.lcm(*map(whole, a))),
    }
    rows |= {
        name: (one, getattr(ctx, name)) for name in ("sqrt", "ln", "log10", "asin", "acos", "atan")
    }
    return rows | {n: (one, partial(angle, getattr(ctx, n))) for n in ("sin", "cos", "tan")}
