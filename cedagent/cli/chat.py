"""`cedagent chat` and `run`: on a terminal, for one prompt, or for the lines of a pipe.

It decides which of the three it is and how events are shown. In a pipe stdout holds the answer
alone, as text or as JSON lines; everything for people goes to stderr.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cedagent.cli import loading
from cedagent.cli.options import (
    kv_options,
    model_option,
    sampling_options,
    system_options,
    system_text,
    thinking_options,
    weights_option,
)
from cedagent.errors import UsageError

if TYPE_CHECKING:
    from cedagent.cli.conversation import Conversation
    from cedagent.cli.render import Renderer

Command = TypeVar("Command", bound=Callable[..., Any])


def _session_options(command: Command) -> Command:
    command = click.option("--jsonl", is_flag=True, help="Print events as JSON lines.")(command)
    command = click.option(
        "--pull", is_flag=True, help="Get the default model first, if it is not there."
    )(command)
    command = click.option(
        "--tool-choice",
        default="auto",
        show_default=True,
        metavar="auto|none|required|NAME",
        help="What the first output may call.",
    )(command)
    command = click.option(
        "--fork", metavar="NAME[@N]", help="Start from a copy of a session, up to its turn N."
    )(command)
    command = click.option("--session", metavar="NAME", help="Resume or begin this session.")(
        command
    )
    return click.option(
        "-c", "--continue", "resume", is_flag=True, help="Resume the last session."
    )(command)


@click.command()
@click.option("-p", "--prompt", metavar="TEXT|-", help="Answer this (- reads stdin) and exit.")
@model_option
@weights_option
@system_options
@thinking_options
@_session_options
@sampling_options
@kv_options
def chat(prompt: str | None, **options: Any) -> int:
    """Talk with the model; with -p or in a pipe, answer and exit."""
    return _start(prompt, options)


@click.command()
@click.argument("prompt", nargs=-1, required=True, metavar="PROMPT...|-")
@model_option
@weights_option
@system_options
@thinking_options
@_session_options
@sampling_options
@kv_options
def run(prompt: tuple[str, ...], **options: Any) -> int:
    """Answer one prompt and exit (chat -p)."""
    return _start(" ".join(prompt), options)


def _start(prompt: str | None, options: Mapping[str, Any]) -> int:
    from cedagent.cli.approval import Approval
    from cedagent.cli.conversation import Conversation, Setup
    from cedagent.cli.keyboard import Keyboard
    from cedagent.cli.opening import plan_opening
    from cedagent.cli.terminal import converse

    if isinstance(sys.stdin, io.TextIOWrapper):
        # A byte that is no UTF-8 becomes a replacement mark, not the end of the chat.
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    system = system_text(options["system"])
    if prompt == "-":
        prompt = sys.stdin.read()
    if prompt is not None and not prompt.strip():
        raise UsageError("the prompt is empty; expected some text")
    on_terminal = prompt is None and sys.stdin.isatty() and sys.stdout.isatty()
    on_terminal = on_terminal and not options["jsonl"]
    # All that can be wrong without the model is told before the model is loaded.
    builtin = [] if options["no_builtin_tools"] else loading.load_tools([], builtin=True)
    tools = loading.load_tools(options["tool_sources"], builtin=False)
    opening = plan_opening(options, [*builtin, *tools])
    loading.ensure_model(options["model"], pull=options["pull"], ask=on_terminal)
    with ExitStack() as held:
        keyboard = None
        if on_terminal:
            keyboard = held.enter_context(Keyboard.hold(sys.stdin.fileno()))
        can_ask = sys.stdin.isatty() and sys.stderr.isatty()
        approval = Approval(can_ask=can_ask, read_line=None if keyboard is None else keyboard.ask)
        engine = loading.open_engine(
            options["model"],
            kv=options["kv"],
            no_kv=options["no_kv"],
            weights=options["weights"],
        )
        held.callback(engine.close)
        setup = Setup(
            engine=engine,
            system=system,
            builtin=builtin,
            tools=tools,
            temperature=options["temperature"],
            top_p=options["top_p"],
            seed=options["seed"],
            max_tokens=options["max_tokens"],
            tool_choice=options["tool_choice"],
            thinking=options["thinking"],
            effort=options["effort"],
            approval=approval,
        )
        conversation = Conversation(setup, _renderer(options["jsonl"]))
        held.callback(conversation.close)
        conversation.begin(opening)
        if keyboard is not None:
            return converse(conversation, keyboard)
        return _pipe(conversation) if prompt is None else _answer(conversation, prompt)


def _answer(conversation: Conversation, prompt: str) -> int:
    code = conversation.say(prompt)
    if sys.stdout.isatty() and sys.stderr.isatty():
        click.secho(conversation.footer, dim=True, err=True)
    return code


def _pipe(conversation: Conversation) -> int:
    """Answer one prompt per line; the exit code is that of the first answer that did not end."""
    worst = 0
    for line in sys.stdin:
        if not line.strip():
            continue
        code = conversation.say(line.rstrip("\n"))
        worst = worst or code
        if code == 130:
            break
    return worst


def _renderer(jsonl: bool) -> Renderer:
    from cedagent.cli import render

    if jsonl:
        return render.Lines()
    if sys.stdout.isatty():
        return render.Terminal()
    return render.Plain()
