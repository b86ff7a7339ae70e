"""More ways to ask for what known tools do, beside those that their modules write down.

`asks.txt` was written for this purpose: a section for each skill of a tool (`[now 2]` is the second
one of the clock) and for each chain (`[chain now+add_days 1]`), one template in a line. Knows
names, no tools. Invariant: they serve training alone; held-out wordings stand with the skills.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import resources

from cedagent.upcycle.data.phrasing import lines


def more_asks(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the templates for each skill, named by its tool, or chain; the nth of a name is n."""
    for name in section_names(names):
        yield _sections().get(name, ())


def section_names(names: Iterable[str]) -> Iterator[str]:
    """Yield each name with how often it has come by then."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield f"{name} {seen[name]}"


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
