"""`cedagent tools check`: what a model is told about tools, and what that costs in tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from cedagent.cli.options import json_option, model_option
from cedagent.cli.render import warn
from cedagent.cli.report import print_json
from cedagent.errors import UsageError

if TYPE_CHECKING:
    from cedagent.chat.tokenizer import Tokenizer


@click.group()
def tools() -> None:
    """Check tools: schemas and token cost."""


@tools.command()
@click.argument("sources", nargs=-1, metavar="FILE.py|MODULE[:TOOL]...")
@model_option
@json_option
def check(sources: tuple[str, ...], model: str, as_json: bool) -> int:
    """Print tools' schemas, or what is wrong.

    Without an argument, those of the built-in tools. The cost in tokens is counted with
    MODEL's tokenizer, where that model is there.
    """
    from cedagent.agent.resume import spec_as_json
    from cedagent.cli.loading import load_tools

    loaded = load_tools(sources, builtin=not sources)
    specs = [spec_as_json(tool.spec) for tool in loaded]
    if sources:
        taken = {tool.name for tool in load_tools([], builtin=True)}
        for name in sorted(taken & {tool.name for tool in loaded}):
            warn(
                f"{name} is also a built-in tool: chat takes it with --no-builtin-tools alone; "
                "rename it with tool(name=...)"
            )
    tokenizer = _tokenizer(model)
    rows = [
        {**spec, "tokens": len(tokenizer.encode(_compact(spec))) if tokenizer else None}
        for spec in specs
    ]
    if as_json:
        print_json(rows)
        return 0
    for row in rows:
        cost = f"  {row['tokens']:,} tokens" if row["tokens"] is not None else ""
        click.echo(click.style(row["name"], bold=True) + cost)
        click.echo(f"  {row['description'] or '(no description)'}".replace("\n", "\n  "))
        click.echo("  " + json.dumps(row["parameters"], ensure_ascii=False))
        for question, arguments in row["examples"]:
            click.echo(f"  example: {question} -> {json.dumps(arguments, ensure_ascii=False)}")
    return 0


def _compact(spec: dict[str, object]) -> str:
    return json.dumps(spec, ensure_ascii=False, separators=(", ", ": "))


def _tokenizer(model: str) -> Tokenizer | None:
    from cedagent.chat.tokenizer import Tokenizer
    from cedagent.model.locate import resolve_model

    try:
        return Tokenizer.load(resolve_model(model))
    except UsageError:
        return None
