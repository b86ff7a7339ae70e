"""The gate before LMDB's map: transactions of this process go in together, a change of its size
alone.

LMDB forbids a change of the map while a transaction of the same process is open. Invariant: what
runs in `alone` runs with nobody inside.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Gate:
    """Counts who is inside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0

    def enter(self) -> None:
        """Go in, and wait while somebody is alone; `leave` must follow."""
        with self._changed:
            self._inside += 1

    def leave(self) -> None:
        """Go out again."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until everybody is out, and keep others from coming in."""
        with self._changed:
            self._changed.wait_for(lambda: not self._inside)
            yield
