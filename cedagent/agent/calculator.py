"""Reads formulas as people write them and gives their exact value; never evaluates code.

What it decides: `%` before a number, a name or a parenthesis is the remainder, elsewhere percent;
`a + p%` and `a - p%` take p percent of a, as pocket calculators do, unless a is itself a percentage
(10% + 5% is 0.15); -2^2 is -4, 2^3^2 is 2^9; log is base 10, ln base e; a comma groups thousands,
but separates the arguments of functions that take several.
"""

from __future__ import annotations

import decimal
import re
from dataclasses import dataclass
from fractions import Fraction

from cedagent.agent import arithmetic as ar
from cedagent.agent.arithmetic import ArithmeticProblem, Number
from cedagent.agent.functions import FUNCTIONS

MAX_CHARS = 500
_MAX_DEPTH = 60
_HUNDRED = Fraction(100)
_DEGREE = 180

_SPELLINGS = (
    (r"\b(?:divided by|over)\b|[\u00f7\u2215]", "/"),
    (r"\b(?:multiplied by|times)\b|[\u00d7\u00b7\u22c5\u2219]", "*"),
    (r"(?<=[\d)\s])x(?=[\s\d(])", "*"),
    (r"\bplus\b", "+"),
    (r"\bminus\b|[\u2212\u2013]", "-"),
    (r"\bto the power of\b|\*\*", "^"),
    (r"\bsquared\b|²", "^2"),
    (r"\bcubed\b|³", "^3"),
    (r"\bpercent\b", "%"),
    (r"\bdegrees?\b|\bdeg\b", "°"),
    (r"[$€£]", ""),
    (r"[\s=?]+$", ""),
)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?")
_PLAIN = re.compile(r"(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[A-Za-zπ]+\d*")
_SIGN = re.compile(r"//|[-+*/^%!°(),√]")


def evaluate(formula: str) -> str:
    """Return the value of a formula in decimal; raises ArithmeticProblem with one line."""
    if len(formula) > MAX_CHARS:
        raise ArithmeticProblem(f"expected at most {MAX_CHARS} characters, got {len(formula)}")
    text = formula
    for pattern, sign in _SPELLINGS:
        text = re.sub(pattern, sign, text)
    if not text.strip():
        raise ArithmeticProblem("expected a formula such as 17% of 2450, got nothing")
    with decimal.localcontext(ar.CONTEXT):
        try:
            return ar.shown(_Reader(text).read())
        except (ArithmeticError, ValueError) as error:
            raise ArithmeticProblem(f"no value: {type(error).__name__}") from None


@dataclass(slots=True)
class _Reader:
    """Reads a formula from left to right, one precedence level per method."""

    text: str
    at: int = 0
    depth: int = 0
    commas_separate: bool = False

    def read(self) -> Number:
        value = self._sum()
        if self._peek():
            raise self._unexpected()
        return value

    def _sum(self) -> Number:
        value, is_percent = self._product()
        while (sign := self._peek()) in ("+", "-"):
            self._take(sign)
            other, other_is_percent = self._product()
            if other_is_percent and not is_percent:
                other = ar.multiply(value, other)
            is_percent = is_percent and other_is_percent
            value = (ar.add if sign == "+" else ar.subtract)(value, other)
        return value

    def _product(self) -> tuple[Number, bool]:
        value, is_percent = self._signed()
        while sign := self._product_sign():
            other, _ = self._signed()
            is_percent = False
            match sign:
                case "/":
                    value = ar.divide(value, other)
                case "//":
                    value = ar.floor_divide(value, other)
                case "%":
                    value = ar.modulo(value, other)
                case _:
                    value = ar.multiply(value, other)
        return value, is_percent

    def _product_sign(self) -> str:
        """Take and return the sign that goes on with a product, `*` where none is written."""
        sign = self._peek()
        if sign in ("*", "/", "//", "%"):
            return self._take(sign)
        if sign in ("of", "mod"):
            self._take(sign)
            return "*" if sign == "of" else "%"
        # 2pi, 2(3 + 4), 3 sqrt(2); but two numbers side by side are a mistake.
        return "*" if sign == "(" or sign == "√" or (sign and sign[0].isalpha()) else ""

    def _signed(self) -> tuple[Number, bool]:
        sign = self._peek()
        if sign not in ("+", "-"):
            return self._power()
        self._take(sign)
        self._deeper()
        value, is_percent = self._signed()
        self.depth -= 1
        return (-value if sign == "-" else value), is_percent

    def _power(self) -> tuple[Number, bool]:
        value, is_percent = self._postfix()
        if self._peek() != "^":
            return value, is_percent
        self._take("^")
        self._deeper()
        exponent, _ = self._signed()
        self.depth -= 1
        return ar.power(value, exponent), False

    def _postfix(self) -> tuple[Number, bool]:
        value, is_percent = self._atom(), False
        while True:
            sign = self._peek()
            if sign == "!":
                self._take(sign)
                value = ar.factorial(value)
            elif sign == "°":
                self._take(sign)
                turn = ar.constant("pi")
                assert turn is not None
                value = ar.divide(ar.multiply(value, turn), Fraction(_DEGREE))
            elif sign == "%" and not self._is_operand_after_percent():
                self._take(sign)
                value, is_percent = ar.divide(value, _HUNDRED), True
            else:
                return value, is_percent

    def _is_operand_after_percent(self) -> bool:
        start = self.at
        self._take("%")
        sign = self._peek()
        self.at = start
        if sign in ("of", "mod"):
            return False
        return bool(sign) and (sign[0].isalnum() or sign[0] in ".(√π")

    def _atom(self) -> Number:
        sign = self._peek()
        if sign and (sign[0].isdigit() or sign[0] == "."):
            return self._number(self._take(sign))
        if sign == "(":
            return self._inside(commas_separate=False)[0]
        name = sign.lower()
        if name in FUNCTIONS:
            self._take(sign)
            return self._call(name)
        constant = ar.constant(name)
        if constant is not None:
            self._take(sign)
            return constant
        if sign and sign[0].isalpha() and sign not in ("of", "mod"):
            raise ArithmeticProblem(
                f"unknown name {sign!r}; known: pi, e, {', '.join(sorted(FUNCTIONS))}"
            )
        raise self._unexpected()

    def _call(self, name: str) -> Number:
        least, most, function = FUNCTIONS[name]
        if self._peek() == "(":
            arguments = self._inside(commas_separate=most > 1)
        else:
            arguments = [self._power()[0]]
        if not least <= len(arguments) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise ArithmeticProblem(f"{name}: expected {wanted} arguments, got {len(arguments)}")
        return ar.checked(function(*arguments))

    def _inside(self, *, commas_separate: bool) -> list[Number]:
        self._take("(")
        self._deeper()
        outer, self.commas_separate = self.commas_separate, commas_separate
        values = [self._sum()]
        while commas_separate and self._peek() == ",":
            self._take(",")
            values.append(self._sum())
        # A missing parenthesis at the very end is forgiven.
        if self._peek():
            if self._peek() != ")":
                raise self._unexpected()
            self._take(")")
        self.commas_separate = outer
        self.depth -= 1
        return values

    def _number(self, text: str) -> Number:
        mantissa, _, exponent = text.replace(",", "").replace("_", "").lower().partition("e")
        if exponent and abs(int(exponent)) > ar.MAX_DIGITS:
            raise ArithmeticProblem(f"the result has more than {ar.MAX_DIGITS:,} digits")
        return ar.checked(Fraction(mantissa) * Fraction(10) ** int(exponent or 0))

    def _peek(self) -> str:
        """Return the next number, word or sign without taking it; empty at the end."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        patterns = (_PLAIN, _WORD, _SIGN)
        if not self.commas_separate:
            grouped = _GROUPED.match(self.text, self.at)
            if grouped:
                return grouped[0]
        for pattern in patterns:
            found = pattern.match(self.text, self.at)
            if found:
                return found[0]
        return self.text[self.at : self.at + 1]

    def _take(self, sign: str) -> str:
        self.at += len(sign)
        return sign

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ArithmeticProblem(f"expected at most {_MAX_DEPTH} levels of parentheses")

    def _unexpected(self) -> ArithmeticProblem:
        sign = self._peek()
        if not sign:
            return ArithmeticProblem("the formula ends too early; a number is missing")
        hint = "; write 1.5 or 1,500" if sign == "," else ""
        return ArithmeticProblem(f"unexpected {sign!r} at character {self.at + 1}{hint}")
