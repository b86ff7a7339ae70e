"""Starts a function that is not ours and gives its result as a future, whatever the function does.

Plain functions run in threads of their own, coroutine functions on an event loop; what can be
awaited is awaited. A thread cannot be stopped from outside: one that is given up goes on in the
background, and what it returns is dropped.
"""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from typing import Any

from cedagent.agent.host import LoopHost

POLL_S = 0.02


def start(
    function: Callable[[], Any],
    *,
    name: str,
    on_loop: bool,
    host: LoopHost,
    given_up: Callable[[], bool],
) -> Future[Any]:
    """Call a function without waiting for it; `on_loop` says that it is a coroutine function."""
    if on_loop:
        return host.submit(_await(function))
    future: Future[Any] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            value = context.run(function)
            # A plain function around a coroutine function, as functools.wraps makes them.
            if inspect.isawaitable(value):
                value = _awaited(value, host, given_up)
        # Also SystemExit: it must end this call, not leave the run waiting for it.
        except BaseException as error:
            _settle(future, error=error)
        else:
            _settle(future, value=value)

    # A daemon: a function that never returns must not keep the process alive.
    threading.Thread(target=work, name=f"cedagent-{name}", daemon=True).start()
    return future


def _awaited(value: Awaitable[Any], host: LoopHost, given_up: Callable[[], bool]) -> Any:
    inner = host.submit(_await(lambda: value))
    while not wait([inner], timeout=POLL_S).done:
        if given_up():
            inner.cancel()
    return inner.result()


def _settle(future: Future[Any], *, value: Any = None, error: BaseException | None = None) -> None:
    # False when the call was given up in the meantime: nobody waits for it.
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


async def _await(function: Callable[[], Awaitable[Any]]) -> Any:
    return await function()
