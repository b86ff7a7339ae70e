"""The file that says which format a directory is in, looked at before anything else is touched."""

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
        raise VersionError(
            f"{directory} holds a prefix store of another version: expected "
            f"{VERSION_TEXT.decode().strip()!r} in {VERSION_NAME}, found {found[:40]!r}; "
            "choose another folder or delete this one"
        )
    return found
