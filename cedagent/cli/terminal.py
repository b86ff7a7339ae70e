"""The chat on a terminal: line editing, history, slash commands, Ctrl-C and Ctrl-D.

It reads lines and passes them on; what a line does is decided by the conversation and by the table
of slash commands. Ctrl-C never ends the chat: during an answer it stops the answer, at the prompt
it says how to leave.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from cedagent.cli import slash
from cedagent.cli.render import warn
from cedagent.errors import CedError
from cedagent.paths import data_home

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from cedagent.cli.conversation import Conversation


def converse(conversation: Conversation) -> int:
    """Read lines until Ctrl-D or /quit; return the exit code 0."""
    reader = _reader(conversation)
    click.echo(f"{conversation.describe()} /help lists the commands, Ctrl-D leaves.")
    while True:
        try:
            line = reader.prompt("> ").strip()
        except KeyboardInterrupt:
            click.echo("Ctrl-C stops an answer; to leave, press Ctrl-D or type /quit.")
            continue
        except EOFError:
            return 0
        try:
            if not line:
                continue
            if line.startswith("/"):
                slash.run(conversation, line)
            else:
                conversation.say(line)
        except slash.Leave:
            return 0
        except KeyboardInterrupt:
            # A second Ctrl-C while the first was being obeyed: the run has ended, the chat goes on.
            warn("interrupted; the session is kept")
        except CedError as error:
            warn(str(error))


def _reader(conversation: Conversation) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import ColorDepth

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    history = data_home() / "history"
    history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # What was typed is as private as the sessions are; FileHistory would use the umask.
    os.close(os.open(history, os.O_CREAT | os.O_WRONLY, 0o600))
    return PromptSession(
        history=FileHistory(str(history)),
        # Multi-line, so that a pasted text stays one message; Enter sends, Alt-Enter breaks a line.
        multiline=True,
        key_bindings=keys,
        completer=WordCompleter(slash.names(), sentence=True),
        complete_while_typing=False,
        enable_history_search=True,
        bottom_toolbar=lambda: conversation.footer,
        color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
        prompt_continuation="  ",
    )
