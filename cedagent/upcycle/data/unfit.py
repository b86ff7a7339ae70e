"""Stretches of a conversation without a call where one was asked for: no tool fits, or something is
missing.

Knows skills. Invariant: what no listed tool can do is refused, and what is missing is asked for.
"""

from __future__ import annotations

from typing import Final

from cedagent.upcycle.data.conversation import Said, Split, Turn
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines, sentence
from cedagent.upcycle.data.scenes import Scene
from cedagent.upcycle.data.skill import Skill, make_task
from cedagent.upcycle.data.skills import named

_CANNOT = lines("""
    I can't {wish}: no tool for it is listed.
    sorry, none of my tools can {wish}.
    I have no tool to {wish}.
    I cannot {wish} here; I have no tool for that.
    none of the tools that I have lets me {wish}.
    sorry, I can't {wish}.
""")


_NEAR: Final = (
    ("files", "fetch_page", "read_log", "show_table", "versions"),
    ("sums", "units", "statistics"),
    ("notes", "store"),
)
_ALSO_NEAR: Final = (
    ("reminders", "calendar", "notes"),
    ("expenses", "notes", "store"),
    ("rooms", "calendar"),
    ("health", "sums"),
)
"""Kept apart where a model is judged: calling the other tool could not be called wrong."""


def refused(draw: Draw, skill: Skill) -> Scene:
    """Return a request that no listed tool fits; the skill's area is not to be listed."""
    assert skill.wish, f"{skill.spec.name} cannot be refused"
    task = make_task(skill, draw)
    answer = sentence(draw.pick(_CANNOT), {"wish": skill.wish}, rng=draw.rng)
    turn = Turn(task.message, (Said(text=answer),))
    near = _NEAR if draw.split == "train" else (*_NEAR, *_ALSO_NEAR)
    avoids = {area for areas in near if skill.area in areas for area in areas}
    return Scene((turn,), (), frozenset({skill.area, *avoids}))


# Tool -> (message without an argument, held out, the question back, replies, argument).
_VAGUE: Final[dict[str, tuple[tuple[str, ...], str, str, tuple[str, ...], str]]] = {
    "get_weather": (
        ("What's the weather?", "How is the weather?", "Check the weather for me."),
        "Could you look up the weather?",
        "For which city?",
        ("{x}", "In {x}.", "{x}, please"),
        "city",
    ),
    "read_file": (
        ("Read the file for me.", "Can you open the file?", "Show me that file."),
        "Would you please read me a file?",
        "Which file?",
        ("{x}", "The file {x}.", "It is {x}"),
        "path",
    ),
    "get_price": (
        ("How much does it cost?", "Check the price, please.", "What's the price?"),
        "I'd like to know a price.",
        "Of which product?",
        ("the {x}", "{x}", "The {x}, please."),
        "product",
    ),
    "track_parcel": (
        ("Where is my parcel?", "Track my parcel.", "Has my parcel arrived?"),
        "My parcel is late, where is it?",
        "What is the number of the parcel?",
        ("{x}", "It's {x}.", "The number is {x}"),
        "parcel",
    ),
    "order_status": (
        ("Where is my order?", "Check my order.", "What's the state of my order?"),
        "I ordered something, how far is it?",
        "What is the number of the order?",
        ("{x}", "Order {x}.", "It is {x}"),
        "order",
    ),
    "get_value": (
        ("Look something up in the store.", "Read a stored value for me."),
        "There is a value in the store that I need.",
        "Under which key?",
        ("{x}", "The key is {x}.", "Under {x}"),
        "key",
    ),
    "find_contact": (
        ("I need a phone number.", "Look up a contact for me."),
        "Can you find somebody in the address book?",
        "Whose?",
        ("{x}", "{x}'s", "That of {x}."),
        "name",
    ),
}


def asked_back(draw: Draw) -> Scene:
    """Return a request that lacks what the tool needs, the question back, and the call."""
    name = draw.pick(tuple(_VAGUE))
    train, heldout, question, replies, argument = _VAGUE[name]
    skill = named(name)
    reply = draw.pick(replies).replace("{x}", f"{{{argument}}}")
    task = make_task(skill, draw, templates=(reply,), plain=True)
    messages: dict[Split, tuple[str, ...]] = {"train": train, "heldout": (heldout,)}
    turns = (
        Turn(draw.pick(messages[draw.split]), (Said(text=question),)),
        Turn(task.message, task.outputs()),
    )
    return Scene(turns, (skill.spec,))
