"""What makes a directory a store: the file that says its format, and private folders of its own.

Knows names and modes and nothing of what lies in the folders. Invariant: a directory of another
format, or with anybody else's files in it, is left as it is.
"""

from __future__ import annotations

from pathlib import Path

from ced_kvstore.errors import StoreError, VersionError
from ced_kvstore.files import Files
from ced_kvstore.hashing import FORMAT_VERSION

VERSION_NAME = "VERSION"
VERSION_TEXT = f"ced-kv {FORMAT_VERSION}\n".encode()

_FOLDERS = ("index", "pins", "seg")

_OURS = {*_FOLDERS, "LEASE", "LOCK", "OPEN", VERSION_NAME, f"{VERSION_NAME}.new"}
"""All names in a store's folder."""

_OF_THE_DISK = {"lost+found"}


def check(files: Files, directory: Path) -> None:
    """Raise VersionError for a store of another format, StoreError for a folder with other files in
    it, else OSError."""
    if _is_written(files, directory):
        return
    # Our own names are there without it when a store was begun, or has lost it.
    if not {*files.names(directory)} <= _OURS | _OF_THE_DISK:
        raise StoreError(
            f"{directory} holds other files; give the prefix store a folder of its own"
        )


def _is_written(files: Files, directory: Path) -> bool:
    """Say whether a directory has our own version written down; raises VersionError, OSError."""
    found = files.read_small(directory / VERSION_NAME)
    # Some file systems leave an empty file when the power goes.
    if not found:
        return False
    if found != VERSION_TEXT:
        other = found[:40].decode(errors="replace")
        raise VersionError(
            f"{directory} holds a prefix store of another version: expected "
            f"{VERSION_TEXT.decode()!r} in {VERSION_NAME}, found {other!r}; "
            "choose another folder or delete this one"
        )
    return True


def prepare(files: Files, directory: Path) -> None:
    """Make a checked directory and the folders of a store private, and write its format down;
    raises as `check`."""
    # It may be a link, and nothing in it.
    files.make_private(directory.resolve())
    for name in _FOLDERS:
        files.make_directory(directory / name)
        files.make_private(directory / name)
    # Two processes may have found a new folder at once.
    if not _is_written(files, directory):
        files.write_small(directory / VERSION_NAME, VERSION_TEXT)
