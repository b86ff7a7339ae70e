"""One conversation with an agent: run it, watch it, cancel it, fork it, come back to it by name.

All state of a conversation is here and in its log; an Agent has none. One run at a time; the run
itself is in a thread of its own, so that nothing here blocks an event loop.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from cedagent.agent.choice import check_choice
from cedagent.agent.host import LoopHost
from cedagent.agent.loop import make_run
from cedagent.agent.outcome import RunResult
from cedagent.agent.resume import Opened, fork_transcript, specs_of
from cedagent.agent.worker import Worker
from cedagent.chat.grammar import CallGrammar
from cedagent.engine.protocol import SequenceLike
from cedagent.errors import SessionError, UsageError
from cedagent.events import Event, Notice, clean, one_line

if TYPE_CHECKING:
    from cedagent.agent.agent import Agent


class Session:
    """A conversation; made by `Agent.session` and `Session.fork`, also a context manager."""

    def __init__(
        self,
        agent: Agent,
        opened: Opened,
        *,
        name: str | None,
        sequence: SequenceLike | None = None,
    ) -> None:
        self.agent = agent
        self.name = name
        self.notices = tuple(map(one_line, opened.notices))
        """What opening it had to say; also the first events of the first run."""
        self._transcript = opened.transcript
        self._log = opened.log
        self._kept = opened.kept
        self._sequence = sequence
        self._unsaid = list(self.notices)
        self._specs = specs_of(opened.transcript.head)
        self._grammars: dict[str, CallGrammar] = {}
        self._cancel = threading.Event()
        self._worker: Worker | None = None
        self._starting = threading.Lock()
        self._closed = False

    @property
    def ids(self) -> Sequence[int]:
        """All token ids so far; only ever extended."""
        return tuple(self._transcript.ids)

    @property
    def n_tokens(self) -> int:
        """Number of token ids so far."""
        return len(self._transcript.ids)

    @property
    def n_turns(self) -> int:
        """Number of user messages so far."""
        return len(self._transcript.turn_starts)

    @property
    def seed(self) -> int:
        """The seed of all draws, chosen when the session began."""
        return int(self._transcript.head["seed"])

    @property
    def path(self) -> Path | None:
        """The log, or None for a session without a name."""
        return self._log.path if self._log is not None else None

    @property
    def unfinished(self) -> Literal["append", "calls", "output"] | None:
        """What `run()` without a message would go on with, or None."""
        return self._transcript.unfinished

    def run(self, prompt: str | None = None, *, tool_choice: str | None = None) -> RunResult:
        """Take one turn and return its result; without a prompt, go on with an unfinished one.

        An unfinished turn is one that a limit or a crash stopped. What was appended is prefilled to
        the same end and sampled again; calls whose results are not in the log are run (again).
        Raises UsageError and SessionError, and EngineError if the engine cannot go on.
        """
        worker = self._begin(prompt, tool_choice)
        events = worker.events()
        while True:
            try:
                next(events)
            except StopIteration as stop:
                result: RunResult = stop.value
                return result

    def stream(
        self, prompt: str | None = None, *, tool_choice: str | None = None
    ) -> Generator[Event, None, RunResult]:
        """Take one turn and yield its events; leaving early cancels it."""
        return (yield from self._begin(prompt, tool_choice).events())

    async def arun(self, prompt: str | None = None, *, tool_choice: str | None = None) -> RunResult:
        """As `run`, without blocking the event loop; cancelling the task cancels the run."""
        return await self._begin(prompt, tool_choice).aresult()

    async def astream(
        self, prompt: str | None = None, *, tool_choice: str | None = None
    ) -> AsyncIterator[Event]:
        """As `stream`, without blocking the event loop."""
        events = self._begin(prompt, tool_choice).aevents()
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def cancel(self) -> None:
        """Stop the run that goes on, at the next tile, token or tool poll; from any thread."""
        self._cancel.set()

    def fork(
        self, name: str | None = None, *, turns: int | None = None, seed: int | None = None
    ) -> Session:
        """Return a new session that begins as this one: whole, or its first `turns` turns.

        A negative `turns` counts from the end: -1 leaves the last turn out. Raises SessionError.
        """
        self._check_idle()
        opened = fork_transcript(
            self._transcript, self._kept, name=name, parent=self.name, turns=turns, seed=seed
        )
        shared = None
        if self._sequence is not None:
            known = opened.transcript.known_before_append()
            shared = self._sequence.fork(min(known, len(self._sequence.ids)))
        return Session(self.agent, opened, name=name, sequence=shared)

    def close(self) -> None:
        """Cancel what still runs, drop the state in RAM and give the log free."""
        if self._worker is not None:
            self._worker.stop()
        self._closed = True
        self._drop_sequence()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_idle(self) -> None:
        if self._closed:
            raise SessionError("this session is closed; open it again by its name")
        if self._worker is not None and not self._worker.is_over:
            raise SessionError("a run of this session is still going on; cancel it or wait")

    def _begin(self, prompt: str | None, tool_choice: str | None) -> Worker:
        if prompt is not None and not isinstance(prompt, str):
            raise UsageError(f"prompt: expected a text or None, got {type(prompt).__name__}")
        choice = self.agent.tool_choice if tool_choice is None else tool_choice
        check_choice(choice, [spec.name for spec in self._specs])
        with self._starting:
            self._check_idle()
            self._cancel = cancel = threading.Event()
            text = None if prompt is None else clean(prompt)

            def body(emit: Callable[[Event], None], host: LoopHost) -> RunResult:
                # Compiled first: what cannot be enforced is told before anything is appended.
                self._grammar(choice)
                try:
                    return self._run(text, choice, emit, host, cancel)
                except BaseException:
                    # The engine's state may be ahead of the log; the next run starts from the log.
                    self._drop_sequence()
                    raise

            self._worker = Worker(body, cancel=cancel)
            return self._worker

    def _run(
        self,
        prompt: str | None,
        choice: str,
        emit: Callable[[Event], None],
        host: LoopHost,
        cancel: threading.Event,
    ) -> RunResult:
        agent, transcript = self.agent, self._transcript
        for message in self._unsaid:
            emit(Notice(message))
        self._unsaid.clear()
        if transcript.model_digest != agent.engine.model_digest:
            transcript.switch_model(agent.engine.model_digest)
        if self._sequence is None:
            known = transcript.ids[: transcript.known_before_append()]
            self._sequence = agent.engine.sequence(known)
        if self._log is not None:
            self._log.say = lambda message: emit(Notice(message))
        run = make_run(
            agent,
            transcript,
            self._sequence,
            grammar=self._grammar,
            listed=[spec.name for spec in self._specs],
            kept=self._kept,
            host=host,
            emit=emit,
            cancel=cancel,
            name=self.name,
        )
        return run.run(prompt, choice)

    def _grammar(self, choice: str) -> CallGrammar:
        if choice not in self._grammars:
            agent = self.agent
            self._grammars[choice] = CallGrammar(
                self._transcript.format,
                agent.tokenizer,
                self._specs,
                choice=choice,
                vocab_size=agent.engine.vocab_size,
            )
        return self._grammars[choice]

    def _drop_sequence(self) -> None:
        if self._sequence is not None:
            self._sequence.close()
            self._sequence = None
