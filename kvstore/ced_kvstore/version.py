"""What makes a directory a store: the file that says its format, and private folders of its own.

Knows names and modes and nothing of what lies in the folders. Invariant: a directory of another
format is left as it is.
"""

from __future__ import annotations

from pathlib import Path

from ced_kvstore.errors import VersionError
from ced_kvstore.files import Files
from ced_kvstore.hashing import FORMAT_VERSION

VERSION_NAME = "VERSION"
VERSION_TEXT = f"ced-kv {FORMAT_VERSION}\n".encode()


def read_version(files: Files, directory: Path) -> bytes | None:
    """Return our own version, None in a new directory; raises VersionError, OSError."""
    found = files.read_small(directory / VERSION_NAME)
    if found is not None and found != VERSION_TEXT:
        other = found[:40].decode(errors="replace")
        raise VersionError(
            f"{directory} holds a prefix store of another version: expected "
            f"{VERSION_TEXT.decode()!r} in {VERSION_NAME}, found {other!r}; "
            "choose another folder or delete this one"
        )
    return found


def prepare(files: Files, directory: Path, *, ours: bool) -> None:
    """Make the folders of a store, private, and write its format down; raises as `read_version`."""
    # A folder with other things in it may be shared on purpose; then only our own folders in it are
    # made private.
    if ours or {*files.names(directory)} <= {"LOCK", "OPEN"}:
        files.make_private(directory)
    for name in ("index", "pins", "seg"):
        files.make_directory(directory / name)
        files.make_private(directory / name)
    # Two processes may have found a new folder at once.
    if read_version(files, directory) is None:
        files.write_small(directory / VERSION_NAME, VERSION_TEXT)
