"""The engine's side of a run: prefill what is not known yet, write one output, settle it.

Knows the transcript, the grammar and an engine's narrow door; nothing of tools or results. Both
ends of an output are exact: what is drawn goes through the engine one token at a time, and what was
only appended is left to the next prefill.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from cedagent.agent.limits import Counter
from cedagent.agent.transcript import Ending, Transcript
from cedagent.chat.grammar import CallGrammar, Constraint
from cedagent.chat.output import (
    ArgsDelta,
    CallStart,
    Output,
    OutputParser,
    ParserEvent,
    TextDelta,
    ThinkingDelta,
)
from cedagent.chat.template import ChatFormat
from cedagent.engine.protocol import PrefillUsage, Sampling, SequenceLike
from cedagent.events import Event, Prefill, Text, Thinking, ToolArgs, ToolStart, Usage

_SHARED = {f.name for f in fields(PrefillUsage)} & {f.name for f in fields(Usage)}


@dataclass(slots=True)
class Writer:
    """Writes outputs of one run into its transcript."""

    transcript: Transcript
    sequence: SequenceLike
    fmt: ChatFormat
    grammar: Callable[[str], CallGrammar]
    """The call grammar for a tool choice; compiled once per session and choice."""
    sampling: Sampling
    context_limit: int
    counter: Counter
    emit: Callable[[Event], None]
    cancel: threading.Event
    label: str
    usage: Usage = field(default_factory=Usage)

    def must_stop(self) -> bool:
        """Tell whether the run was cancelled or is out of time; polled per tile and per token."""
        return self.cancel.is_set() or self.counter.is_late()

    def prefill(self) -> bool:
        """Bring the engine's sequence up to the transcript; False if it was stopped.

        Raises ContextLimitError.
        """
        reported: list[bool] = []

        def progress(done: int, total: int, reused: int) -> None:
            reported[:] = [done >= total]
            self.emit(Prefill(done, total, reused))

        new_ids = self.transcript.ids[len(self.sequence.ids) :]
        used = self.sequence.prefill(
            new_ids, progress=progress, cancelled=self.must_stop, label=self.label
        )
        self.usage += Usage(**{name: getattr(used, name) for name in _SHARED})
        if used.cancelled:
            return False
        if reported != [True]:
            total = len(self.transcript.ids)
            self.emit(Prefill(total, total, used.reused_ram + used.reused_disk))
        return True

    def write(self) -> tuple[Output, Ending]:
        """Write one output after a prefill, or the rest of one, and record it."""
        self.counter.outputs += 1
        parser = self.fmt.parser()
        constraint = self.grammar(self.transcript.choice).start()
        for token in self.transcript.open or ():
            parser.push(token)
            constraint.advance(token)
        written, ending = self._draw(parser, constraint)
        self._show(parser.flush())
        self.transcript.output(written, ending=ending)
        return parser.finish(), ending

    def settle(self) -> None:
        """Let the engine encode the output's whole tiles on the grid and publish them."""
        rest = self.transcript.ids[len(self.sequence.ids) :]
        # The ids that close an output may be the first that do not fit; nothing can follow them.
        if len(self.transcript.ids) > self.context_limit:
            return
        if rest:
            self.sequence.append_unseen(rest)
        self.usage += Usage(settled=self.sequence.settle(label=self.label))

    def _draw(self, parser: OutputParser, constraint: Constraint) -> tuple[list[int], Ending]:
        written: list[int] = []
        n_before = len(self.transcript.ids)
        while True:
            if self.cancel.is_set():
                return written, "cancelled"
            left = self.counter.tokens_left()
            if self.counter.is_late() or (left is not None and left <= 0):
                return written, "limit"
            if n_before + len(written) >= self.context_limit:
                return written, "context"
            # A token is fed only when another one is wanted after it.
            if written:
                self.sequence.feed(written[-1])
            token = constraint.forced()
            if token is None:
                token = self.sequence.sample(
                    self.sampling, constraint.mask(), majority=constraint.majority()
                )
                self.usage += Usage(sampled=1)
            else:
                self.usage += Usage(forced=1)
            constraint.advance(token)
            written.append(token)
            self.counter.tokens += 1
            self._show(parser.push(token))
            if token in self.fmt.stop_ids:
                return written, "end"
            if self.counter.is_stuck(written):
                return written, "limit"

    def _show(self, events: list[ParserEvent]) -> None:
        for event in events:
            match event:
                case ThinkingDelta(text):
                    self.emit(Thinking(text))
                case TextDelta(text):
                    self.emit(Text(text))
                case CallStart(index, name):
                    self.emit(ToolStart(index, name))
                case ArgsDelta(index, text):
                    self.emit(ToolArgs(index, text))
                case _:
                    continue
