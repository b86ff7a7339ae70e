"""Known tools of every day: weather and sums with dates.

Each is a schema with what people ask of it and what it returns; nothing runs. Invariant: training
and held-out templates are different texts.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.schemas import (
    day,
    one_of,
    text,
    tool,
    whole,
)
from cedagent.upcycle.data.skill import Skill

SKIES = ("clear", "cloudy", "rainy", "sunny", "windy", "foggy", "stormy", "partly cloudy")


def weather(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a weather report."""
    is_hot = arguments.get("unit") == "fahrenheit"
    return {"temp": draw.whole(14, 99) if is_hot else draw.whole(-12, 38), "sky": draw.pick(SKIES)}


def _weather() -> Skill:
    return Skill(
        spec=tool(
            "get_weather",
            "Weather of a city.",
            {
                "city": text("Name of the city."),
                "day": one_of("today", "tomorrow", default="today"),
                "unit": one_of("celsius", "fahrenheit", default="celsius"),
            },
        ),
        area="weather",
        draw=lambda d: {
            "city": d.city(),
            "day": d.pick(("today", "tomorrow")),
            "unit": d.pick(("celsius", "fahrenheit")),
        },
        asks=lines("""
            =the weather in {city}< {day}>
            ?how warm is it in {city}< {day}>< in {unit}>
            =the temperature in {city}<, in {unit}>
            ?will it rain in {city} {day}
            !check the weather in {city}< for {day}>
            !get the forecast for {city}< for {day}>
            weather {city}
            I'm going to {city}< {day}>. What's the weather like?
        """),
        heldout_asks=lines("""
            ?do I need a coat in {city}< {day}>
            =the outlook for {city}< {day}>< (degrees {unit})>
            !see what the weather does in {city}< {day}>
        """),
        result=weather,
        answers=lines("""
            it is {temp} degrees and {sky} in {city}.
            {city}: {temp} degrees, {sky}.
            in {city} it is {sky} with {temp} degrees.
            the weather in {city} is {sky}, {temp} degrees.
        """),
        needed=("temp",),
        vary="city",
        joins=True,
        wish="look up the weather",
    )


def _between() -> Skill:
    def count(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        start, end = (datetime.date.fromisoformat(arguments[name]) for name in ("start", "end"))
        return {"shown": (end - start).days}

    def dates(draw: Draw) -> dict[str, Any]:
        start, end = sorted((draw.date(), draw.date()))
        return {"start": start, "end": end}

    return Skill(
        spec=tool(
            "days_between",
            "Number of days from one date to another.",
            {"start": day("First date, such as 2024-02-29."), "end": day("Last date.")},
        ),
        area="dates",
        draw=dates,
        asks=lines("""
            =the number of days between {start} and {end}
            ?how many days are there from {start} to {end}
            !count the days from {start} to {end}
            ?how long is it from {start} until {end}, in days
        """),
        heldout_asks=lines("""
            ?how many nights lie between {start} and {end}
            !tell the number of days separating {start} and {end}
        """),
        result=count,
        shows="{shown}",
        answers=lines("""
            there are {shown} days between {start} and {end}.
            it is {shown} days.
            from {start} to {end} it is {shown} days.
        """),
        needed=("shown",),
        wish="count days",
    )


def _add_days() -> Skill:
    def add(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        start = datetime.date.fromisoformat(arguments["date"])
        end = start + datetime.timedelta(arguments["days"])
        return {"date": end.isoformat(), "weekday": f"{end:%A}", "_start": arguments["date"]}

    return Skill(
        spec=tool(
            "add_days",
            "The date so many days after a date.",
            {"date": day(), "days": whole("How many; negative goes back.", least=-9999, most=9999)},
        ),
        area="dates",
        draw=lambda d: {"date": d.date(), "days": d.whole(2, 400)},
        asks=lines("""
            =the date {days} days after {date}
            ?which date is {days} days after {date}
            !add {days} days to {date}
            ?what day comes {days} days after {date}
        """),
        heldout_asks=lines("""
            ?where do I land {days} days on from {date}
            !go {days} days forward from {date}
        """),
        result=add,
        answers=lines("""
            that is {date}, a {weekday}.
            {days} days after {_start} is {date}.
            it is {weekday}, {date}.
        """),
        needed=("date",),
        wish="count with dates",
    )


def day_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _weather(),
        _between(),
        _add_days(),
    )
