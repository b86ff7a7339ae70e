"""Known tools that show a document: pages, logs, tables.

Each says where a question has to look. Invariant: training and held-out templates are different
texts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from cedagent.upcycle.data.conversation import Split
from cedagent.upcycle.data.documents import few_rows
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.files import document_values
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.schemas import (
    maybe,
    real,
    text,
    tool,
    whole,
)
from cedagent.upcycle.data.skill import Skill

FETCH_PAGE = tool(
    "fetch_page",
    "Text of a page on the web.",
    {"url": text(), "timeout": maybe(real(), "Seconds.")},
)


READ_LOG = tool(
    "read_log",
    "The last lines of a service's log.",
    {"service": text(), "lines": whole(default=100)},
)


SHOW_TABLE = tool("show_table", "All rows of a table.", {"table": text("Its name.")})


PLACES: dict[str, dict[Split, tuple[str, ...]]] = {
    "fetch_page": {
        "train": lines("""
            @ on {url}
            @ on the page {url}
            @ according to {url}
        """),
        "heldout": lines("""
            @ as {url} has it
        """),
    },
    "read_log": {
        "train": lines("""
            @ in the log of {service}
            @ according to the log of {service}
        """),
        "heldout": lines("""
            @ as the log of {service} shows
        """),
    },
    "show_table": {
        "train": lines("""
            @ in the table {table}
            @, see the table {table}
        """),
        "heldout": lines("""
            @ going by the table {table}
        """),
    },
}
"""Where a question says to look, by tool."""


def page_address(draw: Draw) -> str:
    """Return the address of a page."""
    site = draw.company().lower().replace(" ", "-")
    return f"https://{site}.example/{draw.stem()}/{draw.noun()}"


def place_values(draw: Draw, name: str) -> dict[str, Any]:
    """Return the argument that says what such a tool is to show."""
    if name == "fetch_page":
        return {"url": page_address(draw)}
    if name == "read_log":
        return {"service": f"{draw.noun()}-{draw.stem()}"}
    return {"table": f"{draw.stem()}_{draw.noun()}"}


def _documents() -> list[Skill]:
    def fact(name: str, draw: Draw) -> dict[str, Any]:
        document = few_rows(draw, draw.whole(1, 8))
        places = PLACES[name][draw.split]
        return place_values(draw, name) | document_values(draw, document, places)

    return [
        Skill(
            spec=spec,
            area=spec.name,
            draw=partial(fact, spec.name),
            result=lambda d, a: {},
            shows="{document}",
            answers=(),
            needed=("value",),
            wish=wish,
        )
        for spec, wish in (
            (FETCH_PAGE, "open pages"), (READ_LOG, "read logs"), (SHOW_TABLE, "show tables")
        )
    ]  # fmt: skip


def document_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return tuple(_documents())
