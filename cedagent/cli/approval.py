"""Asking before a tool runs that wants to be asked for: on a terminal a question, else a refusal.

It is called from the thread of the run, so it never blocks on input alone: a Ctrl-C that stops the
run also answers the question, with no.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from cedagent.cli.render import printable, warn

_POLL_S = 0.1


class Approval:
    """The agent's `approve` callback; `refused` tells whether any call was turned down."""

    def __init__(self, *, can_ask: bool) -> None:
        self.refused = False
        self.is_stopped: Callable[[], bool] = lambda: False
        """Set by the conversation: true once the run was stopped."""
        self._can_ask = can_ask

    def __call__(self, name: str, arguments: dict[str, Any]) -> bool:
        """Return whether the call may run."""
        agreed = self._can_ask and self._ask(name, arguments)
        if not self._can_ask:
            warn(f"{name} was not run: it asks for an approval, and there is no terminal to ask on")
        self.refused |= not agreed
        return agreed

    def _ask(self, name: str, arguments: Mapping[str, Any]) -> bool:
        click.echo(printable(f"Run {name} {dict(arguments)}? [y/N] "), nl=False, err=True)
        while not self.is_stopped():
            if select.select([sys.stdin], [], [], _POLL_S)[0]:
                return sys.stdin.readline().strip().lower() in ("y", "yes")
        click.echo("no", err=True)
        return False
