"""What the entries of a session log must look like; everything else in the package relies on it.

Knows the shape of each kind of entry, no files and no engine. A line can have the right checksum
and still be nonsense, after a bad merge or an edit by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cedagent.agent.choice import CHOICES
from cedagent.agent.log import Entry

VERSION = 1
HEAD_START = b'{"kind":"head","version":'
"""How every log of ours begins."""
ENDINGS = ("end", "limit", "context", "cancelled")


def head_problem(entry: Entry) -> str | None:
    """Return what is wrong with the first entry of a log, or None."""
    if entry.get("kind") != "head" or entry.get("version") != VERSION:
        return f"expected the head of a log of version {VERSION}, got {entry.get('kind')!r}"
    return _first_problem(
        entry,
        name=_is_line,
        created=lambda value: isinstance(value, int | float),
        system=lambda value: value is None or _is_text(value),
        tools=lambda value: isinstance(value, list) and all(map(_is_tool, value)),
        chat_format=_is_line,
        model=_is_line,
        model_digest=_is_line,
        tokenizer_digest=_is_line,
        seed=lambda value: _is_whole(value, 2**64),
        # Logs of formats that do not reason may lack these.
        thinking=lambda value: value is None or isinstance(value, bool),
        effort=lambda value: value is None or _is_whole(value, 101),
        ids=lambda value: isinstance(value, list),
    )


def problem_of(entry: Entry, *, n_before: int, choices: Sequence[str]) -> str | None:
    """Return what is wrong with an entry that is not the first, or None.

    `n_before` ids stand before it; `choices` are the tool choices of its session.
    """
    kind, ids = entry.get("kind"), entry.get("ids")
    if kind not in ("append", "output", "model"):
        return f"unknown entry {kind!r}; perhaps a newer cedagent wrote this log"
    if not isinstance(ids, list):
        return "ids: expected a list"
    if entry.get("at") != n_before or not _is_whole(entry.get("at")):
        return f"begins at token {entry.get('at')!r}, expected {n_before}"
    end = n_before + len(ids)
    if kind == "append":
        return _first_problem(
            entry,
            role=_is_text,
            prefill_end=lambda value: _is_whole(value) and value == end,
            choice=lambda value: value in choices,
            n_results=lambda value: value is None or _is_whole(value),
        )
    if kind == "output":
        return _first_problem(
            entry,
            n=lambda value: _is_whole(value, len(ids) + 1),
            ending=lambda value: value in ENDINGS,
        )
    return _first_problem(entry, digest=_is_line, ids=lambda value: not value)


def foreign_id(ids: Sequence[Any], *, vocab_size: int) -> str | None:
    """Return what is wrong with token ids, or None."""
    for token in ids:
        if not _is_whole(token, vocab_size):
            return f"ids: expected whole numbers of 0 to {vocab_size - 1}, got {token!r:.40}"
    return None


def choices_of(head: Entry) -> tuple[str, ...]:
    """Return the tool choices of the session with this head."""
    return (*CHOICES, *(item["name"] for item in head["tools"]))


def _first_problem(entry: Entry, **checks: Callable[[Any], bool]) -> str | None:
    for key, is_right in checks.items():
        if not is_right(entry.get(key)):
            return f"{key}: got {entry.get(key)!r:.40}"
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_line(value: object) -> bool:
    """Tell whether a value can be named in a message of one line."""
    return isinstance(value, str) and value.isprintable()


def _is_whole(value: object, stop: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < stop


def _is_tool(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    is_named = _is_line(value.get("name")) and _is_text(value.get("description"))
    examples = value.get("examples")
    if not is_named or not isinstance(value.get("parameters"), Mapping):
        return False
    return isinstance(examples, list) and all(map(_is_example, examples))


def _is_example(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return _is_text(value[0]) and isinstance(value[1], Mapping)
