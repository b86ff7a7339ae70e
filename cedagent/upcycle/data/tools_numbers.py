"""Known tools over numbers; their results are computed, never made up.

Each is a schema with what people ask of it and what it returns. Invariant: training and held-out
templates are different texts.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.numbers import exact, plain
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.schemas import list_of, one_of, real, text, tool, whole
from cedagent.upcycle.data.skill import Skill

# Unit -> (what it measures, how many base units it is).
UNITS = {
    "km": ("length", "1000"), "m": ("length", "1"), "cm": ("length", "0.01"),
    "miles": ("length", "1609.344"), "feet": ("length", "0.3048"), "inches": ("length", "0.0254"),
    "kg": ("mass", "1000"), "g": ("mass", "1"), "pounds": ("mass", "453.59237"),
    "ounces": ("mass", "28.349523125"), "litres": ("volume", "1"), "ml": ("volume", "0.001"),
    "gallons": ("volume", "3.785411784"), "hours": ("time", "3600"), "minutes": ("time", "60"),
    "seconds": ("time", "1"), "days": ("time", "86400"),
}  # fmt: skip
_MEASURES = "{measure:median=median,range=range,largest=largest number,smallest=smallest number}"


def converted(value: int | float, from_unit: str, to_unit: str) -> int | float:
    """Return a measure in another unit, to four decimals."""
    factor = exact(UNITS[from_unit][1]) / exact(UNITS[to_unit][1])
    return plain(exact(value) * factor, places=4)


def _units() -> Skill:
    def measure(draw: Draw) -> dict[str, Any]:
        here = draw.pick(tuple(UNITS))
        same = [unit for unit in UNITS if UNITS[unit][0] == UNITS[here][0] and unit != here]
        value = draw.pick((draw.whole(2, 500), draw.real(1, 90, places=2)))
        return {"value": value, "from_unit": here, "to_unit": draw.pick(same)}

    return Skill(
        spec=tool(
            "convert_units",
            "Convert a measure into another unit.",
            {"value": real(), "from_unit": text("Such as km."), "to_unit": text("Such as miles.")},
        ),
        area="units",
        draw=measure,
        asks=lines("""
            !convert {value} {from_unit} to {to_unit}
            ?how many {to_unit} are {value} {from_unit}
            ?what is {value} {from_unit} in {to_unit}
            {value} {from_unit} in {to_unit}?
        """),
        heldout_asks=lines("""
            !express {value} {from_unit} as {to_unit}
            ?how much is {value} {from_unit} when you measure in {to_unit}
        """),
        result=lambda d, a: {"shown": converted(a["value"], a["from_unit"], a["to_unit"])},
        shows="{shown}",
        answers=lines("""
            {value} {from_unit} [is|are] {shown} {to_unit}.
            that is {shown} {to_unit}.
            it makes {shown} {to_unit}.
        """),
        needed=("shown",),
        vary="value",
        wish="convert units",
    )


def _statistics() -> Skill:
    def compute(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        numbers = [exact(n) for n in arguments["numbers"]]
        measures: dict[str, Fraction] = {
            "median": statistics.median(numbers),
            "range": max(numbers) - min(numbers),
            "largest": max(numbers),
            "smallest": min(numbers),
        }
        return {"shown": plain(measures[arguments["measure"]], places=4)}

    def numbers(draw: Draw) -> dict[str, Any]:
        drawn = [draw.pick((draw.whole(1, 400), draw.real(1, 99))) for _ in range(draw.whole(3, 7))]
        return {
            "numbers": drawn, "measure": draw.pick(("median", "range", "largest", "smallest"))
        }  # fmt: skip

    return Skill(
        spec=tool(
            "describe_numbers",
            "A measure of some numbers.",
            {
                "numbers": list_of(real(), minItems=1),
                "measure": one_of("median", "range", "largest", "smallest"),
            },
        ),
        area="statistics",
        draw=numbers,
        asks=lines("""
            =the {measure} of {numbers}
            !find the {measure} of these numbers: {numbers}
            {numbers}: what is the {measure}?
        """),
        heldout_asks=lines(f"""
            !take {{numbers}} and give the {_MEASURES}
            ?what comes out if you look for the {_MEASURES} of {{numbers}}
        """),
        result=compute,
        shows="{shown}",
        answers=lines("""
            the {measure} is {shown}.
            the {measure} of {numbers} is {shown}.
            it is {shown}.
        """),
        needed=("shown",),
        wish="measure numbers",
    )


def _random() -> Skill:
    def bounds(draw: Draw) -> dict[str, Any]:
        low = draw.whole(1, 100)
        return {"low": low, "high": low + draw.whole(5, 900)}

    return Skill(
        spec=tool(
            "random_number", "Draw a whole number at random.", {"low": whole(), "high": whole()}
        ),
        area="chance",
        draw=bounds,
        asks=lines("""
            !draw a random number between {low} and {high}
            !pick a number from {low} to {high}
            =a random number from {low} to {high}
        """),
        heldout_asks=lines("""
            !surprise me with some number, at least {low} and at most {high}
        """),
        result=lambda d, a: {"shown": d.rng.randint(a["low"], a["high"])},
        shows="{shown}",
        answers=lines("""
            the number is {shown}.
            I drew {shown}.
            it is {shown}.
        """),
        needed=("shown",),
        wish="draw random numbers",
    )


def number_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _units(),
        _statistics(),
        _random(),
    )
