"""Known tools of travel: money, trains, tables in restaurants.

Each is a schema with what people ask of it and what it returns; nothing runs. Invariant: training
and held-out templates are different texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.numbers import exact, plain
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.schemas import (
    flag,
    maybe,
    one_of,
    real,
    text,
    tool,
    whole,
)
from cedagent.upcycle.data.skill import Skill

# About what each is worth in euros; a result's rate strays from it a little.
_WORTH = {
    "EUR": 1, "USD": 0.9, "GBP": 1.16, "JPY": 0.0062, "CHF": 1.05, "CAD": 0.65, "AUD": 0.59,
    "SEK": 0.088, "NOK": 0.086, "INR": 0.0107,
}  # fmt: skip


_CURRENCIES = tuple(_WORTH)


def _money() -> Skill:
    def convert(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        middle = _WORTH[arguments["from"]] / _WORTH[arguments["to"]]
        rate = float(f"{middle * draw.rng.uniform(0.95, 1.05):.4g}")
        return {"rate": rate, "result": plain(exact(arguments["amount"]) * exact(rate))}

    def amounts(draw: Draw) -> dict[str, Any]:
        here, there = draw.rng.sample(_CURRENCIES, 2)
        return {"amount": draw.pick((draw.whole(1, 5000), draw.price())), "from": here, "to": there}

    return Skill(
        spec=tool(
            "convert_currency",
            "Convert money at today's rate.",
            {"amount": real(), "from": one_of(*_CURRENCIES), "to": one_of(*_CURRENCIES)},
        ),
        area="money",
        draw=amounts,
        asks=lines("""
            ?how much is {amount} {from} in {to}
            !convert {amount} {from} to {to}
            !change {amount} {from} into {to}
            {amount} {from} in {to}?
        """),
        heldout_asks=lines("""
            ?how many {to} do I get for {amount} {from}
            !express {amount} {from} in {to}
        """),
        result=convert,
        answers=lines("""
            {amount} {from} is {result} {to}.
            that is {result} {to}.
            at a rate of {rate} it is {result} {to}.
        """),
        needed=("result",),
        vary="amount",
        wish="convert currencies",
    )


def _train() -> Skill:
    def trip(draw: Draw) -> dict[str, Any]:
        here, there = draw.cities(2)
        after = f"{draw.whole(6, 20):02}:{draw.pick(('00', '15', '30', '40'))}"
        return {"origin": here, "destination": there, "date": draw.date(), "after": after}

    def train(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        earliest = int(arguments.get("after", "05:00")[:2]) + 1
        departs = f"{draw.whole(earliest, 23):02}:{draw.pick('012345')}{draw.pick('05')}"
        return {"train": f"IC {draw.whole(10, 999)}", "departs": departs}

    return Skill(
        spec=tool(
            "find_train",
            "Next train between two cities.",
            {
                "origin": text(),
                "destination": text(),
                "date": maybe(text()),
                "after": maybe(text(), "Earliest departure."),
            },
        ),
        area="trains",
        draw=trip,
        asks=lines("""
            =the next train from {origin} to {destination}< on {date}>< after {after}>
            ?when does a train go from {origin} to {destination}< after {after}>
            !find a train from {origin} to {destination}< on {date}><, not before {after}>
            I have to get from {origin} to {destination}< on {date}>. Which train is there?
        """),
        heldout_asks=lines("""
            ?how do I get to {destination} from {origin} by rail< on {date}>
            !search a rail connection to {destination} starting in {origin}< past {after}>
        """),
        result=train,
        answers=lines("""
            {train} leaves {origin} at {departs}.
            take {train} at {departs}.
            the next one is {train} at {departs}.
        """),
        needed=("train", "departs"),
        wish="look up trains",
    )


def _table() -> Skill:
    return Skill(
        spec=tool(
            "book_table",
            "Book a table in a restaurant.",
            {
                "restaurant": text(),
                "people": whole(least=1, most=20),
                "date": text(),
                "time": text(),
                "outside": flag(default=False),
            },
        ),
        area="restaurants",
        draw=lambda d: {
            "restaurant": f"{d.noun().title()} {d.pick(('House', 'Garden', 'Kitchen', 'Inn'))}",
            "people": d.whole(1, 20),
            "date": d.date(),
            "time": d.time(),
            "outside": True,
        },
        asks=lines("""
            !book a table for {people} at {restaurant} on {date} at {time}<, outside{outside=true?}>
            !reserve a table at {restaurant}: {people} people, {date}, {time}
            we are {people} and want to eat at {restaurant} on {date} at {time}. Book it.
        """),
        heldout_asks=lines("""
            !get us seats for {people} at {restaurant}, {date}, {time}
            {people} of us will be at {restaurant} on {date} at {time}. Make the booking
        """),
        result=lambda d, a: {"booking": d.code("@@##"), "confirmed": True},
        answers=lines("""
            your table at {restaurant} is booked: {booking}.
            booking {booking}: {restaurant}, {people} people, {date}, {time}.
            done, the booking is {booking}.
        """),
        needed=("booking",),
        wish="book tables",
    )


def travel_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _money(),
        _train(),
        _table(),
    )
