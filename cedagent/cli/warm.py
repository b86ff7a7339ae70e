"""`cedagent warm FILE...`: encode system prompts ahead of time and pin them in the store.

A chat with the same system prompt and tools then encodes only its user's turn and the partial block
before it. Warming again is a hit and costs nothing; exit code 0 means that everything is stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cedagent.cli.options import (
    json_option,
    model_option,
    read_text,
    thinking_options,
    weights_option,
)
from cedagent.cli.report import print_json, print_table
from cedagent.errors import EngineError

if TYPE_CHECKING:
    from cedagent.agent.tools import Tool
    from cedagent.engine import Engine
    from cedagent.model.weights_choice import WeightsChoice

BLOCK = 128
"""Tokens of one block of the store; a partial one is not kept."""

LABEL = "warm:"
"""What the label of a warmed prompt begins with."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """What warming one system prompt did."""

    file: str
    tokens: int
    """Length of the system turn with its tools."""
    hit: bool
    """Every whole block of it was known already."""
    encoded: int
    seconds: float


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("-t", "--tools", "tool_sources", multiple=True, metavar="FILE.py|MODULE[:TOOL]",
              help="Tools that the chats will have, as in chat -t.")  # fmt: skip
@click.option("--no-builtin-tools", is_flag=True, help="As in chat.")
@click.option("--kv", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Folder of the prefix store (in the cache folder by default).")  # fmt: skip
@model_option
@weights_option
@thinking_options
@json_option
def warm(
    files: tuple[Path, ...],
    tool_sources: tuple[str, ...],
    no_builtin_tools: bool,
    kv: Path | None,
    model: str,
    weights: WeightsChoice,
    thinking: bool | None,
    effort: int | None,
    as_json: bool,
) -> int:
    """Encode system prompts ahead of time; without a FILE, the one that chat uses by default.

    A FILE holds what chat is given as -s @FILE.
    """
    from cedagent.cli.loading import ensure_model, load_tools, open_engine
    from cedagent.cli.render import warn

    texts: list[tuple[str, str | None]] = [("(default)", None)]
    if files:
        texts = [(_shown(path), read_text(path, what="warm")) for path in files]
    tools = load_tools(tool_sources, builtin=not no_builtin_tools)
    ensure_model(model)
    engine = open_engine(model, kv=kv, weights=weights)
    try:
        reasoning = {"thinking": thinking, "effort": effort}
        prompts = [_prompt(engine, tools, name, text, reasoning) for name, text in texts]
        _check_writable(engine, prompts)
        done = [_warm(engine, name, ids) for name, ids in prompts]
        notices = list(engine.notices)
        lost = [name for name, ids in prompts if not _is_stored(engine, ids)]
    finally:
        engine.close()
    if lost:
        raise EngineError("; ".join([f"not everything of {', '.join(lost)} is stored", *notices]))
    for notice in notices:
        warn(notice)
    if as_json:
        print_json(done)
    else:
        rows = [
            [w.file, f"{w.tokens:,}", "hit" if w.hit else "encoded", f"{w.encoded:,}",
             f"{w.seconds:.2f} s"]
            for w in done
        ]  # fmt: skip
        print_table(["file", "tokens", "store", "encoded", "time"], rows)
    return 0


def _shown(path: Path) -> str:
    """Return a file's name as a text, with marks for bytes that are no UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def _label(name: str) -> str:
    """Return a prompt's label: what the store has room for of its name, which is its end."""
    from ced_kvstore.results import MAX_TEXT_BYTES

    room = MAX_TEXT_BYTES - len(LABEL)
    return LABEL + name.encode()[-room:].decode("utf-8", "ignore")


def _prompt(
    engine: Engine, tools: list[Tool], name: str, text: str | None, reasoning: Mapping[str, Any]
) -> tuple[str, list[int]]:
    from cedagent.agent.agent import Agent

    agent = Agent(engine, system=text, tools=tools, **reasoning)
    return name, agent.format.begin(agent.system, agent.specs)


def _check_writable(engine: Engine, prompts: list[tuple[str, list[int]]]) -> None:
    """Raise EngineError, before anything is encoded, when that would be thrown away."""
    if engine.store is not None and not engine.store.read_only:
        return
    if not all(_is_stored(engine, ids) for _, ids in prompts):
        why = "; ".join(engine.notices) or "the prefix store cannot be written"
        raise EngineError(f"nothing was encoded, for it could not be kept: {why}")


def _is_stored(engine: Engine, ids: list[int]) -> bool:
    blocks = len(ids) // BLOCK
    return not blocks or (engine.store is not None and engine.store.match(ids).blocks >= blocks)


def _warm(engine: Engine, name: str, ids: list[int]) -> Warmed:
    started = time.monotonic()
    used = engine.warm(ids, label=_label(name))
    seconds = time.monotonic() - started
    return Warmed(name, len(ids), used.encoded == 0, used.encoded, seconds)
