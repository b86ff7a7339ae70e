"""Known tools about places: distances, coordinates, weather at coordinates.

Each is a schema with what people ask of it and what it returns; nothing runs. Invariant: training
and held-out templates are different texts.
"""

from __future__ import annotations

from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.schemas import (
    one_of,
    real,
    text,
    tool,
)
from cedagent.upcycle.data.skill import Skill
from cedagent.upcycle.data.tools_days import weather


def _distance() -> Skill:
    def trip(draw: Draw) -> dict[str, Any]:
        here, there = place(draw), place(draw)
        return {"origin": here, "destination": there, "mode": draw.pick(("bike", "foot", "train"))}

    return Skill(
        spec=tool(
            "route_distance",
            "Length of the way between two places in kilometres.",
            {
                "origin": text(),
                "destination": text(),
                "mode": one_of("car", "bike", "foot", "train", default="car"),
            },
        ),
        area="routes",
        draw=trip,
        asks=lines("""
            ?how far is it from {origin} to {destination}< by {mode}>
            =the distance between {origin} and {destination}< by {mode}>
            ?how many kilometres are there from {origin} to {destination}
        """),
        heldout_asks=lines("""
            ?how long is the way< by {mode}> from {origin} to {destination}
            !measure the route {origin} - {destination}
        """),
        result=lambda d, a: {"km": d.whole(20, 4000), "hours": d.real(1, 40)},
        answers=lines("""
            it is {km} km from {origin} to {destination}.
            the distance is {km} km, about {hours} hours.
            {km} km.
        """),
        needed=("km",),
        wish="measure distances",
    )


def place(draw: Draw) -> str:
    """Return the name of a place that is on no map."""
    return f"{draw.noun().title()} {draw.pick(('Hill', 'Bay', 'Falls', 'Point', 'Creek', 'Mill'))}"


def _places() -> list[Skill]:
    def coordinates(draw: Draw) -> dict[str, Any]:
        return {
            "lat": round(draw.rng.uniform(-80, 80), 2),
            "lon": round(draw.rng.uniform(-179, 179), 2),
        }

    return [
        Skill(
            spec=tool("find_place", "Coordinates of a place.", {"name": text()}),
            area="places",
            draw=lambda d: {"name": place(d)},
            asks=lines("""
                =the coordinates of {name}
                ?where exactly is {name}, as latitude and longitude
                !geocode {name}
            """),
            heldout_asks=lines("""
                ?at which latitude and longitude does {name} lie
            """),
            result=lambda d, a: coordinates(d),
            answers=lines("""
                {name} is at {lat}, {lon}.
                the coordinates of {name} are {lat}, {lon}.
            """),
            needed=("lat", "lon"),
            vary="name",
            wish="find coordinates",
        ),
        Skill(
            spec=tool(
                "weather_at",
                "Weather at coordinates.",
                {"lat": real(least=-90, most=90), "lon": real(least=-180, most=180)},
            ),
            area="weather",
            draw=coordinates,
            asks=lines("""
                =the weather at latitude {lat}, longitude {lon}
                ?how is the weather at {lat}, {lon}
            """),
            heldout_asks=lines("""
                ?what do the skies look like at {lat}, {lon}
            """),
            result=weather,
            answers=lines("""
                it is {temp} degrees and {sky} there.
                at {lat}, {lon} it is {sky}, {temp} degrees.
            """),
            needed=("temp",),
            wish="look up the weather",
        ),
    ]


def place_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _distance(),
        *_places(),
    )
