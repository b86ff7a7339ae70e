"""Where coroutines of a run are run: on the caller's event loop, or on one of the run's own.

Knows nothing of tools. A loop of the run's own lives in a thread that ends with the run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any


class LoopHost:
    """The event loop for coroutine tools: the caller's, or one in a thread for this run alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start a coroutine, from any thread; cancelling the future cancels it.

        Raises RuntimeError once the run is over: a tool that was given up may still come here.
        """
        with self._lock:
            if self._closed:
                coroutine.close()
                raise RuntimeError("the run is over")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="cedagent-loop", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Stop the loop if it is ours; cancelled coroutines get a moment to clean up."""
        with self._lock:
            self._closed = True
        if self._loop is None or self._thread is None:
            return
        closing = asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop)
        wait([closing], timeout=1.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._loop.close()
        self._loop = self._thread = None


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
