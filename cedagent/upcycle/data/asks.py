"""More ways to ask for what known tools do, beside those that their modules write down.

`asks.txt` was written for this purpose: a section for each skill of a tool (`[now 2]` is the second
one of the clock) and for each chain (`[chain now+add_days 1]`), one template in a line. Knows
names, no tools. Invariant: they serve training alone; held-out wordings stand with the skills.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from cedagent.upcycle.data.phrasing import lines


def more_asks(name: str, number: int = 1) -> tuple[str, ...]:
    """Return the templates for the skill `number` of a tool, or for a chain by its tools' names."""
    return _sections().get(f"{name} {number}", ())


def ask_names() -> tuple[str, ...]:
    """Return the name and number of every section."""
    return tuple(_sections())


@lru_cache(maxsize=1)
def _sections() -> dict[str, tuple[str, ...]]:
    file = resources.files("cedagent.upcycle.data") / "asks.txt"
    sections = {}
    for section in ("\n" + file.read_text(encoding="utf-8")).split("\n[")[1:]:
        name, _, body = section.partition("]\n")
        sections[name] = lines(body)
    return sections
