"""Carries a run's events from its thread to whoever reads them, plain or async.

Knows nothing of what runs. The thread ends with the run: a reader that leaves early cancels it and
waits until it is done, so that nothing goes on behind anyone's back.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Generator

from cedagent.agent.host import LoopHost
from cedagent.agent.outcome import RunResult
from cedagent.events import Event

Body = Callable[[Callable[[Event], None], LoopHost], RunResult]


class Worker:
    """One run in a thread of its own."""

    def __init__(self, body: Body, *, cancel: threading.Event) -> None:
        self._body = body
        self._cancel = cancel
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """True once the run has come to its end."""
        return self._is_over

    def stop(self) -> None:
        """Cancel the run and wait for its end."""
        self._cancel.set()
        if self._thread is not None:
            self._thread.join()

    def events(self) -> Generator[Event, None, RunResult]:
        """Start the run, yield its events, return its result or raise its error."""
        arrived: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._start(arrived.put, LoopHost())
        try:
            while (event := arrived.get()) is not None:
                yield event
        finally:
            self.stop()
        return self._outcome()

    async def aevents(self) -> AsyncGenerator[Event, None]:
        """Start the run and yield its events; its coroutine tools run on this event loop."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Event | None] = asyncio.Queue()

        def put(event: Event | None) -> None:
            # A tool that was given up may still speak when the loop is gone.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(arrived.put_nowait, event)

        self._start(put, LoopHost(loop))
        ended = False
        try:
            while (event := await arrived.get()) is not None:
                yield event
            ended = True
        finally:
            self._cancel.set()
            # Not a join: coroutine tools need this loop to come to their end.
            while not ended:
                ended = await arrived.get() is None
        self._outcome()

    async def aresult(self) -> RunResult:
        """Run to the end and return the result."""
        async for _ in self.aevents():
            pass
        return self._outcome()

    def _start(self, put: Callable[[Event | None], None], host: LoopHost) -> None:
        context = contextvars.copy_context()

        def work() -> None:
            try:
                self._result = self._body(put, host)
            # Raised again in the reader's thread.
            except BaseException as error:
                self._error = error
            finally:
                host.close()
                # Before the reader is told, who may begin the next run at once.
                self._is_over = True
                put(None)

        self._thread = threading.Thread(
            target=context.run, args=(work,), name="cedagent-run", daemon=True
        )
        self._thread.start()

    def _outcome(self) -> RunResult:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result
