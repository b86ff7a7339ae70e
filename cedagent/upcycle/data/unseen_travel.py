"""Tools that training never sees, part four: hotels, money, parking, seats, polls.

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


def _hotel() -> Skill:
    return Skill(
        spec=tool(
            "find_hotel",
            "Search free hotel rooms.",
            {
                "town": text(),
                "check_in": text(),
                "nights": whole(least=1),
                "guests": record({"adults": whole(least=1), "children": whole(default=0)}),
                "breakfast": flag(default=False),
            },
        ),
        area="hotels",
        draw=_stay,
        heldout_asks=lines("""
            !find a hotel in {town} from {check_in}, {nights} nights, for {guests.adults} \
                adults< and {guests.children} children><, with breakfast{breakfast=true?}>
            {guests.adults} adults< and {guests.children} children> need a room in {town} for \
                {nights} nights from {check_in} on
        """),
        result=lambda d, a: {"hotel": f"Hotel {d.noun().title()}", "price": d.price()},
        answers=("{hotel} has a room for {price}.",),
        needed=("hotel", "price"),
        wish="search hotels",
    )  # fmt: skip


def _stay(draw: Draw) -> dict[str, Any]:
    guests = {"adults": draw.whole(1, 5)}
    if draw.chance(0.5):
        guests["children"] = draw.whole(2, 4)
    return {
        "town": draw.city(),
        "check_in": draw.date(),
        "nights": draw.whole(2, 21),
        "guests": guests,
        "breakfast": True,
    }


def _transfer() -> Skill:
    return Skill(
        spec=tool(
            "transfer_money",
            "Move money between two accounts.",
            {
                "from_account": text(),
                "to_account": text(),
                "amount": real(least=0.01),
                "reference": maybe(text()),
            },
        ),
        area="accounts",
        draw=lambda d: {
            "from_account": d.code("#####"),
            "to_account": d.code("#####"),
            "amount": d.price(),
            "reference": d.pick((d.code("INV-####"), d.thing())),
        },
        heldout_asks=lines("""
            !transfer {amount} from account {from_account} to account {to_account}<, reference \
                "{reference}">
            !move {amount} over to {to_account}; it comes from {from_account}
            account {to_account} should get {amount} from {from_account}<. Put "{reference}" as \
                the reference>
        """),
        result=lambda d, a: {"transfer": d.code("T####"), "balance": d.price()},
        answers=("transfer {transfer} is done.",),
        needed=("transfer",),
        wish="transfer money",
    )  # fmt: skip


def _parking() -> Skill:
    return Skill(
        spec=tool(
            "pay_parking",
            "Pay for a parked car.",
            {"plate": text(), "zone": whole(), "minutes": whole(least=10)},
        ),
        area="parking",
        draw=lambda d: {
            "plate": d.code("@@ ###@"),
            "zone": d.whole(1, 60),
            "minutes": d.whole(10, 600),
        },
        heldout_asks=lines("""
            !pay {minutes} minutes of parking for {plate} in zone {zone}
            my car {plate} stands in zone {zone}. Pay for {minutes} minutes
            zone {zone}, plate {plate}, {minutes} minutes of parking, please
        """),
        result=lambda d, a: {"paid": d.price(), "until": d.time()},
        answers=("parking is paid until {until}.",),
        needed=("until",),
        wish="pay for parking",
    )


def _seat() -> Skill:
    return Skill(
        spec=tool(
            "change_seat",
            "Change a passenger's seat on a flight.",
            {
                "flight": text(),
                "passenger": text(),
                "seat": text(),
                "reason": maybe(one_of("medical", "family", "comfort")),
            },
        ),
        area="flights",
        draw=lambda d: {
            "flight": d.code("@@###"),
            "passenger": d.person(),
            "seat": d.code("#@"),
            "reason": d.pick(("medical", "family", "comfort")),
        },
        heldout_asks=lines("""
            !put {passenger} on seat {seat} of flight {flight}< for a {reason} reason>
            {passenger} wants seat {seat} on {flight}<, the reason is {reason}>
            flight {flight}: move {passenger} to {seat}
        """),
        result=lambda d, a: {"seat": a["seat"], "gate": d.code("@#")},
        answers=("{passenger} has seat {seat}; the gate is {gate}.",),
        needed=("seat",),
        wish="change seats",
    )


def _poll() -> Skill:
    return Skill(
        spec=tool(
            "start_poll",
            "Start a poll among the team.",
            {
                "question": text(),
                "options": list_of(text(), minItems=2),
                "anonymous": flag(default=True),
                "closes": maybe(text(), "Time of day."),
            },
        ),
        area="polls",
        draw=lambda d: {
            "question": f"What do we do about {d.topic()}?",
            "options": list({d.noun(): None for _ in range(5)})[: d.whole(2, 3)],
            "anonymous": False,
            "closes": d.time(),
        },
        heldout_asks=lines("""
            !start a poll "{question}" with the options {options}<, closing at {closes}>
            !ask the team "{question}" and let them choose among {options}<. It should not be \
                anonymous{anonymous=false?}>
        """),
        result=lambda d, a: {"poll": d.code("P-###")},
        answers=("poll {poll} has started.",),
        needed=("poll",),
        wish="start polls",
    )  # fmt: skip


def hotel_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _hotel(),
        _transfer(),
        _parking(),
        _seat(),
        _poll(),
    )
