"""The entry point: a lazy group of commands, and the one place where errors become exit codes.

It imports a command's module when that command is named, so `cedagent --help` reads little else.
Whatever goes wrong ends as one line on stderr: exit code 2 for a wrong argument, file or name, 3
for a limit, 4 for a refused call, 5 for the engine, 130 for an interrupt, 143 and 129 for SIGTERM
and SIGHUP.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from cedagent import __version__
from cedagent.cli.endings import complain, complain_of_file, open_standard_streams, reader_gone
from cedagent.cli.interrupt import Terminated, end_on_termination
from cedagent.errors import CedError
from cedagent.threads import spin_briefly

COMMANDS: dict[str, tuple[str, str]] = {
    "chat": ("cedagent.cli.chat:chat", "Talk with the model; tools and sessions included."),
    "run": ("cedagent.cli.chat:run", "Answer one prompt and exit."),
    "warm": ("cedagent.cli.warm:warm", "Encode system prompts ahead of time."),
    "kv": ("cedagent.cli.kv:kv", "Look into the prefix store, share and clean it."),
    "sessions": ("cedagent.cli.sessions:sessions", "List, show and remove sessions."),
    "tools": ("cedagent.cli.tools:tools", "Check tools: schemas and token cost."),
    "model": ("cedagent.cli.model:model", "Get, convert, train and judge models."),
    "doctor": ("cedagent.cli.doctor:doctor", "Say what this machine and installation can do."),
    "bench": ("cedagent.cli.bench:bench", "Measure the time to the first token."),
}
"""Command name -> ("module:attribute", one line of help)."""


class LazyGroup(click.Group):
    """A group that knows its commands' names and help lines without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="cedagent %(version)s")
def cli() -> None:
    """A tool-calling agent on an in-process CED model whose KV survives a restart."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; errors become one line on stderr."""
    try:
        return _run(argv)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except Terminated as error:
        return error.exit_code
    except CedError as error:
        return complain(str(error), exit_code=error.exit_code)
    except SystemExit:
        # click's way to end when the reader has gone (`cedagent kv ls | head`).
        return reader_gone()
    except OSError as error:
        return reader_gone() if error.errno == errno.EPIPE else complain_of_file(error)
    except Exception as error:  # the top: a bug of ours must end as a line, not a screenful
        if os.environ.get("CEDAGENT_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        return complain(f"unexpected {what} (CEDAGENT_DEBUG=1 shows where)", exit_code=5)


def _run(argv: Sequence[str] | None) -> int:
    try:
        code: object = cli.main(argv, "cedagent", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        # A group without a command asks what there is, which is no mistake.
        click.echo(error.ctx.get_help())
        return 0
    except click.ClickException as error:
        return complain(error.format_message(), where=getattr(error, "ctx", None))
    sys.stdout.flush()
    return code if isinstance(code, int) else 0


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with these arguments (the process's own by default) and exit."""
    spin_briefly()
    end_on_termination()
    if not open_standard_streams():
        sys.exit(complain("standard output is closed: expected a terminal, a file or a pipe"))
    code = run(argv)
    # What there was to stop is over: Ctrl-C while Python tidies up must not change the exit code.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


if __name__ == "__main__":
    main()
