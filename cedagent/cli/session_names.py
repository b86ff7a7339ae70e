"""Names of sessions: a fresh one, the last one, and what a log says before it is opened."""

from __future__ import annotations

import time
from typing import Any

from cedagent.agent.log import check_name, read_entries
from cedagent.errors import SessionError
from cedagent.paths import sessions_dir


def fresh_name(base: str = "") -> str:
    """Return a session name that is not in use, from the clock or from another name."""
    stem = f"{base}-fork" if base else time.strftime("%Y%m%d-%H%M%S")
    name, n = stem, 1
    while (sessions_dir() / f"{name}.jsonl").exists():
        n += 1
        name = f"{stem}-{n}"
    return name


def last_session() -> str:
    """Return the name of the session used last; raises SessionError when there is none."""
    logs = sorted(sessions_dir().glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise SessionError("no session to resume yet; start one with: cedagent chat")
    return logs[-1].stem


def entries_of(name: str) -> list[dict[str, Any]]:
    """Return a session's log as it is now, nothing when there is none of that name.

    It takes no lock. Raises SessionError for what is no name, and for a damaged log.
    """
    path = sessions_dir() / f"{check_name(name)}.jsonl"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SessionError(f"session {name}: cannot read {path}: {error.strerror}") from None
    return read_entries(data, path=path)[0]


def listed_tools(name: str | None) -> frozenset[str] | None:
    """Return the tools that a session lists in its head, None when there is no such session."""
    if name is None:
        return None
    try:
        return frozenset(tool["name"] for tool in entries_of(name)[0]["tools"])
    # Opening the session says what is wrong with it, in its own words.
    except (SessionError, LookupError, TypeError):
        return None
