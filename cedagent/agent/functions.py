"""The functions that a formula may name: how many arguments each takes, and what it computes.

Knows numbers, no text. To add a function, add a row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

from cedagent.agent import arithmetic as ar
from cedagent.agent import trigonometry as tr
from cedagent.agent.arithmetic import ArithmeticProblem, Number


def _whole(value: Number) -> int:
    if value != math.floor(value):
        raise ArithmeticProblem("gcd and lcm: expected whole numbers")
    return int(value)


FUNCTIONS: dict[str, tuple[int, int, Callable[..., Number]]] = {
    "sqrt": (1, 1, ar.square_root),
    "cbrt": (1, 1, ar.cube_root),
    "abs": (1, 1, ar.magnitude),
    "exp": (1, 1, ar.exponential),
    "ln": (1, 1, ar.natural_log),
    "log": (1, 2, lambda a, base=Fraction(10): ar.logarithm(a, base)),
    "log2": (1, 1, lambda a: ar.logarithm(a, Fraction(2))),
    "log10": (1, 1, lambda a: ar.logarithm(a, Fraction(10))),
    "floor": (1, 1, ar.floor),
    "ceil": (1, 1, ar.ceiling),
    "round": (1, 2, ar.rounded),
    "factorial": (1, 1, ar.factorial),
    "min": (1, 50, lambda *a: min(a)),
    "max": (1, 50, lambda *a: max(a)),
    "sum": (1, 50, lambda *a: functools.reduce(ar.add, a)),
    "avg": (1, 50, lambda *a: ar.divide(functools.reduce(ar.add, a), Fraction(len(a)))),
    "mod": (2, 2, ar.modulo),
    "pow": (2, 2, ar.power),
    "gcd": (2, 50, lambda *a: Fraction(math.gcd(*map(_whole, a)))),
    "lcm": (2, 50, lambda *a: ar.checked(Fraction(math.lcm(*map(_whole, a))))),
    "sin": (1, 1, tr.sine),
    "cos": (1, 1, tr.cosine),
    "tan": (1, 1, tr.tangent),
    "asin": (1, 1, tr.arcsine),
    "acos": (1, 1, tr.arccosine),
    "atan": (1, 1, tr.arctangent),
}
FUNCTIONS["mean"] = FUNCTIONS["avg"]
FUNCTIONS["√"] = FUNCTIONS["sqrt"]
