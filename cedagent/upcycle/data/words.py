"""The words that values are made of: names, places, things, file names, short messages.

`words.txt` was written for this purpose; common knowledge at most. Every fifth entry of each list
is held out, see `Draw.word`, so a list's order is part of what training sees: append, never sort.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Literal

Name = Literal[
    "first_names", "surnames", "cities", "companies", "products", "words", "stems", "folders",
    "topics", "messages", "tasks", "common",
]  # fmt: skip


def word_list(name: Name) -> tuple[str, ...]:
    """Return the entries of a list, in their order."""
    return _lists()[name]


@lru_cache(maxsize=1)
def _lists() -> dict[str, tuple[str, ...]]:
    file = resources.files("cedagent.upcycle.data") / "words.txt"
    lists = {}
    for section in file.read_text(encoding="utf-8").split("[")[1:]:
        name, _, body = section.partition("]\n")
        lists[name] = tuple(entry.strip() for entry in body.replace("\n", " ").split("|"))
    return lists
