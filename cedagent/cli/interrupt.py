"""Signals: Ctrl-C stops an answer, SIGTERM and SIGHUP stop it and then end the process.

A signal handler only sets things in motion: the engine polls its flag at every tile and token. The
handlers that were there before come back when the answer is over.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDINGS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(SystemExit):
    """The process was told to end; `exit_code` is 128 and the signal's number.

    A SystemExit, because event loops keep every other exception of a handler to themselves.
    """

    def __init__(self, signum: int) -> None:
        self.exit_code = 128 + signum
        super().__init__(self.exit_code)


def end_on_termination() -> None:
    """Let SIGTERM and SIGHUP raise Terminated, unless they are ignored (nohup)."""

    def handler(signum: int, frame: FrameType | None) -> None:
        raise Terminated(signum)

    for signum in ENDINGS:
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, handler)


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT; raise KeyboardInterrupt at the second.

    SIGTERM and SIGHUP call it, too; when the block is over they raise Terminated, and a second one
    does so at once. Outside the main thread, where Python allows no handlers, it changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = False
    ended_by: int | None = None

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            raise KeyboardInterrupt
        seen = True
        stop()

    def on_ending(signum: int, frame: FrameType | None) -> None:
        nonlocal ended_by
        if ended_by is not None:
            raise Terminated(signum)
        ended_by = signum
        stop()

    before = {signal.SIGINT: signal.signal(signal.SIGINT, on_interrupt)}
    for signum in ENDINGS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            before[signum] = signal.signal(signum, on_ending)
    try:
        yield
    except Exception:
        # A terminal that has gone fails every write; that it went is what there is to say.
        if ended_by is None:
            raise
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if ended_by is not None:
        raise Terminated(ended_by)
