"""How the `kv` commands show tables and lines: as wide as the terminal, one line per row in a pipe.

Knows widths, colours and encodings, nothing of stores. Invariant: what a store holds never reaches
a terminal with its control characters, and stdout gets nothing but the rows.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import click

from cedagent.cli.render import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

UNBROKEN = 100_000
"""Columns where there is no terminal: nothing is ever folded there."""

LEAST = 12
"""Fewest columns for a table's first column, which has the names."""

GAP = 2
"""Blanks between columns."""

_MARKS = dict.fromkeys([0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
"""Marks that turn the direction of what is written after them."""


def console() -> Console:
    """Return a console as wide as the terminal, or as COLUMNS says; without either, unbroken."""
    from rich.console import Console

    wide = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    width = shutil.get_terminal_size().columns if wide else UNBROKEN
    # As elsewhere in the program: without colour there is no other emphasis, either.
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(width=width, highlight=False, markup=False, emoji=False, color_system=colours)


def one_line(text: str) -> str:
    """Return what is printable of a text, on one line and in the order in which it is stored."""
    return printable(text).translate(_MARKS).replace("\n", " ").replace("\t", " ")


def show(*parts: RenderableType, on: Console | None = None) -> None:
    """Print each part on lines of its own, without blanks at their ends."""
    on = on or console()
    with on.capture() as captured:
        for part in parts:
            on.print(part, crop=False, overflow="fold")
    echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def say(line: str) -> None:
    """Print a sentence, folded between its words where the terminal ends."""
    from rich.text import Text

    show(Text(one_line(line)))


def echo(text: str) -> None:
    """Print a text in which there may be characters that stdout's encoding does not have."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding))


def show_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[str] = ()
) -> None:
    """Print rows under a header; the first column is folded where the width ends.

    On a terminal too narrow for that, each row says its names itself, below its first cell.
    """
    from rich.table import Table
    from rich.text import Text

    on = console()
    columns = [*zip(header, *rows, strict=True)][1:]
    others = sum(max(map(len, column)) + GAP for column in columns)
    if on.width - others < LEAST:
        show(*(part for row in rows for part in _stacked(header, row, on.width)), on=on)
        return
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for place, name in enumerate(header):
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        table.add_column(name, justify=justify, no_wrap=place > 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    show(table, on=on)


def _stacked(header: Sequence[str], row: Sequence[str], width: int) -> Iterator[RenderableType]:
    """Yield a row's first cell, and lines of the others that are not empty, each unbroken."""
    from rich.padding import Padding
    from rich.text import Text

    yield Text(one_line(row[0]), style="bold")
    line = ""
    for name, cell in zip(header[1:], row[1:], strict=True):
        if not cell:
            continue
        said = f"{name} {one_line(cell)}".strip()
        # One column for a comma.
        if line and GAP + len(f"{line}, {said}") >= width:
            yield Padding(Text(f"{line},"), (0, 0, 0, GAP))
            line = said
        else:
            line = f"{line}, {said}" if line else said
    yield Padding(Text(line), (0, 0, 0, GAP))


def show_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and what they are, folded beside the names."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, Text(one_line(value)))
    show(table)


def can_draw() -> bool:
    """Say whether stdout's encoding has the characters that trees are drawn with."""
    try:
        "├─└│…".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show on a terminal what is being done and for how long; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(one_line(what), total=None)
        yield
