"""Which session a chat begins with, as its options say it: all that can be told without a model.

It reads the logs' heads, loads nothing and opens nothing, so that a wrong name, turn, seed or tool
is told at once and not after the model is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cedagent.cli.session_names import entries_of, last_session, listed_tools
from cedagent.errors import UsageError

if TYPE_CHECKING:
    from cedagent.agent.tools import Tool


@dataclass(frozen=True, slots=True)
class Opening:
    """The session to begin with."""

    name: str | None
    """Its name; None takes one from the clock."""
    must_exist: bool
    origin: str | None
    """The session that it is a copy of."""
    turns: int | None
    """Turns of the origin to copy; None takes all of them."""


def plan_opening(options: Mapping[str, Any], tools: Sequence[Tool]) -> Opening:
    """Return what `-c`, `--session` and `--fork` ask for; raises UsageError and SessionError."""
    resume, name, fork = options["resume"], options["session"], options["fork"]
    given = [resume, name is not None, fork is not None]
    if sum(given) > 1 and (resume or fork is None or name is None):
        raise UsageError("-c, --session and --fork: give one (or --fork with --session NEWNAME)")
    if resume:
        name = last_session()
    origin, turns = _fork(fork) if fork is not None else (None, None)
    entries = entries_of(name) if name is not None else []
    if entries and origin is not None:
        raise UsageError(f"session {name} exists; name a new one, or resume it without --fork")
    if entries and options["seed"] not in (None, entries[0].get("seed")):
        raise UsageError(
            f"--seed {options['seed']}: session {name} keeps the seed it began with "
            f"({entries[0].get('seed')}); leave --seed out, or --fork the session with another"
        )
    kept = entries or ([] if origin is None else entries_of(origin))
    if kept:
        _check_reasoning(options, name if entries else origin, kept[0])
    names = listed_tools(name if entries else origin)
    check_tool_choice(options["tool_choice"], _names(tools) if names is None else names)
    return Opening(name, resume, origin, turns)


def _check_reasoning(options: Mapping[str, Any], name: str | None, head: Mapping[str, Any]) -> None:
    """Raise UsageError when a session does not reason as the options ask."""
    thinking, effort = bool(head.get("thinking")), head.get("effort")
    if options["thinking"] not in (None, thinking):
        asked = "--thinking" if options["thinking"] else "--no-thinking"
        began = f"{'with' if thinking else 'without'} --thinking"
    elif options["effort"] not in (None, effort):
        asked, began = "--effort", f"with an effort of {effort}"
    else:
        return
    raise UsageError(
        f"{asked}: session {name} began {began} and goes on so; leave {asked} out, or begin "
        "another session"
    )


def check_tool_choice(choice: str, names: Collection[str]) -> None:
    """Raise UsageError when a session that lists these tools cannot be told to choose so."""
    listed = ", ".join(sorted(names)) or "no tools"
    if choice not in {"auto", "none", "required", *names}:
        raise UsageError(
            f"--tool-choice {choice}: expected auto, none, required or one of {listed}"
        )
    if choice == "required" and not names:
        raise UsageError("--tool-choice required: there are no tools; offer some with -t")


def _names(tools: Sequence[Tool]) -> set[str]:
    from cedagent.agent.tools import as_tools

    # Also tells of two tools with one name.
    names = {tool.name for tool in as_tools(tools)}
    return names | {"more"} if any(tool.paged for tool in tools) else names


def _fork(text: str) -> tuple[str, int | None]:
    origin, at, turns = text.partition("@")
    entries = entries_of(origin)
    if not entries:
        raise UsageError(f"--fork {text}: no session {origin}; `cedagent sessions ls` lists them")
    if not at:
        return origin, None
    n_turns = sum(entry.get("role") == "user" for entry in entries)
    try:
        n = int(turns)
    except ValueError:
        n = n_turns + 1
    if not -n_turns <= n <= n_turns:
        raise UsageError(
            f"--fork {text}: expected a number of turns after @, {-n_turns} to {n_turns}, "
            f"got {turns or 'nothing'}"
        )
    return origin, n
