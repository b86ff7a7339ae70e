"""The segments that one restore has open, until the last thread that reads them has left.

Knows paths and counts. Invariant: a descriptor is closed once, and never under a thread that may
still be waiting in it: its number could mean another file by then.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable

from ced_kvstore.core import Core


class Descriptors:
    """Open segments by number; whoever makes it is its first user."""

    def __init__(self, core: Core, segments: Iterable[int]) -> None:
        self.fds: dict[int, int] = {}
        self.missing: set[int] = set()
        """Segments whose file is gone. One that is in neither cannot be opened now."""
        self._files = core.files
        self._users = 1
        self._lock = threading.Lock()
        for number in segments:
            try:
                self.fds[number] = core.files.open(core.segments.path(number))
            except FileNotFoundError:
                self.missing.add(number)
            except OSError:
                continue

    def join(self) -> None:
        """Count one more user."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Count one user less; the last one closes."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        for fd in self.fds.values():
            with contextlib.suppress(OSError):
                self._files.close(fd)
