"""Kinds of documents made of many rows, each with facts that one can ask for.

Knows templates, no tools. Invariant: a row's key names it alone in its document, so a question \
    about
it has one answer, and that answer stands in the row word for word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cedagent.upcycle.data import rows
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """One kind of document."""

    extension: str
    heads: tuple[str, ...] = ()
    """First lines to choose from; none where the kind has none."""
    row: Callable[[Draw], dict[str, Any]]
    line: str
    """Format of a row."""
    key: tuple[str, ...]
    """Names of what tells a row from all others."""
    wants: tuple[str, ...]
    """Names of what can be asked for, one at a time; `{want}` in templates is its words."""
    titles: dict[str, str]
    """What those names are called in a question."""
    asks: tuple[str, ...]
    """Templates over the row and `want`, with their mood; where to look is added to them."""
    heldout_asks: tuple[str, ...]
    answers: tuple[str, ...]
    """Over the row, `want` and `value`."""


RECORDS: Final[tuple[Records, ...]] = (
    Records(
        extension="toml",
        heads=("# written by hand", "[main]", "# do not commit", "[settings]"),
        row=rows.setting,
        line="{name} = {setting}",
        key=("name",),
        wants=("setting",),
        titles={"setting": "value"},
        asks=lines("""
            =the value of {name}
            ={name}
            =the setting {name}
            ?what is {name} set to
        """),
        heldout_asks=lines("""
            ?which value does {name} have
            ?what stands behind {name}
        """),
        answers=lines("""
            {name} is set to {value}.
            {name} is {value}.
            the value of {name} is {value}.
        """),
    ),
    Records(
        extension="json",
        row=rows.service,
        line=(
            '{{"name": "{name}", "host": "{host}", "port": {port}, "owner": "{owner}", '
            '"state": "{state}"}}'
        ),
        key=("name",),
        wants=("host", "port", "owner"),
        titles={"host": "host", "port": "port", "owner": "owner"},
        asks=lines("""
            =the {want} of {name}
            =the {want} of the service {name}
            ?which {want} does {name} have
        """),
        heldout_asks=lines("""
            =the {want} given for {name}
            ?which {want} is written down for {name}
        """),
        answers=lines("""
            the {want} of {name} is {value}.
            {name} has the {want} {value}.
            {want} of {name}: {value}.
        """),
    ),
    Records(
        extension="csv",
        heads=("name,phone,email,city,room",),
        row=rows.person,
        line="{name},{phone},{email},{city},{room}",
        key=("name",),
        wants=("phone", "email", "city", "room"),
        titles={
            "phone": "phone number", "email": "email address", "city": "city", "room": "room"
        },
        asks=lines("""
            =the {want} of {name}
            ={name}'s {want}
            ?which {want} does {name} have
        """),
        heldout_asks=lines("""
            =the {want} listed for {name}
            =the {want} that belongs to {name}
        """),
        answers=lines("""
            the {want} of {name} is {value}.
            {name}'s {want} is {value}.
            it is {value}.
        """),
    ),
    Records(
        extension="md",
        heads=("# Stock", "# What is on the shelves", "# Inventory"),
        row=rows.stock,
        line="- {name} ({sku}): {quantity} pieces on shelf {shelf}, {price} each",
        key=("name",),
        wants=("sku", "price", "quantity", "shelf"),
        titles={
            "sku": "article number", "price": "price", "quantity": "quantity", "shelf": "shelf"
        },
        asks=lines("""
            =the {want} of the {name}
            ?which {want} does the {name} have
            =the {want} for {name}
        """),
        heldout_asks=lines("""
            ?which {want} is given for the {name}
            =the {want} noted for the {name}
        """),
        answers=lines("""
            the {want} of the {name} is {value}.
            for the {name}, the {want} is {value}.
            the {name}: {want} {value}.
        """),
    ),
    Records(
        extension="log",
        row=rows.job,
        line="{date} {time} {level} {worker} {verb} {name} in {duration}",
        key=("name",),
        wants=("duration", "worker", "time"),
        titles={"duration": "duration", "worker": "worker", "time": "time"},
        asks=lines("""
            =the {want} of {name}
            =the {want} logged for {name}
        """),
        heldout_asks=lines("""
            =the {want} in the entry about {name}
            ?which {want} stands in the entry about {name}
        """),
        answers=lines("""
            the {want} of {name} is {value}.
            {name}: the {want} is {value}.
            the log gives {value} as the {want} of {name}.
        """),
    ),
    Records(
        extension="txt",
        heads=("Departures", "Timetable, valid all week"),
        row=rows.departure,
        line="{time}  {name}  {start} - {end}  platform {platform}",
        key=("name",),
        wants=("time", "platform", "end"),
        titles={"time": "departure time", "platform": "platform", "end": "destination"},
        asks=lines("""
            =the {want} of {name}
            =the {want} of the train {name}
        """),
        heldout_asks=lines("""
            =the {want} printed for {name}
            =the train {name}'s {want}
        """),
        answers=lines("""
            the {want} of {name} is {value}.
            {name}: {want} {value}.
            it is {value}.
        """),
    ),
    Records(
        extension="md",
        heads=("# To do", "# Who does what", "# Minutes"),
        row=rows.todo,
        line="- {owner} will {name} by {due}.",
        key=("name",),
        wants=("owner", "due"),
        titles={"owner": "person", "due": "date"},
        asks=lines("""
            =the {want} for the task "{name}"
            ?which {want} is noted for "{name}"
        """),
        heldout_asks=lines("""
            =the {want} that goes with "{name}"
        """),
        answers=lines("""
            the {want} for "{name}" is {value}.
            it is {value}.
            "{name}": {value}.
        """),
    ),
    Records(
        extension="txt",
        heads=("Notes of the week", "Summary", "Decisions"),
        row=rows.clause,
        line=(
            "About {name} we agreed on this: {person} takes care of it and can be found in room "
            "{room}, the budget is {budget}, and it begins at {time}. Remember that {why}."
        ),
        key=("name",),
        wants=("person", "room", "budget", "time"),
        titles={"person": "person in charge", "room": "room", "budget": "budget", "time": "time"},
        asks=lines("""
            =the {want} for {name}
            =the {want} agreed on for {name}
        """),
        heldout_asks=lines("""
            =the {want} in the part about {name}
        """),
        answers=lines("""
            the {want} for {name} is {value}.
            for {name}, the {want} is {value}.
            it is {value}.
        """),
    ),
)  # fmt: skip
