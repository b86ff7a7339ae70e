"""A session's log as a person reads it: messages, answers, calls and results, one after the other.

It decodes with the tokenizer of the session's model; without that, outputs are counts of tokens.
Invariant: reasoning is marked as such, dimmed and with a word, also where it was cut off.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from cedagent.chat.control import Mark
from cedagent.cli.render import printable
from cedagent.errors import UsageError

if TYPE_CHECKING:
    from cedagent.chat.tokenizer import Tokenizer


def lines_of(entries: Sequence[dict[str, Any]], tokenizer: Tokenizer | None) -> Iterator[str]:
    """Yield the lines that show a log's entries."""
    is_reasoning = False
    for entry in entries:
        if entry.get("kind") == "append" and entry["ids"]:
            # An append of zero tokens goes on with the open turn.
            is_reasoning = bool(entries[0].get("thinking"))
        match entry.get("kind"), entry.get("role"):
            case "head", _:
                tools = ", ".join(tool["name"] for tool in entry["tools"])
                yield f"# {entry['name']}: model {entry['model']}, tools {tools or 'none'}"
                if entry["system"]:
                    yield f"# {printable(entry['system'])}"
            case "append", "user":
                yield f"> {printable(entry.get('text', ''))}"
            case "append", "results":
                for call, result in zip(
                    entry.get("calls", ()), entry.get("results", ()), strict=False
                ):
                    yield f"  {call['name']} = {printable(result)}"
            case "output", _:
                is_reasoning = yield from _output(entry, tokenizer, is_reasoning=is_reasoning)
            case "model", _:
                yield f"# another model from here on: {entry['digest'][:12]}"


def tokenizer_of(head: dict[str, Any], model: str | None) -> Tokenizer | None:
    """Return the tokenizer that wrote a session, None when its model is not here.

    Raises UsageError when `model` is named and its tokenizer is another one.
    """
    from cedagent.chat.tokenizer import Tokenizer
    from cedagent.model.locate import resolve_model

    try:
        tokenizer = Tokenizer.load(resolve_model(model or head["model"]))
    except UsageError:
        if model is not None:
            raise
        return None
    if tokenizer.digest == head["tokenizer_digest"]:
        return tokenizer
    if model is not None:
        raise UsageError(f"{model} has another tokenizer than the session's model {head['model']}")
    return None


def _output(
    entry: dict[str, Any], tokenizer: Tokenizer | None, *, is_reasoning: bool
) -> Generator[str, None, bool]:
    """Yield an output's lines; return whether its reasoning is still open."""
    n_tokens = entry["n"]
    if tokenizer is None:
        yield f"({n_tokens} tokens; name the session's model with -m to read them)"
    else:
        ids = entry["ids"][:n_tokens]
        if is_reasoning:
            end = tokenizer.control_id(Mark.END_THINK)
            is_reasoning = end not in ids
            n_reasoning = len(ids) if is_reasoning else ids.index(end)
            yield from _reasoning(_spelled(tokenizer, ids[:n_reasoning]))
            ids = ids[n_reasoning + 1 :]
        text = _spelled(tokenizer, ids)
        if text:
            yield text
    if entry["ending"] != "end":
        yield f"({entry['ending']})"
    return is_reasoning


def _reasoning(text: str) -> Iterator[str]:
    if text:
        shown = "(reasoning) " + text.replace("\n", "\n    ")
        yield shown if os.environ.get("NO_COLOR") else click.style(shown, dim=True)


def _spelled(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return what ids say, control tokens by their names but for the one that ends them."""
    if ids and ids[-1] in tokenizer.control_ids:
        ids = ids[:-1]
    parts = (tokenizer.token_bytes(i) or tokenizer.token_name(i).encode() for i in ids)
    return printable(b"".join(parts).decode(errors="replace")).strip()
