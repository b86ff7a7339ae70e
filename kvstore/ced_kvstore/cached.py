"""Read what the operating system has in memory already, without ever waiting for a disk.

Knows file descriptors and pieces of memory. Invariant: a call ends at once, whatever the disk does,
so nothing is written to the pieces after it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ced_kvstore.files import IOV_MAX


def read_cached(fd: int, pieces: Sequence[memoryview], offset: int) -> bool:
    """Fill the pieces one after the other if all of it is in memory; else False, and what the
    pieces hold is undefined.

    False, too, where it cannot be told: on macOS, and on file systems without RWF_NOWAIT (tmpfs,
    network file systems). Trouble is for `Files.preadv` to find.
    """
    flags = getattr(os, "RWF_NOWAIT", None)
    if flags is None:
        return False
    try:
        for start in range(0, len(pieces), IOV_MAX):
            part = pieces[start : start + IOV_MAX]
            size = sum(map(len, part))
            if os.preadv(fd, part, offset, flags) != size:
                return False
            offset += size
    except OSError:
        return False
    return True
