"""Tools that training never sees, part two: plants, animals, boxes, taxis.

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
    part,
    real,
    record,
    text,
    tool,
    whole,
)
from cedagent.upcycle.data.skill import Skill

_PLANTS = ("fern", "cactus", "tomato", "rose", "basil", "orchid", "palm", "ivy", "mint", "tulip")


def _plant() -> Skill:
    return Skill(
        spec=tool(
            "water_plant",
            "Give water to a plant.",
            {
                "plant": text(),
                "litres": real(least=0.1, most=10),
                "fertilizer": flag(default=False),
            },
        ),
        area="plants",
        draw=lambda d: {
            "plant": d.pick(_PLANTS),
            "litres": d.pick((d.whole(1, 9), d.whole(2, 40) / 10, d.whole(5, 95) / 20)),
            "fertilizer": True,
        },
        heldout_asks=lines("""
            !water the {plant} with {litres} litres
            !give the {plant} {litres} litres of water<, with fertilizer{fertilizer=true?}>
            the {plant} looks dry. {litres} litres should do
        """),
        result=lambda d, a: {"watered": True, "soil_moisture": d.whole(20, 95)},
        answers=lines("""
            the {plant} has its water; the soil is at {soil_moisture}.
        """),
        needed=("plant",),
        wish="water plants",
    )


def _taxi() -> Skill:
    return Skill(
        spec=tool(
            "order_taxi",
            "Order a taxi.",
            {
                "pickup": text("Street address."),
                "dropoff": text("Street address."),
                "passengers": whole(least=1, most=8, default=1),
                "wheelchair": flag(default=False),
            },
        ),
        area="taxis",
        draw=lambda d: {
            "pickup": street(d),
            "dropoff": street(d),
            "passengers": d.whole(2, 8),
            "wheelchair": True,
        },
        heldout_asks=lines("""
            !order a taxi from {pickup} to {dropoff}< for {passengers} people>
            I need a cab at {pickup}, going to {dropoff}<, with room for a \
                wheelchair{wheelchair=true?}>
            !have a taxi pick us up at {pickup} and take us to {dropoff}<. There are \
                {passengers} of us>
        """),
        result=lambda d, a: {"car": d.code("@@ ####"), "minutes": d.whole(2, 40)},
        answers=("taxi {car} comes in {minutes} minutes.",),
        needed=("car", "minutes"),
        wish="order taxis",
    )


def street(draw: Draw) -> str:
    """Return a street with a number."""
    kind = draw.pick(("Street", "Lane", "Road", "Square"))
    return f"{draw.whole(1, 180)} {draw.noun().title()} {kind}"


def _feed() -> Skill:
    animals = ("cat", "dog", "rabbit", "parrot", "hamster", "goldfish", "pony", "goat")
    return Skill(
        spec=tool(
            "feed_animal",
            "Put food out for an animal.",
            {
                "animal": text(),
                "portion": record({"grams": whole(least=1), "food": text()}),
                "wait_minutes": maybe(whole(least=1), "At once if null."),
            },
        ),
        area="animals",
        draw=lambda d: {
            "animal": d.pick(animals),
            "portion": {"grams": d.whole(5, 500), "food": d.pick(("seeds", "hay", "tuna", "rice"))},
            "wait_minutes": d.whole(2, 90),
        },
        heldout_asks=lines("""
            !feed the {animal} {portion.grams} grams of {portion.food}
            the {animal} gets {portion.grams} g of {portion.food}<, in {wait_minutes} minutes>
            !put out {portion.grams} grams of {portion.food} for the {animal}< and wait \
                {wait_minutes} minutes first>
        """),
        result=lambda d, a: {"fed": True, "left_in_store": d.whole(100, 9000)},
        answers=("the {animal} is fed; {left_in_store} grams are left.",),
        needed=("animal",),
        wish="feed animals",
    )


def _warehouse() -> Skill:
    return Skill(
        spec=tool(
            "move_boxes",
            "Move boxes between shelves.",
            {"boxes": list_of(part("Box"), minItems=1), "to_shelf": text()},
            parts={"Box": record({"label": text(), "fragile": flag(default=False)})},
        ),
        area="boxes",
        draw=_boxes,
        heldout_asks=lines("""
            !move {boxes?}{_labels} to shelf {to_shelf}
            shelf {to_shelf} is free. Bring {boxes?}{_labels} there
        """),
        result=lambda d, a: {"moved": len(a["boxes"]), "shelf": a["to_shelf"]},
        answers=("{moved} boxes are on shelf {shelf}.",),
        needed=("shelf",),
        wish="move boxes",
    )


def _boxes(draw: Draw) -> dict[str, Any]:
    labels = [draw.code("@##") for _ in range(draw.whole(1, 3))]
    return {
        "boxes": [{"label": label} for label in labels],
        "_labels": "box " + " and box ".join(labels),
        "to_shelf": draw.code("#@"),
    }


def yard_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _plant(),
        _taxi(),
        _feed(),
        _warehouse(),
    )
