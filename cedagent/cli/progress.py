"""How far a long command is, on stderr: bars with the time left on a terminal, else lines.

Knows steps by their names and how many pieces each has, nothing of the work. Invariant: every step
is named when it begins, and the time left is that of pieces done here, not of those found done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from cedagent.upcycle.source import Progress

_LINE_S = 10.0
"""Seconds between two lines of one step."""
_COUNTED = 10_000
"""Most pieces that a bar counts; of more, bytes among them, it says the share."""


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yield a progress callback that shows the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines().advance
        return
    tasks: dict[str, TaskID] = {}
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24),
        TextColumn("{task.fields[said]}"), TimeRemainingColumn(elapsed_when_finished=True),
    )  # fmt: skip
    with Bars(*columns, console=console) as bars:

        def advance(what: str, done: int, total: int) -> None:
            said = f"{done}/{total}" if total <= _COUNTED else f"{done / total:.0%}"
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, completed=done, said=said)
            bars.update(tasks[what], completed=done, total=total, said=said)

        yield advance


class _Lines:
    """One line when a step begins, then one every ten seconds."""

    def __init__(self) -> None:
        self._what = ""
        self._before = 0
        self._started = self._shown = 0.0

    def advance(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            # Work that goes on has done some of it before.
            self._what, self._before, self._started, self._shown = what, done, now, now
            click.echo(f"cedagent: {what}", err=True)
        elif now - self._shown >= _LINE_S and done > self._before:
            self._shown = now
            left = duration((now - self._started) / (done - self._before) * (total - done))
            click.echo(f"cedagent: {what}: {done:,} of {total:,}, about {left} left", err=True)


def duration(seconds: float) -> str:
    """Return a time for people: 40 s, 12 min, 1 h 20 min."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
