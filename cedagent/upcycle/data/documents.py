"""Texts of a wanted length with one fact in a wanted place, and the question about it.

Knows kinds of records, and lengths by a function that counts; no tools and no chat format.
Invariant: the row that is asked about is the only one of its name, and stands at the asked depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.made_up_records import made_up_records
from cedagent.upcycle.data.phrasing import sentence
from cedagent.upcycle.data.records import RECORDS, Records

Count = Callable[[str], int]
"""Returns how many tokens a text has."""
MAX_LINES: Final = 195
"""Fewer lines than a file tool shows at once."""
_SAMPLE = 12
_SHARE_MADE_UP = 0.5
"""How many documents of training are of a kind that was never seen before."""


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
    kind = kind or _any_kind(draw)
    rows = _rows(kind, draw, n_rows)
    return _document(kind, rows, draw.rng.randrange(len(rows)), draw=draw)


def long_document(
    draw: Draw, n_tokens: int, *, depth: float, count: Count, kind: Records | None = None
) -> Document:
    """Return a document of about `n_tokens` tokens with the fact at `depth`, from 0 to 1.

    Of a kind whose rows are short enough tokens may be fewer: it has 195 rows at most.
    """
    wanted, rows = _many_rows(draw, n_tokens, count=count, kind=kind)
    at = min(int(depth * len(rows)), len(rows) - 1)
    return _document(wanted, rows, at, draw=draw)


def questioned(draw: Draw, n_tokens: int, n_questions: int, *, count: Count) -> list[Document]:
    """Return one text of about `n_tokens` tokens with as many different questions as it has.

    At most `n_questions`, in random order.
    """
    kind, rows = _many_rows(draw, n_tokens, count=count)
    spelled = [kind.line.format(**row).casefold() for row in rows]
    names = [_name(kind, row).casefold() for row in rows]
    # A name inside another row would name two; its own row has it.
    rows = [
        row for row, name in zip(rows, names, strict=True) if sum(name in s for s in spelled) == 1
    ] or rows[:1]
    head = _head(kind, draw)
    pairs = [(i, want) for i in range(len(rows)) for want in kind.wants]
    return [
        _asked(kind, rows, i, want, head=head)
        for i, want in draw.some(pairs, min(n_questions, len(pairs)), n_questions)
    ]


def _any_kind(draw: Draw) -> Records:
    made_up = draw.split == "train" and draw.chance(_SHARE_MADE_UP)
    return made_up_records(draw) if made_up else draw.pick(RECORDS)


def _many_rows(
    draw: Draw, n_tokens: int, *, count: Count, kind: Records | None = None
) -> tuple[Records, list[dict[str, Any]]]:
    while True:
        wanted = kind or _any_kind(draw)
        most = MAX_LINES // (wanted.line.count("\n") + 1)
        rows = _rows(wanted, draw, _SAMPLE)
        per_row = count(_text(wanted, rows)) / len(rows)
        n_rows = max(2, round(n_tokens / per_row))
        if n_rows <= most or kind is not None:
            return wanted, _rows(wanted, draw, min(n_rows, most))


def _rows(kind: Records, draw: Draw, n_rows: int) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < n_rows:
        row = kind.row(draw)
        rows.setdefault(_name(kind, row).casefold(), row)
    return list(rows.values())


def _name(kind: Records, row: dict[str, Any]) -> str:
    return " ".join(str(row[part]) for part in kind.key)


def _head(kind: Records, draw: Draw) -> list[str]:
    return [draw.pick(kind.heads)] if kind.heads else []


def _document(kind: Records, rows: list[dict[str, Any]], at: int, *, draw: Draw) -> Document:
    name = _name(kind, rows[at])
    # A name inside another one, as IC 18 is inside IC 181, would name two rows.
    kept = [row for row in rows if row is rows[at] or name not in kind.line.format(**row)]
    at, rows = next(i for i, row in enumerate(kept) if row is rows[at]), kept
    want = draw.pick(kind.wants)
    return _asked(kind, rows, at, want, head=_head(kind, draw))


def _asked(
    kind: Records, rows: list[dict[str, Any]], at: int, want: str, *, head: list[str]
) -> Document:
    target = {**rows[at], "want": kind.titles[want], "value": str(rows[at][want])}
    text = "\n".join([*head, _text(kind, rows)])
    before = len("\n".join([*head, _text(kind, rows[:at])]))
    return Document(kind, text, target, before / max(1, len(text)))


def _text(kind: Records, rows: list[dict[str, Any]]) -> str:
    return "\n".join(kind.line.format(**row) for row in rows)
