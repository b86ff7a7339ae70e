"""What is asked of the built-in calculator and clock.

Knows what those tools return, letter by letter; a test compares it with the real tools. Invariant:
training and held-out templates are different texts.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

from cedagent.upcycle.data.builtin import CALCULATOR, NOW
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.skill import Skill
from cedagent.upcycle.data.sum_words import SUMS

# Standard time; the offset is what a result shows, not something to learn.
ZONES: Final = (
    "Europe/Rome +01", "Europe/Paris +01", "Asia/Tokyo +09", "America/New_York -05",
    "Europe/Vienna +01", "Europe/London +00", "Asia/Seoul +09", "Australia/Sydney +10",
    "America/Chicago -06", "Asia/Singapore +08", "Europe/Madrid +01", "Europe/Berlin +01",
    "Africa/Cairo +02", "Asia/Dubai +04", "Europe/Oslo +01", "America/Toronto -05",
    "America/Los_Angeles -08", "Europe/Athens +02", "Africa/Nairobi +03", "Europe/Dublin +00",
    "Asia/Bangkok +07", "America/Denver -07", "America/Mexico_City -06", "Asia/Shanghai +08",
    "Europe/Stockholm +01", "Africa/Lagos +01", "America/Bogota -05", "Europe/Zurich +01",
    "Europe/Lisbon +00", "Europe/Prague +01", "Pacific/Auckland +12", "America/Lima -05",
    "Asia/Jakarta +07", "Europe/Helsinki +02", "Asia/Manila +08", "Africa/Accra +00",
)  # fmt: skip


def moment(draw: Draw, zone: str) -> dict[str, Any]:
    """Return a moment as the tool shows it, with its parts for answers."""
    date = datetime.date.fromisoformat(draw.date())
    clock = f"{draw.whole(0, 23):02}:{draw.whole(0, 59):02}"
    return {
        "shown": f"{date:%A} {date.isoformat()} {clock}:{draw.whole(0, 59):02}{zone[-3:]}:00",
        "_time": clock,
        "_date": date.isoformat(),
        "_weekday": f"{date:%A}",
    }


def _zone(draw: Draw) -> dict[str, Any]:
    # Whether a zone may be asked for is settled by the call; held out, a fifth of few is too few.
    zone = draw.word(ZONES) if draw.split == "train" else draw.pick(ZONES)
    name = zone.split()[0]
    return {"timezone": name, "city": name.split("/")[1].replace("_", " "), "zone": zone}


def _now(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
    name = arguments.get("timezone")
    return moment(draw, next((zone for zone in ZONES if zone.split()[0] == name), "UTC +00"))


def _sums() -> list[Skill]:
    return [
        Skill(
            spec=CALCULATOR,
            area="sums",
            draw=draws,
            asks=asks,
            heldout_asks=heldout,
            # `finish` adds the result that was drawn with the formula.
            result=lambda draw, arguments: {},
            shows="{result}",
            answers=answers,
            needed=("result",),
            wish="do sums" if i == 0 else "",
        )
        for i, (draws, asks, heldout, answers) in enumerate(SUMS)
    ]


def _clocks() -> list[Skill]:
    rows = (
        (
            "time",
            lines("""
                ?what time is it< in {timezone?}{city}>
                =the time< in {timezone?}{city}>
                ?how late is it< in {timezone?}{city}>
                ?what's the clock saying< in {timezone}>
                =the current time<, time zone {timezone}>
            """),
            lines("""
                ?what does the clock say now< in {timezone?}{city}>
                =the exact time right now< in {timezone?}{city}>
                =the hour in zone {timezone}
            """),
            lines("""
                it is {_time}< in {timezone?}{city}>.
                the time[ now|] is {_time}.
                it's {_time}[ now|]< in {timezone?}{city}>.
            """),
        ),
        (
            "date",
            lines("""
                =today's date< in {timezone?}{city}>
                ?what date is it today< in {timezone?}{city}>
                ?what day of the month is it
                =the current date< in {timezone}>
            """),
            lines("""
                ?which date do we have
                =the calendar date right now< in {timezone?}{city}>
            """),
            lines("""
                today is {_date}.
                it is {_date}< in {timezone?}{city}>.
                the date is {_date}.
            """),
        ),
        (
            "weekday",
            lines("""
                ?what day of the week is it< in {timezone?}{city}>
                ?which weekday is it today
                =today's weekday
                ?is it the weekend in {timezone?}{city}
            """),
            lines("""
                ?which day of the week is today< in {timezone?}{city}>
                =the name of today's weekday
            """),
            lines("""
                it is {_weekday}< in {timezone?}{city}>.
                today is {_weekday}.
                it's {_weekday}.
            """),
        ),
    )
    return [
        Skill(
            spec=NOW,
            area="clock",
            draw=_zone,
            asks=asks,
            heldout_asks=heldout,
            result=_now,
            shows="{shown}",
            answers=answers,
            needed=(f"_{what}",),
            vary="timezone" if what == "time" else "",
            wish="tell the time" if what == "time" else "",
        )
        for what, asks, heldout, answers in rows
    ]


def builtin_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (*_sums(), *_clocks())
