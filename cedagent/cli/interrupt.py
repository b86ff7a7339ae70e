"""Ctrl-C: the first one stops the answer, a second one stops waiting for that.

A signal handler only sets things in motion: the engine polls its flag at every tile and token. The
handler that was there before comes back when the answer is over.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT; raise KeyboardInterrupt at the second.

    Outside the main thread, where Python allows no handlers, it changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = False

    def handler(signum: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            raise KeyboardInterrupt
        seen = True
        stop()

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
