"""Runs a batch of calls at the same time and gives their results in call order.

Plain functions run in threads of their own, coroutine functions on an event loop. Knows no tokens,
log or engine. Whatever a tool does, every call gets exactly one result; only Abort ends a run. A
thread cannot be stopped from outside: one that is given up goes on in the background until it
returns or sees `Context.cancelled`, and its result is dropped.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import inspect
import logging
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from cedagent.agent.host import LoopHost
from cedagent.agent.results import clean, render
from cedagent.agent.tools import Abort, Context, Tool, ToolError
from cedagent.chat.output import Call

Approver = Callable[[str, dict[str, Any]], "bool | Awaitable[bool]"]
_POLL_S = 0.02
_log = logging.getLogger("cedagent.tools")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one call, before cutting."""

    text: str
    error: bool
    seconds: float = 0.0
    trace: str | None = None
    abort: str | None = None
    known: bool = True
    """False when the call named no registered tool or could not be read."""


@dataclass(slots=True)
class Batch:
    """The calls of one output, being run."""

    calls: Sequence[Call]
    tools: Mapping[str, Tool]
    listed: Sequence[str]
    """Names in the session's frozen list, registered or not."""
    host: LoopHost
    stop: Callable[[], bool]
    """Polled: True gives up all calls that still run."""
    on_end: Callable[[int, Outcome], None]
    make_context: Callable[[str, int, Callable[[], bool]], Context]
    approve: Approver | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    _running: dict[Future[Any], tuple[int, float, float | None]] = field(default_factory=dict)
    _given_up: dict[int, threading.Event] = field(default_factory=dict)

    def run(self, meanwhile: Callable[[], None]) -> list[Outcome]:
        """Start every call, do something else `meanwhile`, and return outcomes in call order."""
        for index, call in enumerate(self.calls):
            try:
                self._start(index, call)
            except _Refused as refused:
                self._end(index, refused.outcome)
        try:
            meanwhile()
        except BaseException:
            self._give_up("Error: interrupted before it finished")
            raise
        self._wait()
        return [self.outcomes[index] for index in range(len(self.calls))]

    def _start(self, index: int, call: Call) -> None:
        if call.error is not None or call.arguments is None:
            raise _Refused(f"Error: {call.error}", known=False)
        tool = self.tools.get(call.name)
        if tool is None:
            listed = call.name in self.listed
            names = ", ".join(sorted(self.tools)) or "none"
            raise _Refused(
                f"Error: the tool {call.name} is not available now; available: {names}"
                if listed
                else f"Error: there is no tool {call.name}; available: {names}",
                known=False,
            )
        try:
            arguments = tool.signature.convert(call.arguments)
        except ValueError as error:
            raise _Refused(f"Error: the arguments of {call.name} do not fit: {error}") from None
        self._ask(tool, call.arguments)
        given_up = self._given_up[index] = threading.Event()
        context = self.make_context(tool.name, index, given_up.is_set)
        arguments |= dict.fromkeys(tool.signature.context_names, context)
        started = time.monotonic()
        limit = None if tool.timeout is None else started + tool.timeout
        future = (
            self.host.submit(_call_async(tool.function, arguments))
            if tool.is_async
            else _in_thread(tool, arguments)
        )
        self._running[future] = (index, started, limit)

    def _ask(self, tool: Tool, arguments: dict[str, Any]) -> None:
        if tool.approve == "always":
            return
        if tool.approve == "never" or self.approve is None:
            why = "is switched off" if tool.approve == "never" else "needs an approval to be asked"
            raise _Refused(f"Error: not run: {tool.name} {why}")
        answer = self.approve(tool.name, dict(arguments))
        if inspect.isawaitable(answer):
            asked = self.host.submit(_await(answer))
            while not wait([asked], timeout=_POLL_S).done:
                if self.stop():
                    asked.cancel()
                    raise _Refused("Error: interrupted before it was approved")
            answer = asked.result()
        if answer is not True:
            raise _Refused(f"Error: not run: the user refused this call of {tool.name}")

    def _wait(self) -> None:
        while self._running:
            if self.stop():
                self._give_up("Error: interrupted before it finished")
                return
            done, _ = wait(self._running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda f: self._running[f][0]):
                index, started, _ = self._running.pop(future)
                outcome = self._outcome(index, future, time.monotonic() - started)
                self._end(index, outcome)
            if any(outcome.abort is not None for outcome in self.outcomes.values()):
                self._give_up("Error: not finished: another call ended the run")
                return
            now = time.monotonic()
            for future, (index, started, limit) in list(self._running.items()):
                if limit is not None and now >= limit:
                    text = f"Error: {self.calls[index].name} timed out after {limit - started:g} s"
                    self._drop(future, text)

    def _outcome(self, index: int, future: Future[Any], seconds: float) -> Outcome:
        name = self.calls[index].name
        try:
            return Outcome(render(future.result()), False, seconds)
        except ToolError as error:
            return Outcome(f"Error: {clean(str(error))}", True, seconds)
        except Abort as error:
            text = clean(str(error))
            return Outcome(f"Error: the run was ended: {text}", True, seconds, abort=text)
        # The boundary to code that is not ours: whatever it raises becomes a result.
        except BaseException as error:
            trace = traceback.format_exc()
            _log.info("tool %s failed\n%s", name, trace)
            line = (str(error).strip().splitlines() or [""])[0][:300]
            text = f"Error: {type(error).__name__}{': ' if line else ''}{line}"
            return Outcome(clean(text), True, seconds, trace=clean(trace))

    def _give_up(self, text: str) -> None:
        for future in list(self._running):
            self._drop(future, text)

    def _drop(self, future: Future[Any], text: str) -> None:
        index, started, _ = self._running.pop(future)
        self._given_up[index].set()
        future.cancel()
        self._end(index, Outcome(text, True, time.monotonic() - started))

    def _end(self, index: int, outcome: Outcome) -> None:
        self.outcomes[index] = outcome
        self.on_end(index, outcome)


class _Refused(Exception):
    """A call that is answered without being run."""

    def __init__(self, text: str, *, known: bool = True) -> None:
        super().__init__(text)
        self.outcome = Outcome(clean(text), True, known=known)


def _in_thread(tool: Tool, arguments: dict[str, Any]) -> Future[Any]:
    future: concurrent.futures.Future[Any] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            value = context.run(tool.function, **arguments)
        # Also SystemExit: it must end this call, not leave the run waiting for it.
        except BaseException as error:
            _settle(future, error=error)
        else:
            _settle(future, value=value)

    # A daemon: a tool that never returns must not keep the process alive.
    threading.Thread(target=work, name=f"cedagent-tool-{tool.name}", daemon=True).start()
    return future


def _settle(future: Future[Any], *, value: Any = None, error: BaseException | None = None) -> None:
    # False when the call was given up in the meantime: nobody waits for it.
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


async def _call_async(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return await function(**arguments)


async def _await(value: Awaitable[bool]) -> bool:
    return await value
