"""An agent: an engine, a system prompt, tools and limits; immutable, with no state of its own.

Knows the engine by its narrow door only. What it says to a model (the warm prefix) is a function of
its settings alone, so that every session of it shares that prefix.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from cedagent.agent.limits import Limits
from cedagent.agent.outcome import RunResult, WarmReport
from cedagent.agent.results import make_more
from cedagent.agent.resume import open_transcript
from cedagent.agent.runner import Approver
from cedagent.agent.session import Session
from cedagent.agent.tools import Tool, as_tools
from cedagent.chat.grammar import CallGrammar
from cedagent.chat.template import ChatFormat, ToolSpec, chat_format
from cedagent.chat.tokenizer import Tokenizer
from cedagent.engine.protocol import EngineLike
from cedagent.errors import UsageError
from cedagent.events import Event

_BLOCK = 128


@dataclass(frozen=True, eq=False)
class Agent:
    """An engine with a system prompt, tools and limits."""

    engine: EngineLike
    system: str | None = None
    """None takes the chat format's own text; on a session that exists, the session's."""
    tools: Sequence[Tool | Callable[..., Any]] = field(default=(), kw_only=True)
    """Tools and plain functions; kept as a tuple of Tools in the order given."""
    limits: Limits = field(default_factory=Limits, kw_only=True)
    temperature: float = field(default=0.0, kw_only=True)
    top_p: float = field(default=1.0, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    """Seed of new sessions; None draws one per session. A session keeps the seed it began with."""
    tool_choice: str = field(default="auto", kw_only=True)
    """`auto`, `none`, `required` or a tool's name; applies to the first output of each run."""
    approve: Approver | None = field(default=None, kw_only=True)
    """Asked with name and arguments before a tool made with `approve="ask"` runs."""
    tokenizer: Tokenizer = field(init=False, repr=False)
    format: ChatFormat = field(init=False, repr=False)
    registry: Mapping[str, Tool] = field(init=False, repr=False)
    """The tools by name."""
    specs: tuple[ToolSpec, ...] = field(init=False, repr=False)
    """What a new session lists, `more` included where a result may have to be read on."""

    def __post_init__(self) -> None:
        if isinstance(self.tools, (str, Tool)) or not isinstance(self.tools, Sequence):
            raise UsageError(f"tools: expected a list of tools, got {type(self.tools).__name__}")
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature: expected 0 or more, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p: expected above 0 and at most 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise UsageError(f"seed: expected 0 to 2**64 - 1, got {self.seed}")
        tools = as_tools(self.tools)
        specs = [tool.spec for tool in tools]
        if any(tool.paged for tool in tools) and all(tool.name != "more" for tool in tools):
            specs.append(make_more().spec)
        tokenizer = Tokenizer.load(self.engine.model_dir)
        fmt = chat_format(self.engine.chat_format, tokenizer=tokenizer)
        # Tells at once of a schema that cannot be enforced, and makes the vocabulary ready, which
        # takes longer than all else about a grammar and would otherwise delay the first token.
        CallGrammar(fmt, tokenizer, specs, vocab_size=self.engine.vocab_size)
        # The dataclass is frozen for everyone else.
        for name, value in (
            ("tools", tools),
            ("registry", MappingProxyType({tool.name: tool for tool in tools})),
            ("specs", tuple(specs)),
            ("tokenizer", tokenizer),
            ("format", fmt),
        ):
            object.__setattr__(self, name, value)

    def session(self, name: str | None = None) -> Session:
        """Open a conversation; by a name it is logged, and resumed if it exists.

        Raises SessionError if it is open elsewhere, damaged, or began with other settings.
        """
        return Session(self, open_transcript(self, name), name=name)

    def run(self, prompt: str, *, tool_choice: str | None = None) -> RunResult:
        """Take one turn in a session of its own, which is not kept; raises as `Session.run`."""
        with self.session() as session:
            return session.run(prompt, tool_choice=tool_choice)

    def stream(
        self, prompt: str, *, tool_choice: str | None = None
    ) -> Generator[Event, None, RunResult]:
        """As `run`, yielding events."""
        with self.session() as session:
            return (yield from session.stream(prompt, tool_choice=tool_choice))

    async def arun(self, prompt: str, *, tool_choice: str | None = None) -> RunResult:
        """As `run`, without blocking the event loop."""
        with self.session() as session:
            return await session.arun(prompt, tool_choice=tool_choice)

    async def astream(self, prompt: str, *, tool_choice: str | None = None) -> AsyncIterator[Event]:
        """As `stream`, without blocking the event loop."""
        with self.session() as session:
            async for event in session.astream(prompt, tool_choice=tool_choice):
                yield event

    def warm(self) -> WarmReport:
        """Encode the system prompt and tools, so that every later session starts from them."""
        started = time.monotonic()
        ids = self.format.begin(self.system, self.specs)
        if not ids:
            return WarmReport(tokens=0, hit=True, reused=0, encoded=0, seconds=0.0)
        sequence = self.engine.sequence()
        try:
            used = sequence.prefill(ids, label="warm")
        finally:
            sequence.close()
        reused = used.reused_ram + used.reused_disk
        return WarmReport(
            tokens=len(ids),
            hit=reused >= len(ids) // _BLOCK * _BLOCK,
            reused=reused,
            encoded=used.encoded,
            seconds=time.monotonic() - started,
        )

    def replace(self, **changes: Any) -> Agent:
        """Return an agent that differs in the given settings."""
        return replace(self, **changes)

    def draw_seed(self) -> int:
        """Return the seed of a new session."""
        return secrets.randbits(64) if self.seed is None else self.seed
