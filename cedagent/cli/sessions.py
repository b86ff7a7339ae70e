"""`cedagent sessions`: list, show and remove session logs.

It reads logs without locking them, so it works beside a running chat; only `rm` takes the lock.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cedagent.agent.log import LogFile, check_name, read_entries
from cedagent.cli.kv_drop import Dropped, drop_label
from cedagent.cli.kv_folder import folder_option, open_store
from cedagent.cli.options import json_option
from cedagent.cli.render import warn
from cedagent.cli.report import age, disk_bytes, print_json, print_table, size
from cedagent.errors import EngineError, SessionError
from cedagent.paths import sessions_dir

if TYPE_CHECKING:
    from ced_kvstore import Store


@dataclass(frozen=True, slots=True)
class Listed:
    """One session as the list shows it."""

    name: str
    turns: int
    tokens: int
    used: float
    """Seconds since the epoch."""
    model: str
    first: str
    """Beginning of the first message, or what is wrong with the log."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What removing one session did."""

    session: str
    log_bytes: int
    """Bytes of its log and its results."""
    dropped: Dropped | None
    """What went from the store; None when nothing of it was there, or could go."""
    kept: str | None = None
    """Why the store keeps its blocks."""

    @property
    def exit_code(self) -> int:
        """0 when all that was to go went."""
        if self.kept is not None:
            return EngineError.exit_code
        return 0 if self.dropped is None else self.dropped.exit_code


@click.group()
def sessions() -> None:
    """List, show and remove sessions."""


@sessions.command()
@json_option
def ls(as_json: bool) -> int:
    """List the sessions, the one used last first."""
    if as_json:
        print_json(listed())
        return 0
    print_sessions()
    return 0


@sessions.command()
@click.argument("name")
@click.option("-m", "--model", metavar="MODEL", help="The session's model, where it is elsewhere.")
@json_option
def show(name: str, model: str | None, as_json: bool) -> int:
    """Print what was said in a session."""
    entries = _entries(_path(name))
    if as_json:
        print_json(entries)
        return 0
    from cedagent.cli.transcript import lines_of, tokenizer_of

    for line in lines_of(entries, tokenizer_of(entries[0], model)):
        click.echo(line)
    return 0


@sessions.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--purge", is_flag=True, help="Take the bytes off the disk at once.")
@folder_option
@json_option
def rm(names: tuple[str, ...], purge: bool, folder: Path | None, as_json: bool) -> int:
    """Remove sessions, and the blocks of the store that only they used.

    Blocks that another session or a warmed prompt uses stay; so does what running programs looked
    up last. Exit code 5 when the store keeps what is to go, or --purge leaves bytes on the disk.
    """
    paths = {name: _path(name) for name in names}
    removed = []
    with ExitStack() as held:
        # All the locks first: a session that is open elsewhere is not pulled away from under it,
        # and then none of the others is.
        for path in paths.values():
            held.callback(LogFile(path, to_remove=True).close)
        store, kept = None, None
        try:
            store = open_store(folder)
        except EngineError as error:
            kept = str(error)
        if store is not None:
            held.enter_context(store)
        for name, path in paths.items():
            removed.append(_remove(name, path, store, kept, purge=purge))
            if not as_json:
                click.echo(_words(removed[-1]))
    if as_json:
        print_json(removed)
    option = " --purge" if purge else ""
    for each in removed:
        if each.kept is not None:
            again = f"repeat it with: cedagent kv rm session:{each.session}{option}"
            warn(f"sessions rm {each.session}: {each.kept}; {again}")
    return max(each.exit_code for each in removed)


def _remove(
    name: str, path: Path, store: Store | None, kept: str | None, *, purge: bool
) -> Removed:
    results = path.with_suffix(".results")
    log_bytes = path.stat().st_size + disk_bytes(results)
    path.unlink()
    shutil.rmtree(results, ignore_errors=True)
    dropped = None
    if store is not None:
        try:
            dropped = drop_label(store, f"session:{name}", purge=purge)
        except EngineError as error:
            # The log is what the user wanted gone, and the store still knows the label without it.
            kept = str(error)
    return Removed(name, log_bytes, dropped, kept)


def _words(removed: Removed) -> str:
    log = f"removed {removed.session}, its log of {size(removed.log_bytes)}"
    return log + (f", {removed.dropped.words}" if removed.dropped else "")


def listed() -> list[Listed]:
    """Return all sessions, the one used last first."""
    found = []
    for path in sessions_dir().glob("*.jsonl"):
        try:
            entries = _entries(path)
            turns = [e for e in entries if e.get("role") == "user"]
            tokens = sum(len(entry["ids"]) for entry in entries)
            first = turns[0].get("text", "") if turns else ""
            model = str(entries[0].get("model", ""))
        except (SessionError, LookupError, TypeError) as error:
            turns, tokens, first, model = [], 0, f"! {error}", ""
        used = path.stat().st_mtime
        found.append(Listed(path.stem, len(turns), tokens, used, model, first))
    return sorted(found, key=lambda session: -session.used)


def print_sessions(*, current: str = "") -> None:
    """Print the list of sessions; a star marks the current one."""
    from cedagent.cli.render import printable

    rows = []
    for s in listed():
        first = printable(" ".join(s.first.split()))
        name = f"{s.name} *" if s.name == current else s.name
        # What is wrong with a log is said in full.
        short = first if len(first) <= 48 or first.startswith("! ") else first[:47] + "…"
        rows.append([name, str(s.turns), f"{s.tokens:,}", age(s.used), short])
    if rows:
        print_table(["session", "turns", "tokens", "used", "begins"], rows)
    else:
        click.echo("No sessions yet; start one with: cedagent chat")


def _path(name: str) -> Path:
    path = sessions_dir() / f"{check_name(name)}.jsonl"
    if not path.is_file():
        raise SessionError(f"no session {name}; `cedagent sessions ls` lists them")
    return path


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SessionError(f"session {path.stem}: cannot read {path}: {error.strerror}") from None
    entries, _ = read_entries(data, path=path)
    if not entries:
        raise SessionError(f"session {path.stem}: {path} holds no whole entry")
    return entries
