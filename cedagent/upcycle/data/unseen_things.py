"""Tools that training never sees, part one: things and machines.

Each is a schema with what people ask of it and what it returns. Invariant: no name, description or
template of these is used for training; a test proves it.
"""

from __future__ import annotations

from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.schemas import (
    flag,
    one_of,
    text,
    tool,
    whole,
)
from cedagent.upcycle.data.skill import Skill


def _dice() -> Skill:
    def roll(draw: Draw, arguments: Any) -> dict[str, Any]:
        rolls = [draw.rng.randint(1, arguments["sides"]) for _ in range(arguments.get("times", 1))]
        return {"rolls": rolls, "total": sum(rolls)}

    return Skill(
        spec=tool(
            "roll_dice",
            "Roll dice and add them up.",
            {"sides": whole(least=2, most=100), "times": whole(least=1, most=20, default=1)},
        ),
        area="dice",
        draw=lambda d: {"sides": d.whole(2, 100), "times": d.whole(2, 9)},
        heldout_asks=lines("""
            !roll a die with {sides} sides< {times} times>
            !throw a {sides}-sided die<, {times} times>
            ?what do I get when I roll a {sides}-sided die< {times} times>
        """),
        result=roll,
        answers=("the total is {total}.",),
        needed=("total",),
        wish="roll dice",
    )


def _door() -> Skill:
    return Skill(
        spec=tool(
            "open_gate",
            "Open a gate of the yard for a while.",
            {
                "gate": one_of("north", "south", "east", "west"),
                "seconds": whole(least=5, most=300, default=30),
                "pin": text("The four-digit code."),
            },
        ),
        area="gates",
        draw=lambda d: {
            "gate": d.pick(("north", "south", "east", "west")),
            "seconds": d.whole(5, 300),
            "pin": d.code("####"),
        },
        heldout_asks=lines("""
            !open the {gate} gate< for {seconds} seconds>, the PIN is {pin}
            code {pin}, {gate} gate. Open it<, {seconds} seconds will do>
            !let the truck in through the {gate} gate with PIN {pin}
        """),
        result=lambda d, a: {"gate": a["gate"], "opens_at": d.time()},
        answers=("the {gate} gate opens at {opens_at}.",),
        needed=("gate",),
        wish="open gates",
    )


def _printer() -> Skill:
    return Skill(
        spec=tool(
            "print_document",
            "Print a document.",
            {
                "document": text("Name of the document."),
                "copies": whole(least=1, default=1),
                "duplex": flag("On both sides.", default=False),
                "paper": one_of("A4", "A3", "letter", default="A4"),
            },
        ),
        area="printers",
        draw=lambda d: {
            "document": f"{d.stem()}-{d.noun()}",
            "copies": d.whole(2, 30),
            "duplex": True,
            "paper": d.pick(("A3", "letter")),
        },
        heldout_asks=lines("""
            !print {document}< on {paper} paper><, {copies} copies>
            I need {document} on paper<, on both sides{duplex=true?}>
            !send {document} to the printer<, {copies} times>< and on {paper} paper>
        """),
        result=lambda d, a: {"job": d.whole(100, 999), "pages": d.whole(1, 60)},
        answers=("print job {job} has {pages} pages.",),
        needed=("job",),
        wish="print",
    )


def _volume() -> Skill:
    return Skill(
        spec=tool(
            "set_volume",
            "Set how loud a device is.",
            {"device": text(), "percent": whole(least=0, most=100)},
        ),
        area="sound",
        draw=lambda d: {
            "device": d.pick(("radio", "speaker", "television", "phone", "headset", "doorbell")),
            "percent": d.whole(0, 100),
        },
        heldout_asks=lines("""
            !set the volume of the {device} to {percent}
            !turn the {device} to {percent} percent
            the {device} should play at {percent}%
        """),
        result=lambda d, a: {"volume": a["percent"], "device": a["device"]},
        answers=("the {device} is at {volume}.",),
        needed=("volume",),
        wish="set the volume",
    )


def _machine() -> Skill:
    return Skill(
        spec=tool(
            "start_washing",
            "Start the washing machine.",
            {
                "program": one_of("cotton", "wool", "quick", "delicate"),
                "temperature": one_of(20, 30, 40, 60),
                "spin": whole("Turns per minute.", default=1200),
            },
        ),
        area="machines",
        draw=lambda d: {
            "program": d.pick(("cotton", "wool", "quick", "delicate")),
            "temperature": d.pick((20, 30, 40, 60)),
            "spin": d.pick((400, 600, 800, 1000, 1400)),
        },
        heldout_asks=lines("""
            !start the washing machine: {program}, {temperature} degrees<, spin {spin}>
            !wash it with the {program} program at {temperature} degrees
            laundry is in. Use {program} at {temperature}<, {spin} turns>
        """),
        result=lambda d, a: {"ready_in": f"{d.whole(20, 180)} minutes"},
        answers=("the laundry is ready in {ready_in}.",),
        needed=("ready_in",),
        wish="do the laundry",
    )


def thing_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _dice(),
        _door(),
        _printer(),
        _volume(),
        _machine(),
    )
