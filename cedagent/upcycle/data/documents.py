"""Texts of a wanted length with one fact in a wanted place, and the question about it.

Knows kinds of records, and lengths by a function that counts; no tools and no chat format.
Invariant: the row that is asked about is the only one of its name, and stands at the asked depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import sentence
from cedagent.upcycle.data.records import RECORDS, Records

Count = Callable[[str], int]
"""Returns how many tokens a text has."""
MAX_LINES: Final = 195
"""Fewer lines than a file tool shows at once."""
_SAMPLE = 12


@dataclass(frozen=True, slots=True)
class Document:
    """A text and one question about it."""

    kind: Records
    text: str
    target: dict[str, Any]
    """The row that is asked about, with `want` (in words) and `value`."""
    depth: float
    """Where the row begins: 0 at the start of the text, 1 at its end."""

    def asks(self, *, heldout: bool) -> tuple[str, ...]:
        """Return the templates of questions, over `target`."""
        return self.kind.heldout_asks if heldout else self.kind.asks

    def answer(self, draw: Draw) -> str:
        """Return an answer."""
        return sentence(draw.pick(self.kind.answers), self.target, rng=draw.rng)


def few_rows(draw: Draw, n_rows: int, *, kind: Records | None = None) -> Document:
    """Return a document of so many rows, the fact in any of them."""
    kind = kind or draw.pick(RECORDS)
    rows = _rows(kind, draw, n_rows)
    return _document(kind, rows, draw.rng.randrange(len(rows)), draw=draw)


def long_document(
    draw: Draw, n_tokens: int, *, depth: float, count: Count, kind: Records | None = None
) -> Document:
    """Return a document of about `n_tokens` tokens with the fact at `depth`, from 0 to 1.

    Of a kind whose rows are short enough tokens may be fewer: it has 195 rows at most.
    """
    while True:
        wanted = kind or draw.pick(RECORDS)
        rows = _rows(wanted, draw, _SAMPLE)
        per_row = count(_text(wanted, rows)) / len(rows)
        n_rows = max(2, round(n_tokens / per_row))
        if n_rows <= MAX_LINES or kind is not None:
            break
    rows = _rows(wanted, draw, min(n_rows, MAX_LINES))
    at = min(int(depth * len(rows)), len(rows) - 1)
    return _document(wanted, rows, at, draw=draw)


def _rows(kind: Records, draw: Draw, n_rows: int) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < n_rows:
        row = kind.row(draw)
        rows.setdefault(" ".join(str(row[name]) for name in kind.key).casefold(), row)
    return list(rows.values())


def _document(kind: Records, rows: list[dict[str, Any]], at: int, *, draw: Draw) -> Document:
    name = " ".join(str(rows[at][part]) for part in kind.key)
    # A name inside another one, as IC 18 is inside IC 181, would name two rows.
    kept = [row for row in rows if row is rows[at] or name not in kind.line.format(**row)]
    at, rows = next(i for i, row in enumerate(kept) if row is rows[at]), kept
    want = draw.pick(kind.wants)
    target = {**rows[at], "want": kind.titles[want], "value": str(rows[at][want])}
    head = [draw.pick(kind.heads)] if kind.heads else []
    text = "\n".join([*head, _text(kind, rows)])
    before = len("\n".join([*head, _text(kind, rows[:at])]))
    return Document(kind, text, target, before / max(1, len(text)))


def _text(kind: Records, rows: list[dict[str, Any]]) -> str:
    return "\n".join(kind.line.format(**row) for row in rows)
