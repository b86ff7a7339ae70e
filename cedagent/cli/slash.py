"""Slash commands of the chat: a table of names, what each does, and one line of help.

A line whose first word is a slash and letters never reaches the model: an unknown command is an
error line. A leading space, or a path, makes it text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from cedagent.cli.render import printable
from cedagent.errors import UsageError

if TYPE_CHECKING:
    from cedagent.cli.conversation import Conversation


_COMMAND = re.compile(r"/[A-Za-z]*(?:\s|$)")


class Leave(Exception):
    """The user asked to leave the chat."""


@dataclass(frozen=True, slots=True)
class Slash:
    """One slash command."""

    usage: str
    help: str
    action: Callable[[Conversation, str], None]


def is_command(line: str) -> bool:
    """Return whether a line is a slash command, known or not: no path and no text."""
    return _COMMAND.match(line) is not None


def run(conversation: Conversation, line: str) -> None:
    """Run one slash command; raises UsageError when there is none of that name, Leave on /quit."""
    name, _, argument = line.replace("\n", " ").partition(" ")
    command = TABLE.get(name)
    if command is None:
        raise UsageError(
            f"no command {printable(name)}; /help lists them (nothing was sent; a space before it "
            "sends it as text)"
        )
    command.action(conversation, argument.strip())


def names() -> list[str]:
    """Return the commands' names, as typed."""
    return list(TABLE)


def _help(conversation: Conversation, argument: str) -> None:
    for command in TABLE.values():
        click.echo(f"  {command.usage:<16} {command.help}")
    click.echo("  Ctrl-C stops the answer, Ctrl-D leaves, Alt-Enter starts a new line.")


def _new(conversation: Conversation, argument: str) -> None:
    conversation.open(argument or None, must="be new")
    click.echo(conversation.describe())


def _sessions(conversation: Conversation, argument: str) -> None:
    from cedagent.cli.sessions import print_sessions

    print_sessions(current=conversation.name)


def _switch(conversation: Conversation, argument: str) -> None:
    if not argument:
        raise UsageError("/switch needs a session's name; /sessions lists them")
    conversation.open(argument, must="exist")
    click.echo(conversation.describe())


def _fork(conversation: Conversation, argument: str) -> None:
    try:
        turns = int(argument) if argument else None
    except ValueError:
        raise UsageError(f"expected a number of turns to fork at, got {argument}") from None
    conversation.fork(turns)
    click.echo(conversation.describe())


def _continue(conversation: Conversation, argument: str) -> None:
    conversation.say(None)


def _tools(conversation: Conversation, argument: str) -> None:
    for name, description in conversation.tools():
        click.echo(f"  {name:<16} {printable(description.splitlines()[0] if description else '')}")


def _usage(conversation: Conversation, argument: str) -> None:
    for line in conversation.usage_lines():
        click.echo(f"  {line}")


def _quit(conversation: Conversation, argument: str) -> None:
    raise Leave


TABLE = {
    "/help": Slash("/help", "this list", _help),
    "/new": Slash("/new [NAME]", "start a new session", _new),
    "/sessions": Slash("/sessions", "list the sessions", _sessions),
    "/switch": Slash("/switch NAME", "go on with another session", _switch),
    "/fork": Slash("/fork [N]", "go on in a copy of this session, up to turn N", _fork),
    "/continue": Slash("/continue", "go on where a limit or a crash stopped", _continue),
    "/tools": Slash("/tools", "list the tools of this session", _tools),
    "/usage": Slash("/usage", "tokens of this session: reused, encoded, sampled", _usage),
    "/quit": Slash("/quit", "leave (as Ctrl-D)", _quit),
}
