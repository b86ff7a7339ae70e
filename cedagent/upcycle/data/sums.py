"""Formulas as people need them, with their results.

Knows the calculator's notation, not its code. Convention: a formula that a message spells out is
copied as it stands, words such as `times` included; what is told in words becomes the shortest
formula in signs, numbers in the order of the message. Results are computed exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.numbers import exact, plain, shown, square_root
from cedagent.upcycle.data.phrasing import joined

_SIGNS = {
    "+": (" + ", "+", " plus "),
    "-": (" - ", "-", " minus "),
    "*": (" * ", "*", " x ", " times ", " multiplied by "),
    "/": (" / ", "/", " divided by "),
}


def _number(draw: Draw) -> int | float:
    return draw.pick((draw.whole(2, 99), draw.whole(2, 9999), draw.real(1, 500, places=2)))


def formula(draw: Draw) -> dict[str, Any]:
    """Return a formula of two or three numbers, spelled as people spell it."""
    a, b, c = (_number(draw) for _ in range(3))
    x, y, z = exact(a), exact(b), exact(c)
    one, two = draw.pick("+-**/"), draw.pick("+-*")
    style = draw.pick((0, 0, 0, 1, 1, -1)) if one != "+" or two != "-" else 0
    first, second = _SIGNS[one][style], _SIGNS[two][style]
    kind = draw.whole(0, 5)
    if kind < 3:
        return {"expression": f"{a}{first}{b}", "result": shown(_done(one, x, y))}
    if kind == 3:
        low, high = ("+", "*") if draw.chance(0.5) else ("-", "*")
        expression = f"({a}{_SIGNS[low][min(style, 1)]}{b}){_SIGNS[high][min(style, 1)]}{c}"
        return {"expression": expression, "result": shown(_done(high, _done(low, x, y), z))}
    if kind == 4:
        value = _done(two, _done(one, x, y), z) if one in "*/" or two != "*" else None
        if value is None:
            value = _done(one, x, _done(two, y, z))
        return {"expression": f"{a}{first}{b}{second}{c}", "result": shown(value)}
    base, power = draw.whole(2, 25), draw.whole(2, 12)
    sign = draw.pick(("^", "^", " ^ ", "**", " to the power of "))
    return {"expression": f"{base}{sign}{power}", "result": str(base**power)}


def _done(sign: str, a: Fraction, b: Fraction) -> Fraction:
    return {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign]


def percent(draw: Draw) -> dict[str, Any]:
    """Return a percentage."""
    share, base = draw.pick((draw.whole(1, 95), draw.real(1, 40))), _number(draw)
    expression = f"{share}{draw.pick(('%', '%', '%', ' percent'))} of {base}"
    return {"expression": expression, "result": shown(exact(share) * exact(base) / 100)}


def items(draw: Draw) -> dict[str, Any]:
    """Return so many things at a price."""
    n, price = draw.whole(2, 40), draw.price()
    things = draw.thing() + "s"
    result = shown(n * exact(price))
    return {
        "expression": f"{n} * {price}", "n": n, "price": price, "things": things, "result": result
    }  # fmt: skip


def two_items(draw: Draw) -> dict[str, Any]:
    """Return two kinds of things at their prices."""
    first, second = items(draw), items(draw)
    total = first["n"] * exact(first["price"]) + second["n"] * exact(second["price"])
    names = {f"{name}2": value for name, value in second.items()}
    expression = f"{first['expression']} + {second['expression']}"
    return {**names, **first, "expression": expression, "result": shown(total)}


def pair(
    sign: str, formula: str, low: int, high: int, low_b: int, high_b: int, *, cents: bool = True
) -> Callable[[Draw], dict[str, Any]]:
    """Return what draws a formula of two numbers; `%` behind b takes percent of a."""

    def draws(draw: Draw) -> dict[str, Any]:
        a: int | float = draw.whole(low, high)
        b = draw.whole(low_b, high_b)
        if sign == "/" and draw.chance(0.6):
            # Most bills can be shared to the cent.
            a = plain(b * exact(draw.real(2, high / b, places=2)))
        elif cents and draw.chance(0.4):
            a = draw.real(low, high, places=2)
        x, y = exact(a), Fraction(b)
        if "%" in formula:
            y = x * y / 100
        result = shown(_done(sign, x, y))
        thing = draw.thing()
        return {
            "expression": formula.format(a=a, b=b), "a": a, "b": b, "result": result,
            "thing": thing,
        }  # fmt: skip

    return draws


def _several(draw: Draw) -> dict[str, Any]:
    numbers = [draw.whole(1, draw.pick((20, 500, 5000))) for _ in range(draw.whole(3, 6))]
    return {"numbers": joined([str(n) for n in numbers]), "_all": numbers}


def average(draw: Draw) -> dict[str, Any]:
    """Return the average of some numbers."""
    drawn = _several(draw)
    numbers = drawn["_all"]
    inside = ", ".join(map(str, numbers))
    result = shown(Fraction(sum(numbers), len(numbers)))
    return drawn | {"expression": f"avg({inside})", "result": result}


def total(draw: Draw) -> dict[str, Any]:
    """Return the sum of some numbers."""
    drawn = _several(draw)
    numbers = drawn["_all"]
    return drawn | {"expression": " + ".join(map(str, numbers)), "result": str(sum(numbers))}


def root(draw: Draw) -> dict[str, Any]:
    """Return a square root."""
    a = draw.pick((draw.whole(2, 60) ** 2, draw.whole(2, 5000)))
    return {"expression": f"sqrt({a})", "a": a, "result": square_root(a)}
