"""The chat on a terminal: line editing, history, slash commands, Ctrl-C and Ctrl-D.

It reads lines and passes them on; what a line does is decided by the conversation and by the table
of slash commands. Ctrl-C never ends the chat: during an answer it stops the answer, at the prompt
it says how to leave.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import click

from cedagent.cli import slash
from cedagent.cli.interrupt import ENDINGS, Terminated, end_on_termination
from cedagent.cli.keyboard import Keyboard
from cedagent.cli.render import warn
from cedagent.errors import CedError
from cedagent.paths import data_home

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History

    from cedagent.cli.conversation import Conversation


def converse(conversation: Conversation, keyboard: Keyboard) -> int:
    """Read lines until Ctrl-D or /quit; return the exit code 0."""
    from cedagent.cli.history import open_history

    history, notice = open_history(data_home() / "history")
    if notice is not None:
        warn(notice)
    reader = _reader(conversation, history)
    # What was typed for after an answer is not meant for after its end by Ctrl-C.
    conversation.on_stop = keyboard.discard
    click.echo(f"{conversation.describe()} /help lists the commands, Ctrl-D leaves.")
    while True:
        try:
            line = _read(reader, keyboard)
        except KeyboardInterrupt:
            keyboard.discard()
            click.echo("Ctrl-C stops an answer; to leave, press Ctrl-D or type /quit.")
            continue
        except EOFError:
            return 0
        _tell_once(history)
        try:
            if not line.strip():
                continue
            if slash.is_command(line):
                slash.run(conversation, line.strip())
            else:
                conversation.say(line.strip())
        except slash.Leave:
            return 0
        except KeyboardInterrupt:
            # A second Ctrl-C while the first was being obeyed: the run has ended, the chat goes on.
            keyboard.discard()
            warn("interrupted; the session is kept")
        except CedError as error:
            warn(str(error))


def _read(reader: PromptSession[str], keyboard: Keyboard) -> str:
    """Edit one message, beginning with what was typed ahead."""
    from prompt_toolkit.input.typeahead import get_typeahead

    endings: list[int] = []
    with keyboard.given_away() as typed:
        try:
            return reader.prompt(
                "> ", default=typed, pre_run=lambda: _leave_on_termination(reader, endings)
            )
        except EOFError:
            if endings:
                raise Terminated(endings[0]) from None
            raise
        finally:
            # The event loop leaves the default handlers behind.
            end_on_termination()
            # What came with the Enter key belongs to the next message, it is none of its own.
            keyboard.feed("".join(key.data for key in get_typeahead(reader.input)))


def _leave_on_termination(reader: PromptSession[str], endings: list[int]) -> None:
    """Let SIGTERM and SIGHUP end the prompt as Ctrl-D does, and note which it was.

    An exception raised by a signal handler would end in the editor's event loop, which shows it.
    """

    def on_ending(signum: int) -> None:
        if not endings and reader.app.is_running:
            endings.append(signum)
            reader.app.exit(exception=EOFError())

    loop = asyncio.get_running_loop()
    for signum in ENDINGS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            loop.add_signal_handler(signum, on_ending, signum)


def _tell_once(history: History) -> None:
    from cedagent.cli.history import PromptHistory

    if isinstance(history, PromptHistory) and history.notice is not None:
        warn(history.notice)
        history.notice = None


def _reader(conversation: Conversation, history: History) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import ColorDepth

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        history=history,
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
