"""Known tools of a store of values by name.

Each is a schema with what people ask of it and what it returns. Invariant: training and held-out
templates are different texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import joined, lines
from cedagent.upcycle.data.schemas import flag, text, tool, whole
from cedagent.upcycle.data.skill import Skill


def stored(draw: Draw) -> str | int | bool:
    """Return a value as programs store them."""
    values: list[str | int | bool] = [draw.noun(), draw.whole(1, 5000), draw.chance(0.5)]
    return draw.pick([*values, draw.code("@%%%-##")])


def key(draw: Draw) -> str:
    """Return the name of a stored value."""
    return f"{draw.stem()}.{draw.noun()}"


def _store() -> list[Skill]:
    def keys(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        found = [f"{arguments['prefix']}.{draw.noun()}" for _ in range(draw.whole(1, 5))]
        return {"keys": found, "_said": joined(found)}

    return [
        Skill(
            spec=tool("get_value", "Read a stored value.", {"key": text()}),
            area="store",
            draw=lambda d: {"key": key(d)},
            asks=lines("""
                =the value of {key}
                ?what is stored under {key}
                !read {key} from the store
                !look up the key {key}
            """),
            heldout_asks=lines("""
                ?what does the store hold for {key}
                !retrieve {key}
            """),
            result=lambda d, a: {"shown": stored(d)},
            shows="{shown}",
            answers=lines("""
                {key} is {shown}.
                the value of {key} is {shown}.
                under {key} there is {shown}.
            """),
            needed=("shown",),
            vary="key",
            joins=True,
            wish="read stored values",
        ),
        Skill(
            spec=tool(
                "set_value",
                "Store a value.",
                {
                    "key": text(),
                    "value": {"anyOf": [text(), whole(), flag()]},
                    "overwrite": flag(default=True),
                },
            ),
            area="store",
            draw=lambda d: {"key": key(d), "value": stored(d), "overwrite": False},
            asks=lines("""
                !set {key} to {value}
                !store {value} under {key}
                !save {value} as {key}<, but do not overwrite{overwrite=false?} anything>
                {key} = {value}, please remember that.
            """),
            heldout_asks=lines("""
                !let {key} be {value} from now on
                !keep {value} in the store as {key}<, without overwriting{overwrite=false?}>
            """),
            result=lambda d, a: {"stored": a["key"]},
            answers=lines("""
                {key} is set to {value}.
                I stored {value} under {key}.
                done: {key} = {value}.
            """),
            needed=("key",),
            wish="store values",
        ),
        Skill(
            spec=tool("list_keys", "List stored keys.", {"prefix": text(default="")}),
            area="store",
            draw=lambda d: {"prefix": f"{d.stem()}.{d.noun()}"},
            asks=lines("""
                ?which keys begin with {prefix}
                !list the keys under {prefix}
            """),
            heldout_asks=lines("""
                !enumerate all keys that start with {prefix}
            """),
            result=keys,
            answers=lines("""
                the keys are {_said}.
                there [is|are] {_said}.
            """),
            needed=("keys",),
            wish="list stored keys",
        ),
    ]


def store_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return tuple(_store())
