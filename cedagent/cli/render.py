"""Events to text: plain lines for pipes, JSON lines for programs, colours and a bar for terminals.

It knows events and how things look, nothing of engines or sessions. What a model or a tool wrote
never reaches the terminal with its control characters: an answer cannot move the cursor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TextIO

import click

from cedagent.events import (
    Done,
    Event,
    Notice,
    Prefill,
    Text,
    Thinking,
    ToolArgs,
    ToolEnd,
    ToolStart,
    as_json,
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

RESULT_LINES = 12
"""Most lines of a tool's result that are shown; the model sees what the agent gave it."""

SHORT_PREFILL = 256
"""Most tokens to be encoded without a bar."""

_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (9, 10)}


class Renderer(Protocol):
    """Shows the events of one run after the other."""

    def event(self, event: Event) -> None:
        """Show one event."""
        ...


def printable(text: str) -> str:
    """Return text without control characters other than tab and newline."""
    return text.translate(_CONTROLS)


def warn(message: str) -> None:
    """Write one warning line to stderr."""
    click.echo(f"cedagent: {printable(' '.join(message.split()))}", err=True)


class Lines:
    """JSON lines on stdout: the events as Python has them, each with its `kind`."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def event(self, event: Event) -> None:
        """Write the event as one line."""
        self._out.write(json.dumps(as_json(event), ensure_ascii=False) + "\n")
        self._out.flush()
        if isinstance(event, Notice):
            warn(event.message)


class Plain:
    """Text as it comes; a call is its name and arguments, then its result on lines of their own.

    Reasoning is not shown: what comes out of a pipe is the answer.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._at_line_start = True

    def event(self, event: Event) -> None:
        """Show one event."""
        match event:
            case Text(delta=delta):
                self._write(delta)
            case ToolStart(name=name):
                self._start_line()
                self._write(f"{name} ", "call")
            case ToolArgs(delta=delta):
                self._write(delta, "arguments")
            case ToolEnd(name=name, result=result, error=error):
                self._start_line()
                self._result(name, result, error)
            case Notice(message=message):
                self._start_line()
                warn(message)
            case Done():
                self._start_line()

    def _result(self, name: str, result: str, error: bool) -> None:
        lines = result.splitlines() or [""]
        shown = lines[:RESULT_LINES]
        if len(lines) > len(shown):
            shown.append(f"... ({len(lines) - len(shown)} more lines)")
        mark = "failed:" if error else "="
        text = "\n    ".join(shown)
        self._write(f"  {name} {mark} {text}\n", "error" if error else "result")

    def _start_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str, role: str = "text") -> None:
        text = printable(text)
        if not text:
            return
        self._at_line_start = text.endswith("\n")
        self._out.write(self._styled(text, role))
        self._out.flush()

    def _styled(self, text: str, role: str) -> str:
        return text


class Terminal(Plain):
    """Plain with colour, reasoning, dimmed, and a bar while a prefill runs."""

    _STYLES: Mapping[str, Mapping[str, object]] = {
        "thinking": {"dim": True},
        "call": {"fg": "cyan", "bold": True},
        "arguments": {"fg": "cyan"},
        "result": {"fg": "green"},
        "error": {"fg": "red"},
    }

    def __init__(self, out: TextIO | None = None) -> None:
        super().__init__(out)
        self._colour = not os.environ.get("NO_COLOR")
        self._bar: tuple[Progress, TaskID] | None = None
        self._is_thinking = False

    def event(self, event: Event) -> None:
        """Show one event; anything after a prefill takes its bar away."""
        if isinstance(event, Prefill):
            self._prefill(event)
            return
        self.clear()
        if isinstance(event, Thinking):
            self._is_thinking = True
            self._write(event.delta, "thinking")
            return
        if self._is_thinking:
            # Also without colour the answer stands apart.
            self._start_line()
            self._is_thinking = False
        super().event(event)

    def clear(self) -> None:
        """Take the prefill bar away, if one is there."""
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None

    def _prefill(self, event: Prefill) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        if self._bar is None:
            # A prefill of a tile or two is over before a bar could be read.
            if event.total - event.reused <= SHORT_PREFILL:
                return
            self._start_line()
            progress = Progress(
                TextColumn("reading"),
                BarColumn(bar_width=24),
                TextColumn("reused {task.fields[reused]} · to do {task.fields[left]} · ETA"),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                console=Console(stderr=True),
                transient=True,
            )
            task = progress.add_task("", total=None, reused=0, left=0)
            progress.start()
            self._bar = progress, task
        progress, task = self._bar
        progress.update(
            task,
            total=max(1, event.total - event.reused),
            completed=max(0, event.done - event.reused),
            reused=event.reused,
            left=event.total - event.done,
        )

    def _styled(self, text: str, role: str) -> str:
        style = self._STYLES.get(role)
        if style is None or not self._colour:
            return text
        return click.style(text, **style)  # type: ignore[arg-type]  # a table of its own keywords
