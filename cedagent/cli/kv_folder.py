"""The prefix store's folder as the `kv` commands see it: names and bytes, without a model.

Knows how a store is opened when nobody asks for rows. Invariant: looking at a store creates none.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedagent.errors import EngineError
from cedagent.paths import kv_dir

if TYPE_CHECKING:
    from ced_kvstore import Store

NOTHING = "Nothing is stored yet."


def folder_option(command: click.decorators.FC) -> click.decorators.FC:
    """Add `--kv DIR`."""
    return click.option(
        "--kv",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Folder of the prefix store (in the cache folder by default).",
    )(command)


def is_store(folder: Path) -> bool:
    """Say whether a folder is a store, or was one: one that lost its VERSION is not empty."""
    with contextlib.suppress(PermissionError):
        return (folder / "VERSION").exists() or any((folder / "seg").glob("*.kvs"))
    # What may not be looked into is for the store to refuse.
    return True


def open_store(folder: Path | None, *, create: bool = False) -> Store | None:
    """Open the store in a folder, the default one if None; return None when there is none.

    With `create` a folder that is none becomes one. Raises EngineError for a folder that cannot be
    a store.
    """
    from ced_kvstore import Store, StoreError, Stream

    folder = (folder or kv_dir()).expanduser()
    if not create and not is_store(folder):
        return None
    try:
        return Store.open(folder, fingerprint={}, streams=[Stream("none", 1)])
    except StoreError as error:
        raise EngineError(str(error)) from None


def check_readable(store: Store, *, found: object) -> None:
    """Say on stderr what hinders the store; raises EngineError when nothing was found for it."""
    from cedagent.cli.render import warn

    if store.notice is not None:
        if not found:
            raise EngineError(store.notice)
        warn(store.notice)
