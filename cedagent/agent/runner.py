"""Runs a batch of calls at the same time and gives their results in call order.

Knows no tokens, log or engine. Whatever a tool or an approver does, every call gets exactly one
result; only Abort ends a run. A call that is given up is answered at once, though its thread may go
on until it returns or sees `Context.cancelled`.
"""

from __future__ import annotations

import copy
import functools
import logging
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from cedagent.agent.calling import POLL_S, start
from cedagent.agent.host import LoopHost
from cedagent.agent.results import render
from cedagent.agent.tools import Abort, Context, Tool, ToolError
from cedagent.chat.output import Call
from cedagent.events import clean, one_line

Approver = Callable[[str, dict[str, Any]], "bool | Awaitable[bool]"]
_GRACE_S = 0.2
_UNAPPROVED = "Error: interrupted before it was approved"
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
    """Polled: True gives up all calls that still run, and starts no other."""
    on_end: Callable[[int, Outcome], None]
    """Told of each call's end, by one thread at a time."""
    make_context: Callable[[str, int, Callable[[], bool]], Context]
    approve: Approver | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    _running: dict[Future[Any], tuple[int, float, float | None]] = field(default_factory=dict)
    _given_up: dict[int, threading.Event] = field(default_factory=dict)
    _interrupted: threading.Event = field(default_factory=threading.Event)

    def run(self, meanwhile: Callable[[], None]) -> list[Outcome]:
        """Run the calls, do something else `meanwhile`, and return outcomes in call order.

        All approvals come first, in call order. Clocks run from each tool's own start and are
        watched from a thread, so that neither an approval nor `meanwhile` holds them up.
        """
        ready = {}
        for index, call in enumerate(self.calls):
            try:
                ready[index] = self._read(call)
            except _Refused as refused:
                self._end(index, refused.outcome)
        for index, (tool, arguments) in ready.items():
            self._start(index, tool, arguments)
        watch = start(
            self._watch, name="watch", on_loop=False, host=self.host, given_up=lambda: False
        )
        try:
            meanwhile()
        except BaseException:
            self._interrupted.set()
            wait([watch])
            raise
        watch.result()
        return [self.outcomes[index] for index in range(len(self.calls))]

    def _read(self, call: Call) -> tuple[Tool, dict[str, Any]]:
        """Return the tool of a call that may be run, and its arguments."""
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
        return tool, arguments

    def _ask(self, tool: Tool, arguments: dict[str, Any]) -> None:
        if tool.approve == "always":
            return
        approve = self.approve
        if tool.approve == "never" or approve is None:
            why = "is switched off" if tool.approve == "never" else "needs an approval to be asked"
            raise _Refused(f"Error: not run: {tool.name} {why}")
        if self.stop():
            raise _Refused(_UNAPPROVED)
        given = copy.deepcopy(arguments)
        gone = threading.Event()
        asked = start(
            lambda: approve(tool.name, given),
            name="approval",
            on_loop=False,
            host=self.host,
            given_up=gone.is_set,
        )
        while not wait([asked], timeout=POLL_S).done:
            if self.stop():
                gone.set()
                # One that looks at the cancel itself may still clear its question away.
                wait([asked], timeout=_GRACE_S)
                asked.cancel()
                raise _Refused(_UNAPPROVED)
        error = asked.exception()
        if error is not None:
            _log.info("the approval of %s failed", tool.name, exc_info=error)
            raise _Refused(
                f"Error: not run: asking for an approval of {tool.name} failed: {_short(error)}"
            )
        if asked.result() is not True:
            raise _Refused(f"Error: not run: the user refused this call of {tool.name}")

    def _start(self, index: int, tool: Tool, arguments: dict[str, Any]) -> None:
        if self.stop():
            self._end(index, Outcome("Error: interrupted before it was run", True))
            return
        given_up = self._given_up[index] = threading.Event()
        context = self.make_context(tool.name, index, given_up.is_set)
        arguments |= dict.fromkeys(tool.signature.context_names, context)
        started = time.monotonic()
        future = start(
            functools.partial(tool.function, **arguments),
            name=f"tool-{tool.name}",
            on_loop=tool.is_async,
            host=self.host,
            given_up=given_up.is_set,
        )
        limit = None if tool.timeout is None else started + tool.timeout
        self._running[future] = (index, started, limit)

    def _watch(self) -> None:
        """End the calls as they return, time out or are given up."""
        while self._running:
            if self.stop() or self._interrupted.is_set():
                self._give_up("Error: interrupted before it finished")
                return
            done, _ = wait(self._running, timeout=POLL_S, return_when=FIRST_COMPLETED)
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
            text = one_line(error)
            return Outcome(f"Error: the run was ended: {text}", True, seconds, abort=text)
        # The boundary to code that is not ours: whatever it raises becomes a result.
        except BaseException as error:
            trace = traceback.format_exc()
            _log.info("tool %s failed\n%s", name, trace)
            return Outcome(f"Error: {_short(error)}", True, seconds, trace=clean(trace))

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


def _short(error: BaseException) -> str:
    """Return the type and the first line of what was raised."""
    try:
        line = one_line((str(error).strip().splitlines() or [""])[0])[:300]
    except Exception:  # it may not even be able to say what it is
        line = ""
    return f"{type(error).__name__}{': ' if line else ''}{line}"
