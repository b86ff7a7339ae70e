"""`cedagent kv export` and `import`: a part of the store as one file that can be carried elsewhere.

Knows names of files and labels. What an archive may hold, the store decides.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedagent.cli import kv_screen
from cedagent.cli.kv_folder import folder_option, open_store
from cedagent.cli.kv_label import meant
from cedagent.cli.options import json_option
from cedagent.cli.render import warn
from cedagent.cli.report import count, print_json, size
from cedagent.errors import EngineError, UsageError

if TYPE_CHECKING:
    from ced_kvstore import Store


@click.command(name="export")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("labels", nargs=-1, metavar="[LABEL...]")
@folder_option
@json_option
def export(file: Path, labels: tuple[str, ...], folder: Path | None, as_json: bool) -> int:
    """Write what LABELs (from ls) need, or everything, to FILE.

    Whoever has the file can read the texts in it.
    """
    from ced_kvstore import StoreError

    _check_target(file)
    store = open_store(folder)
    if store is None:
        raise UsageError(f"kv export {file}: nothing is stored yet")
    with store:
        stats = store.stats()
        if not stats.anchors and not stats.blocks and store.notice is None:
            raise UsageError(f"kv export {file}: nothing is stored yet")
        targets = [_target(store, label) for label in labels]
        try:
            with kv_screen.busy(f"writing {file}"):
                done = store.export(file, targets)
        except StoreError as error:
            raise EngineError(f"kv export: {error}") from None
        if done.reason is not None and not done.blocks:
            raise EngineError(f"nothing was exported to {file}: {done.reason}")
    if as_json:
        print_json({"file": file, "exported": done})
    else:
        what = [
            count(n, noun)
            for n, noun in (
                (done.blocks, "block"), (done.snapshots, "snapshot"), (done.anchors, "anchor"),
            )
        ]  # fmt: skip
        kv_screen.say(f"wrote {', '.join(what)}, {size(done.bytes)} to {file}")
    return _end(f"not everything was exported to {file}", done.reason)


@click.command(name="import")
@click.argument("file", type=click.Path(path_type=Path))
@folder_option
@json_option
def import_(file: Path, folder: Path | None, as_json: bool) -> int:
    """Add what a FILE of `kv export` holds.

    Every byte of it is checked first. Import only from whom you would take an answer: what the rows
    say cannot be checked.
    """
    from ced_kvstore import StoreError

    if not file.is_file():
        why = "it is no regular file" if file.exists() else "no such file"
        raise UsageError(f"kv import {file}: {why}; expected one that `kv export` wrote")
    store = open_store(folder, create=True)
    assert store is not None
    with store:
        try:
            with kv_screen.busy(f"reading {file}"):
                done = store.import_(file)
        except StoreError as error:
            raise UsageError(f"kv import: {error}") from None
        if done.reason is not None and not (done.blocks or done.skipped or done.anchors):
            raise EngineError(f"nothing was imported from {file}: {store.notice or done.reason}")
    if as_json:
        print_json({"file": file, "imported": done})
    else:
        there = f" ({count(done.skipped, 'block')} were there)" if done.skipped else ""
        kv_screen.say(
            f"added {count(done.blocks, 'block')}, {size(done.bytes)}{there}; of the archive the "
            f"store now has {count(done.snapshots, 'snapshot')}, "
            f"{count(done.anchors, 'anchor')}"
        )
    return _end(f"not everything was imported from {file}", done.reason)


def _target(store: Store, given: str) -> str:
    """Return the label that is meant; raises UsageError."""
    label = meant(store, given)
    if label is None:
        raise UsageError(f"nothing is stored under {given}; `cedagent kv ls` lists the labels")
    return label


def _check_target(file: Path) -> None:
    """Raise UsageError unless a new file can be made of this name."""
    if file.name == "-":
        raise UsageError("kv export -: expected the name of a file, not stdout")
    if file.is_file():
        raise UsageError(f"kv export {file}: it exists; remove it or name another file")
    if file.exists():
        raise UsageError(f"kv export {file}: it is no regular file; name another one")
    if not file.parent.is_dir():
        raise UsageError(f"kv export {file}: there is no folder {file.parent}; make it first")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"kv export {file}: you cannot write to {file.absolute().parent}; name another folder"
        )


def _end(what: str, reason: str | None) -> int:
    if reason is None:
        return 0
    warn(f"{what}: {reason}")
    return EngineError.exit_code
