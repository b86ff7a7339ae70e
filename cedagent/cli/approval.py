"""Asking on a terminal before a tool runs that wants to be asked for.

It is called from the thread of the run, so it never blocks on input alone: a Ctrl-C that stops the
run also answers the question, with no.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from cedagent.cli.render import printable

ReadLine = Callable[[str, Callable[[], bool]], "str | None"]
"""Shows a question and reads a line; gives up with None once its second argument returns True."""

_POLL_S = 0.1


class Approval:
    """The agent's `approve` callback; `refused` tells whether any call was turned down."""

    def __init__(self, *, can_ask: bool, read_line: ReadLine | None = None) -> None:
        """`read_line` reads the answer to a question; by default it is a line of stdin."""
        self.can_ask = can_ask
        """Whether there is a terminal to ask on; it is not called without one."""
        self.refused = False
        self.is_stopped: Callable[[], bool] = lambda: False
        """Set by the conversation: true once the run was stopped."""
        self._read_line = read_line or _line_of_stdin

    def __call__(self, name: str, arguments: dict[str, Any]) -> bool:
        """Return whether the call may run."""
        agreed = self._ask(name, arguments)
        self.refused |= not agreed
        return agreed

    def _ask(self, name: str, arguments: Mapping[str, Any]) -> bool:
        # On a line of its own: the call as it was written ends without a line break.
        question = printable(f"\nRun {name} {dict(arguments)}? [y/N] ")
        answer = self._read_line(question, self.is_stopped)
        if answer is None:
            click.echo("no", err=True)
        return answer is not None and answer.strip().lower() in ("y", "yes")


def _line_of_stdin(question: str, is_stopped: Callable[[], bool]) -> str | None:
    click.echo(question, nl=False, err=True)
    while not is_stopped():
        if select.select([sys.stdin], [], [], _POLL_S)[0]:
            return sys.stdin.readline()
    return None
