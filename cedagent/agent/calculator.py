"""Reads formulas as people write them and gives their value; never evaluates code.

Numbers are exact fractions where they can be, else reals of fifty digits; every result is bounded.
`%` before a number, a name or a parenthesis is the remainder, elsewhere percent; a + p% takes p
percent of a, as pocket calculators do, unless a is a percentage too. A comma groups thousands, but
separates the arguments of functions that take several.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial
from importlib import import_module
from typing import Any

from cedagent.agent.functions import TOO_LONG, ArithmeticProblem, floor, functions, require

__all__ = ["ArithmeticProblem", "evaluate"]

_MAX_CHARS = 500
_MAX_DEPTH = 60
_MAX_DIGITS = 1_000
_MAX_BITS = 3_321
_SPELLINGS = (
    (r"\b(?:divided by|over)\b|[\u00f7\u2215]", "/"),
    (r"\b(?:multiplied by|times)\b|[\u00d7\u00b7\u22c5\u2219]", "*"),
    ("√", " sqrt "),
    (r"(?<=[\d)\s])x(?=[\s\d(])", "*"),
    (r"\bplus\b", "+"),
    (r"\bminus\b|[\u2212\u2013]", "-"),
    (r"\bto the power of\b|\*\*", "^"),
    (r"\bsquared\b|²", "^2"),
    (r"\bcubed\b|³", "^3"),
    (r"\bpercent\b", "%"),
    (r"\bdegrees?\b|\bdeg\b", "°"),
    (r"[$€£]|[\s=?]+$", ""),
)
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?![\d,_])(?:\.\d+)?|\d[\d_]*(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"


def evaluate(formula: str) -> str:
    """Return the value of a formula in decimal; raises ArithmeticProblem with one line."""
    given = len(formula)
    require(given <= _MAX_CHARS, f"expected at most {_MAX_CHARS} characters, got {given}")
    text = formula.lower()
    for pattern, sign in _SPELLINGS:
        text = re.sub(pattern, sign, text)
    require(bool(text.strip()), "expected a formula such as 17% of 2450, got nothing")
    # Loaded here: whoever calculates nothing does not wait for it. The context is this call's own.
    ctx = import_module("mpmath").MPContext()
    ctx.dps = 50
    reader = _Reader(ctx, text)
    try:
        value = reader.sum()
    except ZeroDivisionError:
        raise ArithmeticProblem("division by zero") from None
    if reader.tokens[0]:
        raise reader.unexpected()
    return _shown(ctx, value)


class _Reader:
    """Reads a formula from left to right, one precedence level per method from `sum` to `atom`."""

    def __init__(self, ctx: Any, text: str) -> None:
        self.ctx = ctx
        self.tokens = [*re.findall(rf"{_NUMBER}|[a-zπ]+\d*|//|\S", text), ""]
        self.depth = 0
        self.commas_separate = False
        # Whether the value that a method returned last was written as a percentage.
        self.is_percent = False
        self.functions = functions(ctx, self.power, partial(self.result, "mod"))
        self.constants = {"pi": +ctx.pi, "π": +ctx.pi, "tau": 2 * ctx.pi, "e": +ctx.e}

    def sum(self) -> Any:
        value = self.product()
        only_percents = self.is_percent
        while sign := self.taken("+", "-"):
            other = self.product()
            if self.is_percent and not only_percents:
                other = self.result("*", value, other)
            only_percents = only_percents and self.is_percent
            value = self.result("+", value, other if sign == "+" else -other)
        return value

    def product(self) -> Any:
        value = self.signed()
        # 2pi, 2(3 + 4), 3 sqrt(2); but two numbers side by side are a mistake.
        while (sign := self.taken("*", "/", "//", "%", "of", "mod")) or (
            self.tokens[0] == "(" or self.tokens[0][:1].isalpha()
        ):
            value = self.result(sign, value, self.signed())
            self.is_percent = False
        return value

    def signed(self) -> Any:
        if sign := self.taken("+", "-"):
            value = self.deeper(self.signed)
            return -value if sign == "-" else value
        return self.raised()

    def raised(self) -> Any:
        value, is_percent = self.atom(), False
        while not self.is_remainder() and (sign := self.taken("!", "°", "%")):
            is_percent = sign == "%"
            if sign == "!":
                value = self.call("factorial", [value])
            else:
                value = self.result("*", value, Fraction(1, 100) if is_percent else self.ctx.degree)
        if self.taken("^"):
            value, is_percent = self.call("pow", [value, self.deeper(self.signed)]), False
        self.is_percent = is_percent
        return value

    def is_remainder(self) -> bool:
        """Say whether a `%` comes here, before an operand."""
        after = self.tokens[1][:1] if self.tokens[0] == "%" else ""
        return (after.isalnum() or after in tuple(".(")) and self.tokens[1] not in ("of", "mod")

    def atom(self) -> Any:
        if self.taken("("):
            return self.inside(commas_separate=False)[0]
        if re.match(_NUMBER, self.tokens[0]):
            return self.number()
        if name := self.taken(*self.constants):
            return self.constants[name]
        if name := self.taken(*self.functions):
            if self.taken("("):
                several = self.functions[name][0].stop > 2
                return self.call(name, self.inside(commas_separate=several))
            return self.call(name, [self.deeper(self.raised)])
        if not self.tokens[0][:1].isalpha() or self.tokens[0] == "of":
            raise self.unexpected()
        names = ", ".join([*self.constants, *sorted(self.functions)])
        raise ArithmeticProblem(f"unknown name {self.tokens[0]!r}; known: {names}")

    def number(self) -> Any:
        text = self.tokens.pop(0)
        if self.commas_separate and "," in text:
            text, rest = text.split(",", 1)
            self.tokens[:0] = [",", rest]
        mantissa, _, exponent = re.sub("[,_]", "", text).partition("e")
        require(abs(int(exponent or 0)) <= _MAX_DIGITS, TOO_LONG)
        return self.settled(Fraction(mantissa) * Fraction(10) ** int(exponent or 0))

    def inside(self, *, commas_separate: bool) -> list[Any]:
        """Return the values up to the closing parenthesis."""
        outer, self.commas_separate = self.commas_separate, commas_separate
        values = [self.deeper(self.sum)]
        while commas_separate and self.taken(","):
            values.append(self.deeper(self.sum))
        # A missing parenthesis at the very end is forgiven.
        if not self.taken(")") and self.tokens[0]:
            raise self.unexpected()
        self.commas_separate = outer
        return values

    def taken(self, *signs: str) -> str:
        """Take and return the next token if it is one of these, else return nothing."""
        return self.tokens.pop(0) if self.tokens[0] in signs else ""

    def deeper(self, rule: Callable[[], Any]) -> Any:
        self.depth += 1
        require(self.depth <= _MAX_DEPTH, f"expected at most {_MAX_DEPTH} levels of parentheses")
        value = rule()
        self.depth -= 1
        return value

    def unexpected(self) -> ArithmeticProblem:
        if not self.tokens[0]:
            return ArithmeticProblem("the formula ends too early; a number is missing")
        hint = "; write 1.5 or 1,500" if self.tokens[0] == "," else ""
        return ArithmeticProblem(f"unexpected {self.tokens[0]!r}{hint}")

    def call(self, name: str, arguments: list[Any]) -> Any:
        counts, function = self.functions[name]
        wanted = " to ".join(map(str, sorted({counts[0], counts[-1]})))
        given = len(arguments)
        require(given in counts, f"{name}: expected {wanted} arguments, got {given}")
        return self.settled(function(*self.alike(arguments)))

    def result(self, sign: str, a: Any, b: Any) -> Any:
        a, b = self.alike([a, b])
        if sign == "/":
            return self.settled(a / b)
        if sign == "//":
            return self.settled(floor(self.settled(a / b)))
        if sign not in ("+", "%", "mod"):
            return self.settled(a * b)
        value = a + b if sign == "+" else a - b * floor(self.settled(a / b))
        # What rounding leaves of a zero.
        is_rest = isinstance(value, self.ctx.mpf) and abs(value) * 10**40 < abs(a)
        return self.settled(0 if is_rest else value)

    def power(self, a: Any, b: Any) -> Any:
        if isinstance(a, Fraction) and b.denominator == 1:
            bits = max(a.numerator.bit_length(), a.denominator.bit_length())
            if (bits - 1) * abs(b.numerator) <= _MAX_BITS:
                return a**b.numerator
        if not a:
            return 0 if b > 0 else 1 / a
        a, b = self.ctx.convert(a), self.ctx.convert(b)
        require(abs(b * self.ctx.ln(abs(a))) < 2_400, TOO_LONG)
        return self.ctx.power(a, b)

    def alike(self, values: list[Any]) -> list[Any]:
        """Return the values as they are if all are fractions, else all as reals."""
        exact = all(isinstance(value, Fraction) for value in values)
        return values if exact else [self.ctx.convert(value) for value in values]

    def settled(self, value: Any) -> Any:
        """Return a result as a fraction if it is one and not too long, else as a real."""
        if isinstance(value, int | Fraction):
            value = Fraction(value)
            if max(value.numerator.bit_length(), value.denominator.bit_length()) <= _MAX_BITS:
                return value
            value = self.ctx.convert(value)
        is_real = isinstance(value, self.ctx.mpf) and self.ctx.isfinite(value)
        require(is_real, "the result is not real")
        require(not value or abs(self.ctx.mag(value)) <= _MAX_BITS, TOO_LONG)
        near = int(self.ctx.nint(value))
        # Reals are good to forty digits: 2.00...01 is what rounding made of a 2.
        is_whole = abs(near) < 10**30 and abs(value - near) <= abs(near) * 1e-40
        return Fraction(near) if is_whole else value


def _shown(ctx: Any, value: Any) -> str:
    if isinstance(value, Fraction) and (value * 10**40).denominator == 1:
        division = Context(prec=_MAX_DIGITS + 50).divide
        return f"{division(Decimal(value.numerator), Decimal(value.denominator)):f}"
    short = Decimal(ctx.nstr(ctx.convert(value), 15)).normalize()
    return f"{short:f}" if -7 <= short.adjusted() <= 20 else f"{short:e}".replace("e+", "e")
