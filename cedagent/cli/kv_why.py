"""`cedagent kv why`: why a prompt or a session hits or misses.

It makes the ids that a chat with the same options would begin with; explain.py has the words.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedagent.cli.kv_folder import folder_option, is_store
from cedagent.cli.options import json_option, model_option, read_text, thinking_options
from cedagent.cli.report import print_json
from cedagent.errors import EngineError, UsageError
from cedagent.paths import kv_dir

if TYPE_CHECKING:
    from ced_kvstore import Explanation
    from cedagent.agent.tools import Tool
    from cedagent.engine import Engine


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--session", metavar="NAME", help="Explain this session's tokens.")
@click.option("-t", "--tools", "tool_sources", multiple=True, metavar="FILE.py|MODULE[:TOOL]",
              help="Tools of the system turn, as in chat -t.")  # fmt: skip
@click.option("--no-builtin-tools", is_flag=True, help="As in chat.")
@model_option
@thinking_options
@folder_option
@json_option
def why(
    file: Path | None,
    session: str | None,
    tool_sources: tuple[str, ...],
    no_builtin_tools: bool,
    model: str,
    thinking: bool | None,
    effort: int | None,
    folder: Path | None,
    as_json: bool,
) -> int:
    """Say why a prompt or a session hits or misses.

    FILE holds a system prompt; - stands for the default system prompt. Give what the chat is given:
    tools, --thinking and --effort are a part of the text.
    """
    from cedagent.cli import explain
    from cedagent.cli.loading import ensure_model, load_tools, open_engine

    if (file is None) == (session is None):
        raise UsageError("kv why: expected a FILE with a system prompt, or --session NAME")
    if session is not None and thinking is not None:
        raise UsageError(
            "kv why: expected --thinking with a FILE; a session goes on as it began, leave it out"
        )
    tools = load_tools(tool_sources, builtin=not no_builtin_tools)
    ensure_model(model)
    # An engine makes the store that it is given; where there is none, nothing has to be asked.
    is_there = is_store((folder or kv_dir()).expanduser())
    engine = open_engine(model, kv=folder if is_there else None, no_kv=not is_there)
    try:
        if session is not None:
            ids = explain.session_ids(session)
        else:
            ids = _system_ids(engine, tools, file, thinking=thinking, effort=effort)
        found = _found(engine, ids, is_there=is_there)
        lines = explain.lines_of(found, ids, engine.model_dir)
    finally:
        engine.close()
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(lines))
    return 0


def _found(engine: Engine, ids: list[int], *, is_there: bool) -> Explanation:
    from ced_kvstore import BLOCK_TOKENS, Explanation

    if engine.store is not None:
        return engine.store.explain(ids)
    if is_there:
        raise EngineError("; ".join(engine.notices) or "the prefix store cannot be opened")
    # What an empty store says.
    return Explanation("short" if len(ids) < BLOCK_TOKENS else "never_stored", 0, 0)


def _system_ids(
    engine: Engine,
    tools: list[Tool],
    file: Path | None,
    *,
    thinking: bool | None,
    effort: int | None,
) -> list[int]:
    """Return the ids of the system turn that `chat -s @FILE` begins with."""
    from cedagent.agent.agent import Agent

    text = None if file is None or str(file) == "-" else read_text(file, what="kv why")
    agent = Agent(engine, system=text, tools=tools, thinking=thinking, effort=effort)
    return agent.format.begin(agent.system, agent.specs)
