"""Known tools of an office: rooms, file names.

Each is a schema with what people ask of it and what it returns; nothing runs. Invariant: training
and held-out templates are different texts.
"""

from __future__ import annotations

from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.schemas import (
    record,
    text,
    tool,
    whole,
)
from cedagent.upcycle.data.skill import Skill


def _room() -> Skill:
    return Skill(
        spec=tool(
            "book_room",
            "Reserve a meeting room.",
            {
                "room": text(),
                "slot": record(
                    {"date": text(), "start": text(), "end": text()}, "When it is needed."
                ),
                "seats": whole(least=1, default=4),
            },
        ),
        area="rooms",
        draw=lambda d: {
            "room": d.code("@##"),
            "slot": dict(zip(("start", "end"), sorted((d.time(), d.time())), strict=True))
            | {"date": d.date()},
            "seats": d.whole(2, 30),
        },
        asks=lines("""
            !book room {room} on {slot.date} from {slot.start} to {slot.end}< for {seats} people>
            !reserve {room} for {slot.date}, {slot.start} - {slot.end}<, {seats} seats>
            I need room {room} from {slot.start} to {slot.end} on {slot.date}.
        """),
        heldout_asks=lines("""
            ?can {room} be ours on {slot.date} between {slot.start} and {slot.end}
            !hold room {room}< with {seats} seats> on {slot.date}, {slot.start} until {slot.end}
        """),
        result=lambda d, a: {"booking": d.code("R-###"), "room": a["room"]},
        answers=lines("""
            room {room} is yours: booking {booking}.
            I booked {room} as {booking}.
            booking {booking} for room {room} is confirmed.
        """),
        needed=("booking",),
        wish="book rooms",
    )


def _rename() -> Skill:
    return Skill(
        spec=tool("rename_file", "Give a file another name.", {"path": text(), "new_name": text()}),
        area="file changes",
        draw=lambda d: {"path": d.path("txt"), "new_name": d.file_name("txt")},
        asks=lines("""
            !rename {path} to {new_name}
            !change the name of {path} to {new_name}
            {path} should be called {new_name}.
        """),
        heldout_asks=lines("""
            !give {path} the new name {new_name}
        """),
        result=lambda d, a: {"renamed": True, "name": a["new_name"]},
        answers=lines("""
            the file is called {new_name} now.
            I renamed {path} to {new_name}.
            done: {path} is now {new_name}.
        """),
        needed=("new_name",),
        wish="rename files",
    )


def office_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _room(),
        _rename(),
    )
