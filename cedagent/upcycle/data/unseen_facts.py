"""Tools that training never sees, part three: things to know.

Each is a schema with what people ask of it and what it returns. Invariant: no name, description or
template of these is used for training; a test proves it.
"""

from __future__ import annotations

from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.numbers import exact, plain
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.schemas import (
    flag,
    real,
    text,
    tool,
    whole,
)
from cedagent.upcycle.data.skill import Skill

_DISHES = ("lasagne", "goulash", "risotto", "pancakes", "lentil soup", "apple pie", "ramen", "pho")


_ELEMENTS = {
    "He": "helium", "Li": "lithium", "Ne": "neon", "Na": "sodium", "Mg": "magnesium",
    "Al": "aluminium", "Si": "silicon", "Cl": "chlorine", "Ar": "argon", "Ca": "calcium",
    "Ti": "titanium", "Fe": "iron", "Ni": "nickel", "Cu": "copper", "Zn": "zinc", "Br": "bromine",
    "Kr": "krypton", "Ag": "silver", "Sn": "tin", "Xe": "xenon", "Ba": "barium", "Pt": "platinum",
    "Au": "gold", "Hg": "mercury", "Pb": "lead", "Rn": "radon",
}  # fmt: skip


def _recipe() -> Skill:
    return Skill(
        spec=tool(
            "scale_recipe",
            "Amount of flour, in grams, for so many servings of a dish.",
            {"dish": text(), "servings": whole(least=1), "vegan": flag(default=False)},
        ),
        area="recipes",
        draw=lambda d: {"dish": d.pick(_DISHES), "servings": d.whole(2, 60), "vegan": True},
        heldout_asks=lines("""
            ?how much flour does {dish} for {servings} take
            !scale the {dish} recipe to {servings} servings<, vegan{vegan=true?}>
            I cook {dish} for {servings} people. How much flour do I need?
        """),
        result=lambda d, a: {"flour": a["servings"] * d.whole(40, 120)},
        answers=("you need {flour} grams of flour.",),
        needed=("flour",),
        wish="scale recipes",
    )


def _domain() -> Skill:
    return Skill(
        spec=tool("check_domain", "Whether an internet domain is free.", {"domain": text()}),
        area="domains",
        draw=lambda d: {"domain": f"{d.noun()}-{d.noun()}.{d.pick(('com', 'org', 'dev', 'eu'))}"},
        heldout_asks=lines("""
            ?is {domain} still free
            ?can I register {domain}
            !check whether the domain {domain} is taken
        """),
        result=lambda d, a: {"domain": a["domain"], "status": d.pick(("free", "taken"))},
        answers=("{domain} is {status}.",),
        needed=("status",),
        vary="domain",
        wish="check domains",
    )


def _element() -> Skill:
    return Skill(
        spec=tool("lookup_element", "Facts about a chemical element.", {"symbol": text()}),
        area="chemistry",
        draw=lambda d: {"symbol": d.pick(tuple(_ELEMENTS))},
        heldout_asks=lines("""
            !look up the element {symbol}
            ?what are the facts about the element with the symbol {symbol}
            =data on the chemical element {symbol}
        """),
        result=lambda d, a: {"symbol": a["symbol"], "name": _ELEMENTS[a["symbol"]]},
        answers=("{symbol} is {name}.",),
        needed=("name",),
        vary="symbol",
        wish="look up elements",
    )


def _tide() -> Skill:
    return Skill(
        spec=tool(
            "tide_times",
            "High water at a harbour on a day.",
            {"harbour": text(), "on": text("A date."), "metres": flag(default=False)},
        ),
        area="tides",
        draw=lambda d: {"harbour": f"{d.noun().title()} Haven", "on": d.date(), "metres": True},
        heldout_asks=lines("""
            ?when is high water at {harbour} on {on}
            =the tide at {harbour} for {on}<, with the height in metres{metres=true?}>
            we sail from {harbour} on {on}. When is high tide?
        """),
        result=lambda d, a: {"high_water": d.time()},
        answers=("high water is at {high_water}.",),
        needed=("high_water",),
        wish="look up tides",
    )


def _bmi() -> Skill:
    def bmi(draw: Draw, arguments: Any) -> dict[str, Any]:
        value = exact(arguments["weight_kg"]) / exact(arguments["height_m"]) ** 2
        return {"shown": plain(value, places=1)}

    return Skill(
        spec=tool(
            "body_mass_index",
            "Body mass index of a person.",
            {"weight_kg": real(least=1), "height_m": real(least=0.3, most=2.5)},
        ),
        area="health",
        draw=lambda d: {"weight_kg": d.whole(40, 140), "height_m": d.whole(140, 210) / 100},
        heldout_asks=lines("""
            I weigh {weight_kg} kg and am {height_m} m tall. What is my body mass index?
            =the BMI for {weight_kg} kg at a height of {height_m} m
        """),
        result=bmi,
        shows="{shown}",
        answers=("the body mass index is {shown}.",),
        needed=("shown",),
        wish="work out a body mass index",
    )


def fact_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _recipe(),
        _domain(),
        _element(),
        _tide(),
        _bmi(),
    )
