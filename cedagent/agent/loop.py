"""One run: append, prefill, write an output, run its calls, append their results, and again.

Every step leaves the transcript in a state that a later run can go on from: an append is durable
before its prefill starts, an output is recorded when it ended, and limits are looked at between.
Knows no tensors, no files and no threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cedagent.agent.answering import Answerer
from cedagent.agent.host import LoopHost
from cedagent.agent.limits import Counter
from cedagent.agent.outcome import RunResult, ToolCall
from cedagent.agent.results import Kept, make_more
from cedagent.agent.transcript import Transcript
from cedagent.agent.writing import Writer
from cedagent.chat.grammar import CallGrammar
from cedagent.chat.output import Call
from cedagent.engine.protocol import Sampling, SequenceLike
from cedagent.errors import ContextLimitError, SessionError
from cedagent.events import Done, Event, StopReason

if TYPE_CHECKING:
    from cedagent.agent.agent import Agent


@dataclass(slots=True)
class Run:
    """The state of one run; `run` is called once."""

    transcript: Transcript
    writer: Writer
    answerer: Answerer
    counter: Counter
    context_limit: int
    emit: Callable[[Event], None]
    calls_made: list[ToolCall] = field(default_factory=list)
    text: str = ""

    def run(self, prompt: str | None, choice: str | None) -> RunResult:
        """Take the turn to its end or to a limit; raises SessionError if there is nothing to do.

        Without a prompt it goes on with what is unfinished: an append that was never answered,
        calls that were never run, or an output that a limit stopped.
        """
        transcript = self.transcript
        if prompt is None and transcript.unfinished is None:
            raise SessionError("there is nothing to go on with; expected a message")
        result = self._turn(prompt, choice)
        self.emit(Done(result.text, result.stop_reason, result.usage, result.message))
        return result

    def _turn(self, prompt: str | None, choice: str | None) -> RunResult:
        transcript, writer = self.transcript, self.writer
        if prompt is not None:
            ids = transcript.user_ids(prompt)
            if not self._fits(ids):
                return self._full(f"the message has {len(ids)} more")
            transcript.append(ids, role="user", choice=choice or "auto", text=prompt)
        while True:
            if not transcript.unanswered:
                why = self.counter.why_no_output()
                if why is not None:
                    return self._limit(why)
                ended = self._output()
                if ended is not None:
                    return ended
            calls = transcript.unanswered
            if not calls:
                writer.settle()
                return self._result("end")
            ended = self._answer(calls)
            if ended is not None:
                return ended

    def _output(self) -> RunResult | None:
        """Prefill and write one output; return a result if the run stops with it."""
        transcript, writer = self.transcript, self.writer
        if not transcript.pending:
            # Going on with an output is an append of zero tokens: it moves the prefill end.
            transcript.append([], role="continue", choice=transcript.choice)
        try:
            is_done = writer.prefill()
        except ContextLimitError:
            return self._full("the next append does not fit")
        if not is_done and not writer.cancel.is_set():
            return self._limit(self.counter.why_no_output() or "the time limit")
        if not is_done:
            transcript.output([], ending="cancelled")
            return self._result("cancelled", "cancelled while the prompt was read")
        parsed, ending = writer.write()
        self.text = parsed.text
        if ending == "end":
            return None
        if ending == "cancelled":
            return self._result("cancelled", "cancelled while the answer was written")
        writer.settle()
        if ending == "context":
            return self._full("the answer does not fit")
        return self._limit(self.counter.why_no_output() or "a limit")

    def _answer(self, calls: tuple[Call, ...]) -> RunResult | None:
        """Run calls and append their results; return a result if the run stops with them."""
        transcript, writer = self.transcript, self.writer
        why = self.counter.why_no_calls(len(calls))
        room = self.context_limit - len(transcript.ids)
        max_tokens = self.answerer.result_tokens(len(calls), room)
        if why is not None or max_tokens is None:
            writer.settle()
            return self._limit(why) if why is not None else self._full("results do not fit")
        answers = self.answerer.answer(
            calls,
            max_tokens=max_tokens,
            n_before=transcript.n_results,
            meanwhile=writer.settle,
        )
        self.calls_made += answers.calls
        if answers.abort is not None or writer.cancel.is_set():
            transcript.answer_and_close(answers.texts, **answers.record())
            if answers.abort is not None:
                return self._result("error", f"a tool ended the run: {answers.abort}")
            return self._result("cancelled", "cancelled while tools ran")
        ids = self.writer.fmt.results(answers.texts)
        transcript.append(ids, role="results", **answers.record())
        return self._limit(answers.why_stop) if answers.why_stop is not None else None

    def _fits(self, ids: list[int]) -> bool:
        # At least one token must be left for the answer.
        return len(self.transcript.ids) + len(ids) < self.context_limit

    def _limit(self, why: str) -> RunResult:
        return self._result("limit", f"stopped after {why}; it can be continued")

    def _full(self, why: str) -> RunResult:
        return self._result(
            "context",
            f"the context is full ({len(self.transcript.ids)} of {self.context_limit} tokens, "
            f"{why}); begin another session or fork an earlier turn of this one",
        )

    def _result(self, reason: StopReason, message: str = "") -> RunResult:
        made = tuple(self.calls_made)
        return RunResult(self.text, made, reason, self.writer.usage, message)


def make_run(
    agent: Agent,
    transcript: Transcript,
    sequence: SequenceLike,
    *,
    grammar: Callable[[str], CallGrammar],
    listed: Sequence[str],
    kept: Kept,
    host: LoopHost,
    emit: Callable[[Event], None],
    cancel: threading.Event,
    name: str | None,
) -> Run:
    """Put one run of a session together; `listed` are the names in its frozen list of tools."""
    counter = Counter(agent.limits)
    limit = agent.engine.context_limit
    writer = Writer(
        transcript=transcript,
        sequence=sequence,
        fmt=transcript.format,
        grammar=grammar,
        sampling=Sampling(agent.temperature, agent.top_p, int(transcript.head["seed"])),
        context_limit=limit,
        counter=counter,
        emit=emit,
        cancel=cancel,
        label=f"session:{name}" if name else "run",
    )
    registered = dict(agent.registry)
    if "more" in listed:
        registered.setdefault("more", make_more())
    answerer = Answerer(
        tools=registered,
        listed=tuple(listed),
        kept=kept,
        tokenizer=agent.tokenizer,
        fmt=transcript.format,
        host=host,
        counter=counter,
        emit=emit,
        must_stop=writer.must_stop,
        session=name,
        approve=agent.approve,
    )
    return Run(transcript, writer, answerer, counter, limit, emit)
