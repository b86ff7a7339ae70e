"""Every error that the store raises on purpose.

    StoreError
    └── VersionError   the directory was written by another format version

Trouble with disk content or with the disk itself is never raised from `match`, `read` or `commit`:
it is a miss, or a commit of nothing, with a reason. These errors come out of `Store.open`, `export`
and `import_` only, `ValueError` / `TypeError` out of any door that is called with wrong arguments
(`show`: also for a block that cannot be looked up).
"""

from __future__ import annotations

import errno

import lmdb


class StoreError(Exception):
    """The directory cannot be used as a prefix store; the message says why and what to do."""


class VersionError(StoreError):
    """The directory holds a store of another format version; nothing in it was touched."""


class BadRecord(Exception):
    """A record on disk is not what it should be. Internal: becomes a miss with this reason."""


class BadIndex(BadRecord):
    """A row of the index is not one. Internal: becomes a miss and a notice, until
    `verify(fix=True)` has the index built anew."""


class Stale(Exception):
    """What was planned does not fit what other processes published meanwhile. Internal: nothing was
    changed, and it is planned again."""


TROUBLE = (OSError, lmdb.Error, BadRecord)
"""What a damaged disk or index can raise; the doors of the store turn it into a reason."""

_ADVICE = {
    errno.EEXIST: "move it away",
    errno.EISDIR: "move it away",
    errno.ENOTDIR: "move it away",
    errno.ENOSPC: "make room on that disk",
    errno.ELOOP: "it is a symbolic link: move it away",
    errno.EACCES: "allow yourself to read and write it, or choose another folder",
    errno.EROFS: "choose another folder",
}


NO_INDEX = (lmdb.InvalidError, lmdb.VersionMismatchError)
"""What LMDB makes of a file that is no index of it."""


def told(error: BaseException | str) -> str:
    """Return what happened, to which file where that is known, and what to do about it."""
    if isinstance(error, NO_INDEX):
        anew = "it is built anew when no process has the store open any more"
        return f"its index is no index ({error}); {anew}"
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    what = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    advice = _ADVICE.get(error.errno or 0)
    return what if advice is None else f"{what} ({advice})"
