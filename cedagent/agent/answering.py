"""The tools' side of a run: run the calls of one output and make their results fit.

Knows tools, results and limits; no engine and no transcript. Every call gets exactly one result, in
call order, whatever happened to it; one that cannot fit is not begun.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cedagent.agent.host import LoopHost
from cedagent.agent.limits import Counter
from cedagent.agent.outcome import ToolCall
from cedagent.agent.results import NO_ROOM, Cutter, Kept
from cedagent.agent.runner import Approver, Batch, Outcome
from cedagent.agent.tools import Context, Tool
from cedagent.chat.output import Call
from cedagent.chat.template import ChatFormat
from cedagent.chat.tokenizer import Tokenizer
from cedagent.events import Event, Notice, ToolEnd

_REPEATED = "Error: not run: the same call was just made, its result is above; answer or change it"
# Room for pieces that merge differently once a result stands in its turn.
_JOINTS = 8


@dataclass(frozen=True, slots=True)
class Answers:
    """The results of one output's calls."""

    calls: tuple[ToolCall, ...]
    abort: str | None
    """What an Abort said, if a tool ended the run."""
    why_stop: str | None
    """The limit that ends the run after these results, if one does."""

    @property
    def texts(self) -> list[str]:
        """The results as the model reads them, in call order."""
        return [call.result for call in self.calls]

    def record(self) -> dict[str, Any]:
        """What the log keeps beside the ids."""
        calls = []
        for call in self.calls:
            entry: dict[str, Any] = {"name": call.name, "error": call.error}
            entry["seconds"] = round(call.seconds, 3)
            calls.append(entry | ({"trace": call.trace} if call.trace else {}))
        return {"n_results": len(self.calls), "calls": calls, "results": self.texts}


@dataclass(slots=True)
class Answerer:
    """Answers calls of one run."""

    tools: Mapping[str, Tool]
    listed: tuple[str, ...]
    kept: Kept
    tokenizer: Tokenizer
    fmt: ChatFormat
    host: LoopHost
    counter: Counter
    emit: Callable[[Event], None]
    must_stop: Callable[[], bool]
    session: str | None
    approve: Approver | None

    def result_tokens(self, n_calls: int, room: int) -> int | None:
        """Return how many tokens each result may have; None if not even an error line fits."""
        overhead = len(self.fmt.results([""] * n_calls)) + _JOINTS * n_calls
        least = len(self.tokenizer.encode(NO_ROOM))
        # A quarter stays for what the model says about the results.
        each = max((room - overhead) * 3 // 4 // n_calls, 0)
        each = min(each, self.counter.limits.result_tokens)
        return each if each >= least else None

    def answer(
        self,
        calls: tuple[Call, ...],
        *,
        max_tokens: int,
        n_before: int,
        meanwhile: Callable[[], None],
    ) -> Answers:
        """Run the calls (or refuse a repetition) and return their results in call order.

        `n_before` results came before in the session; `meanwhile` runs beside the tools.
        """
        pages = "more" in self.tools
        cutter = Cutter(self.tokenizer, max_tokens=max_tokens, kept=self.kept, pages=pages)
        answered: dict[int, ToolCall] = {}

        def on_end(index: int, outcome: Outcome) -> None:
            call, tool = calls[index], self.tools.get(calls[index].name)
            text = cutter.cut(
                outcome.text,
                result_id=f"r{n_before + index + 1}",
                max_chars=tool.max_chars if tool else None,
                paged=tool.paged if tool else False,
            )
            arguments = call.arguments or {}
            seconds, error = outcome.seconds, outcome.error
            answered[index] = ToolCall(call.name, arguments, text, error, seconds, outcome.trace)
            self.emit(ToolEnd(index, call.name, arguments, text, error, seconds))

        key = tuple((call.name, call.raw) for call in calls)
        is_repeat = self.counter.is_repeat(key)
        if is_repeat:
            outcomes = [Outcome(_REPEATED, True) for _ in calls]
            for index, outcome in enumerate(outcomes):
                on_end(index, outcome)
            meanwhile()
        else:
            outcomes = self._batch(calls, cutter, on_end).run(meanwhile)
        self.counter.tool_calls += len(calls)
        done = tuple(answered[index] for index in range(len(calls)))
        why = self.counter.note_calls(
            key,
            tuple(call.result for call in done),
            bad=not any(outcome.known for outcome in outcomes),
            refused=is_repeat,
        )
        aborts = [outcome.abort for outcome in outcomes if outcome.abort is not None]
        return Answers(done, aborts[0] if aborts else None, why)

    def _batch(
        self, calls: tuple[Call, ...], cutter: Cutter, on_end: Callable[[int, Outcome], None]
    ) -> Batch:
        def make_context(name: str, index: int, given_up: Callable[[], bool]) -> Context:
            return Context(
                name,
                index,
                session=self.session,
                is_cancelled=lambda: given_up() or self.must_stop(),
                notify=lambda message: self.emit(Notice(message)),
                page=cutter.page,
            )

        return Batch(
            calls=calls,
            tools=self.tools,
            listed=self.listed,
            host=self.host,
            stop=self.must_stop,
            on_end=on_end,
            make_context=make_context,
            approve=self.approve,
        )
