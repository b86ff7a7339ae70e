"""Opens the transcript of a session: a new one, or one from a log that fits what is asked.

Knows the rules of resuming: another tokenizer or chat format, another system prompt and tools that
the session does not list are refused in one line; what only costs or degrades is noted in one line.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cedagent.agent.entries import HEAD_START, VERSION, head_problem
from cedagent.agent.log import Entry, LogFile, check_name
from cedagent.agent.results import Kept
from cedagent.agent.transcript import Transcript
from cedagent.chat.template import ChatFormat, ToolSpec
from cedagent.errors import ConfigError, SessionError
from cedagent.paths import sessions_dir

if TYPE_CHECKING:
    from cedagent.agent.agent import Agent


@dataclass(slots=True)
class Opened:
    """A transcript with what belongs to it."""

    transcript: Transcript
    log: LogFile | None
    kept: Kept
    notices: list[str] = field(default_factory=list)


def open_transcript(agent: Agent, name: str | None) -> Opened:
    """Open the session `name`, or a new one without a log; raises SessionError."""
    if name is None:
        head = new_head(agent, name="")
        return Opened(Transcript(head, fmt=agent.format, log=None), None, Kept())
    path = sessions_dir() / f"{check_name(name)}.jsonl"
    log = LogFile(path, begins=HEAD_START)
    kept = Kept(path.with_suffix(".results"))
    try:
        if not log.entries:
            transcript = Transcript(new_head(agent, name=name), fmt=agent.format, log=log)
            return Opened(transcript, log, kept, _notices(log))
        head = log.entries[0]
        problem = head_problem(head)
        if problem is not None:
            raise SessionError(
                f"session {name}: line 1 of {path}: {problem}; begin another session"
            )
        notes = _check(agent, head)
        fmt = _format(agent, head)
        transcript = Transcript.load(
            log.entries, fmt=fmt, log=log, vocab_size=agent.engine.vocab_size
        )
        notes += _check_model(agent, transcript)
        return Opened(transcript, log, kept, _notices(log) + notes)
    except BaseException:
        log.close()
        raise


def new_head(agent: Agent, *, name: str) -> Entry:
    """Return the first entry of a new session: everything that its ids depend on."""
    engine = agent.engine
    return {
        "kind": "head",
        "version": VERSION,
        "name": name,
        "created": time.time(),
        "system": agent.system,
        "tools": [spec_as_json(spec) for spec in agent.specs],
        "chat_format": engine.chat_format,
        "thinking": agent.format.thinking,
        "effort": agent.format.effort,
        "model": engine.model_dir.name,
        "model_digest": engine.model_digest,
        "tokenizer_digest": agent.tokenizer.digest,
        "seed": agent.draw_seed(),
        "parent": None,
        "ids": agent.format.begin(agent.system, agent.specs),
    }


def fork_transcript(
    old: Transcript,
    kept: Kept,
    *,
    name: str | None,
    parent: str | None,
    turns: int | None,
    seed: int | None,
) -> Opened:
    """Copy a transcript, whole or its first turns, under another name; raises SessionError."""
    starts = old.turn_starts
    n_kept = len(starts) if turns is None else turns + len(starts) if turns < 0 else turns
    if not 0 <= n_kept <= len(starts):
        raise SessionError(
            f"fork: turns={turns}; expected between {-len(starts)} and {len(starts)}"
        )
    parts = old.parts if n_kept == len(starts) else old.parts[: starts[n_kept]]
    entries = [part.entry for part in parts]
    head = old.head | {"name": name or "", "created": time.time()}
    head["parent"] = {"name": parent, "entries": len(entries)}
    if seed is not None:
        head["seed"] = seed
    log = None if name is None else _new_log(name)
    copies = Kept(log.path.with_suffix(".results") if log else None)
    if log is not None:
        log.append([head, *entries])
    kept.copy_to(copies)
    transcript = Transcript.load([head, *entries], fmt=old.format, log=log, vocab_size=None)
    return Opened(transcript, log, copies, [log.notice] if log and log.notice else [])


def _new_log(name: str) -> LogFile:
    log = LogFile(sessions_dir() / f"{check_name(name)}.jsonl", begins=HEAD_START)
    if log.entries:
        log.close()
        raise SessionError(f"session {name} exists; fork under another name")
    # Left behind by a session that was removed by hand.
    shutil.rmtree(log.path.with_suffix(".results"), ignore_errors=True)
    return log


def spec_as_json(spec: ToolSpec) -> dict[str, Any]:
    """Return a tool's spec as plain values."""
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": _plain(spec.parameters),
        "examples": [[question, _plain(arguments)] for question, arguments in spec.examples],
    }


def specs_of(head: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """Return the frozen tools of a session."""
    return tuple(
        ToolSpec(
            item["name"],
            item["description"],
            item["parameters"],
            tuple((question, arguments) for question, arguments in item["examples"]),
        )
        for item in head["tools"]
    )


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, ensure_ascii=False))


def _notices(log: LogFile) -> list[str]:
    notes = [log.notice] if log.notice else []
    if log.dropped_bytes:
        what = "the last entry was cut off and is left out"
        if not log.entries:
            what = "its first entry was cut off; it begins anew"
        notes.append(f"session {log.path.stem}: {what}")
    return notes


def _check(agent: Agent, head: Entry) -> list[str]:
    name = head["name"]
    for key, ours, what in (
        ("tokenizer_digest", agent.tokenizer.digest, "tokenizer"),
        ("chat_format", agent.engine.chat_format, "chat format"),
    ):
        if head[key] != ours:
            raise SessionError(
                f"session {name}: its {what} is another one ({_short(head[key])}) than this "
                f"model's ({_short(ours)}); resume it with {head['model']} or begin another session"
            )
    if agent.system is not None and agent.system != head["system"]:
        raise SessionError(
            f"session {name}: it has another system prompt, which stays as it is; "
            "leave the system prompt out or begin another session"
        )
    return _check_tools(agent.specs, head, name)


def _format(agent: Agent, head: Entry) -> ChatFormat:
    """Return the chat format as the session began with it, unless another way is asked for."""
    thinking, effort = bool(head.get("thinking")), head.get("effort")
    for what, asked, ours, theirs in (
        ("thinking", agent.thinking, agent.format.thinking, thinking),
        ("effort", agent.effort, agent.format.effort, effort),
    ):
        if asked is not None and ours != theirs:
            raise SessionError(
                f"session {head['name']}: it began with {what} {_said(theirs)}, which stays as it "
                f"is, got {_said(ours)}; leave {what} out or begin another session"
            )
    try:
        return agent.format_of(thinking=thinking, effort=effort)
    except ConfigError as error:
        raise SessionError(f"session {head['name']}: {error}; begin another session") from None


def _said(value: bool | int | None) -> str:
    return str(value) if value and value is not True else "on" if value else "off"


def _check_tools(specs: Sequence[ToolSpec], head: Entry, name: str) -> list[str]:
    listed = {item["name"]: item for item in head["tools"]}
    # `more` comes and goes with the other tools; nobody asked for it by name.
    given = {spec.name: spec_as_json(spec) for spec in specs}
    new = sorted(given.keys() - listed.keys() - {"more"})
    if new:
        raise SessionError(
            f"session {name}: it does not list the tool{'s'[: len(new) > 1]} {', '.join(new)}, and "
            "its tools stay as they are; leave them out or begin another session"
        )
    changed = sorted(key for key, spec in given.items() if key in listed and spec != listed[key])
    notes = []
    if changed:
        notes.append(
            f"session {name}: {', '.join(changed)} changed since it began; "
            "the model goes on with the old description"
        )
    missing = sorted(listed.keys() - given.keys() - {"more"})
    if missing:
        notes.append(
            f"session {name}: {', '.join(missing)} not registered now; "
            "calls will be answered with an error"
        )
    return notes


def _check_model(agent: Agent, transcript: Transcript) -> list[str]:
    if transcript.model_digest == agent.engine.model_digest:
        return []
    return [
        f"session {transcript.head['name']}: another model than before "
        f"({_short(transcript.model_digest)}, now {_short(agent.engine.model_digest)}); "
        "what the store does not have of it is encoded again"
    ]


def _short(digest: str) -> str:
    return digest[:12]
