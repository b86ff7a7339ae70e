"""How long a read may wait for a disk, and work that is left alone when it takes longer.

A thread that waits for a disk inside the kernel cannot be stopped. So what may wait runs in a
thread of its own and touches only what it owns; whoever asked goes away when the time is over. It
knows nothing of records. Invariant: nobody waits for such a thread, neither `close` nor the end of
the interpreter.
"""

from __future__ import annotations

import _thread
import errno
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ced_kvstore.core import Core

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time that a disk has for so many bytes."""

    seconds: float
    seconds_per_byte: float

    def within(self, n_bytes: int) -> float:
        """Return the seconds for `n_bytes` bytes."""
        return self.seconds + n_bytes * self.seconds_per_byte


DEADLINES = {
    # A hard disk that has to spin up first takes up to ten seconds. Below 20 MB/s it is usually
    # faster to encode the tokens again.
    "blocks": Deadline(10.0, 1 / 20e6),
    "snapshot": Deadline(10.0, 1 / 20e6),
}


def start(work: Callable[[], None]) -> threading.Lock:
    """Run `work` in a new thread; the returned lock is free when it has ended.

    Raises OSError when there can be no further thread.
    """
    ended = threading.Lock()
    ended.acquire()

    def run() -> None:
        try:
            work()
        finally:
            ended.release()

    # `threading.Thread` takes 50 us to start, as much as 1 MB takes to read; this one 7 us. It is
    # not waited for at exit either.
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from None
    return ended


def wait(core: Core, ended: Sequence[threading.Lock], seconds: float) -> None:
    """Wait until all threads have ended; beyond the deadline the store is given up.

    Then it raises TimeoutError, and the store neither reads nor writes in this process any more:
    who waited once in vain is not to wait again at every turn.
    """
    until = time.monotonic() + seconds
    for lock in ended:
        if not lock.acquire(timeout=max(0.0, until - time.monotonic())):
            text = (
                f"a read took longer than {seconds:.1f} s, and the store is left alone from here on"
            )
            core.disabled = text
            core.fail(TimeoutError(errno.ETIMEDOUT, text))
            raise TimeoutError(errno.ETIMEDOUT, text)


def timed(core: Core, call: Callable[[], T], seconds: float) -> T:
    """Return what `call` returns; raises what `call` does, or TimeoutError."""
    results: list[T] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            results.append(call())
        # Whatever it is, it is for who asked, who would else look for a result that is not there.
        except Exception as error:
            errors.append(error)

    wait(core, [start(work)], seconds)
    if errors:
        raise errors.pop()
    return results[0]
