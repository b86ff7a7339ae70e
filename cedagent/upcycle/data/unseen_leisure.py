"""Tools that training never sees, part five: with names and schemas as other programs have them.

Each is a schema with what people ask of it and what it returns. Invariant: no name, description or
template of these is used for training; a test proves it.
"""

from __future__ import annotations

from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.schemas import (
    flag,
    list_of,
    maybe,
    one_of,
    real,
    record,
    text,
    tool,
    whole,
)
from cedagent.upcycle.data.skill import Skill


def _meal() -> Skill:
    return Skill(
        spec=tool(
            "suggestMeal",
            "Suggest a meal from what is in the kitchen.",
            {
                "ingredients": list_of(text(), "What there is.", minItems=1),
                "maxMinutes": maybe(whole(least=5), "Longest time at the stove."),
                "spicy": flag(default=False),
            },
        ),
        area="recipes",
        draw=lambda d: {
            "ingredients": d.some(("leeks", "rice", "eggs", "beans", "tofu", "corn", "figs"), 2, 4),
            "maxMinutes": d.whole(10, 90),
            "spicy": True,
        },
        heldout_asks=lines("""
            I have {ingredients}. What can I cook< in at most {maxMinutes} minutes>?
            !suggest a< spicy{spicy=true?}> meal with {ingredients}
            ?what could I eat tonight if all I have is {ingredients}
        """),
        result=lambda d, a: {"meal": f"{d.noun()} stew", "minutes": d.whole(10, 90)},
        answers=("you could make {meal}.",),
        needed=("meal",),
        wish="suggest meals",
    )


def _court() -> Skill:
    return Skill(
        spec=tool(
            "reserve-court",
            "Reserve a court in the sports hall.",
            {
                "sport": one_of("tennis", "squash", "badminton"),
                "day": text(),
                "hour": whole("Full hour.", least=7, most=22),
                "indoors": flag(default=True),
            },
        ),
        area="courts",
        draw=lambda d: {
            "sport": d.pick(("tennis", "squash", "badminton")),
            "day": d.date(),
            "hour": d.whole(7, 22),
            "indoors": False,
        },
        heldout_asks=lines("""
            !reserve a {sport} court on {day} at {hour} o'clock<, but outside{indoors=false?}>
            we play {sport} on {day} and start at {hour} o'clock. Get us a court
            ?is there a {sport} court for us at {hour} o'clock on {day}? If so, take it
        """),
        result=lambda d, a: {"court": d.whole(1, 12), "code": d.code("####")},
        answers=("court {court} is yours; the code is {code}.",),
        needed=("court", "code"),
        wish="reserve courts",
    )


def _chart() -> Skill:
    return Skill(
        spec=tool(
            "plot_points",
            "Draw a chart of points.",
            {
                "points": list_of(record({"x": real(), "y": real()}), minItems=2),
                "title": text(),
                "joined": flag("With a line through the points.", default=False),
            },
        ),
        area="charts",
        draw=_points,
        heldout_asks=lines("""
            !plot the points {points?}{_said} under the title "{title}"<, with a line through \
                them{joined=true?}>
            chart "{title}": {points?}{_said}. Please draw it<, joined by a line{joined=true?}>
        """),
        result=lambda d, a: {"file": f"chart-{d.whole(10, 999)}.png"},
        answers=("the chart is in {file}.",),
        needed=("file",),
        wish="draw charts",
    )


def _points(draw: Draw) -> dict[str, Any]:
    points = [{"x": x, "y": draw.real(0, 90)} for x in range(1, draw.whole(2, 4) + 1)]
    said = ", ".join(f"({point['x']}, {point['y']})" for point in points)
    return {"points": points, "_said": said, "title": draw.topic(), "joined": True}


def _paint() -> Skill:
    return Skill(
        spec=tool(
            "mixPaint",
            "Mix paint for a wall.",
            {
                "litres": real(least=0.5, most=40),
                "parts": record(
                    {"red": whole(default=0), "yellow": whole(default=0), "blue": whole(default=0)},
                    "How many of each.",
                ),
            },
        ),
        area="paint",
        draw=_parts,
        heldout_asks=lines("""
            !mix {litres} litres of paint:< {parts.red} parts red,>< {parts.yellow} parts \
                yellow,> {parts.blue} parts blue
            I need {litres} litres of paint, with {parts.blue} parts blue<, {parts.red} parts \
                red><, {parts.yellow} parts yellow>
        """),
        result=lambda d, a: {"shade": d.code("@-##"), "cans": d.whole(2, 20)},
        answers=("the shade is {shade}, in {cans} cans.",),
        needed=("shade",),
        wish="mix paint",
    )


def _parts(draw: Draw) -> dict[str, Any]:
    parts = {"red": draw.whole(2, 9), "yellow": draw.whole(2, 9), "blue": draw.whole(2, 9)}
    if draw.chance(0.4):
        del parts[draw.pick(("red", "yellow"))]
    return {"litres": draw.real(1, 40), "parts": parts}


def _bikes() -> Skill:
    return Skill(
        spec=tool(
            "rentBikes",
            "Rent bicycles at a station.",
            {
                "station": text("Name of the station."),
                "heights_cm": list_of(whole(least=100, most=220), "One rider each.", minItems=1),
                "until": text("Time of day."),
                "basket": flag(default=False),
            },
        ),
        area="bicycles",
        draw=lambda d: {
            "station": f"{d.noun().title()} Gate",
            "heights_cm": [d.whole(140, 200) for _ in range(d.whole(1, 3))],
            "until": d.time(),
            "basket": True,
        },
        heldout_asks=lines("""
            !rent bikes at {station} until {until} for riders of {heights_cm} cm<, with a \
                basket{basket=true?}>
            we stand at {station} and want to ride until {until}; we are {heights_cm} cm tall. \
                Rent us bikes
        """),
        result=lambda d, a: {"lock_code": d.code("####"), "price": d.price()},
        answers=("the lock opens with {lock_code}.",),
        needed=("lock_code",),
        wish="rent bikes",
    )


def _board() -> Skill:
    return Skill(
        spec=tool(
            "flight-board",
            "What the board at the airport says about a flight.",
            {"flight": text(), "on": maybe(text(), "A date; today if left out.")},
        ),
        area="boards",
        draw=lambda d: {"flight": d.code("@@ ###"), "on": d.date()},
        heldout_asks=lines("""
            ?from which gate does flight {flight} leave< on {on}>
            !look at the board for {flight}< on {on}> and tell me the gate
            we pick up somebody from {flight}<, landing on {on}>. What does the board say?
        """),
        result=lambda d, a: {"flight": a["flight"], "gate": d.code("@##"), "at": d.time()},
        answers=("{flight}: gate {gate}, {at}.",),
        needed=("gate",),
        vary="flight",
        wish="read the flight board",
    )


def leisure_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _meal(),
        _court(),
        _chart(),
        _paint(),
        _bikes(),
        _board(),
    )
