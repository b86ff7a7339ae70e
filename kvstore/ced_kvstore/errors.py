"""Every error that the store raises on purpose.

    StoreError
    └── VersionError   the directory was written by another format version

Trouble with disk content or with the disk itself is never raised from `match`, `read` or `commit`:
it is a miss, or a commit of nothing, with a reason. These errors come out of `Store.open`, `export`
and `import_` only, `ValueError` / `TypeError` out of any door that is called with wrong arguments
(`show`: also for a block that cannot be looked up).
"""

from __future__ import annotations

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
