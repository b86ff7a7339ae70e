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

from cedagent.agent.choice import check_choice
from cedagent.agent.limits import Limits
from cedagent.agent.outcome import RunResult, WarmReport
from cedagent.agent.results import make_more
from cedagent.agent.resume import open_transcript
from cedagent.agent.runner import Approver
from cedagent.agent.session import Session
from cedagent.agent.tools import Tool, as_tools
from cedagent.chat.grammar import CallGrammar
from cedagent.chat.template import ChatFormat, ToolSpec, chat_format, load_chat_format
from cedagent.chat.tokenizer import Tokenizer
from cedagent.engine.protocol import EngineLike, Progress, Sampling
from cedagent.errors import UsageError
from cedagent.events import Event, one_line


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
    thinking: bool | None = field(default=None, kw_only=True)
    """Whether the model reasons before it answers, where its chat format can; None means off, and
    on a session that exists, what the session began with."""
    effort: int | str | None = field(default=None, kw_only=True)
    """How thoroughly it reasons, 1 to 100 or `low`, `high`, `max`; None is the format's own."""
    tools_template: str | None = field(default=None, kw_only=True)
    """The wording around the list of tools; None takes the checkpoint's, else the format's."""
    approve: Approver | None = field(default=None, kw_only=True)
    """Asked with name and arguments before a tool made with `approve="ask"` runs."""
    tokenizer: Tokenizer = field(init=False, repr=False)
    format: ChatFormat = field(init=False, repr=False)
    registry: Mapping[str, Tool] = field(init=False, repr=False)
    """The tools by name."""
    specs: tuple[ToolSpec, ...] = field(init=False, repr=False)
    """What a new session lists, `more` included where a result may have to be read on."""

    def __post_init__(self) -> None:
        self._check_settings()
        tools = as_tools(self.tools)
        specs = [tool.spec for tool in tools]
        if any(tool.paged for tool in tools) and all(tool.name != "more" for tool in tools):
            specs.append(make_more().spec)
        check_choice(self.tool_choice, [spec.name for spec in specs])
        tokenizer = Tokenizer.load(self.engine.model_dir)
        fmt = load_chat_format(
            self.engine.model_dir,
            self.engine.chat_format,
            tokenizer=tokenizer,
            tools_template=self.tools_template,
            thinking=bool(self.thinking),
            effort=self.effort,
        )
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

    def warm(self, *, label: str = "warm", progress: Progress | None = None) -> WarmReport:
        """Encode the system prompt and tools ahead of time and pin them in the engine's store.

        Every later session, also of another process, starts from their whole blocks; the partial
        block behind them is left to it. Without a store that can be written nothing is kept.
        """
        started = time.monotonic()
        ids = self.format.begin(self.system, self.specs)
        used = self.engine.warm(ids, label=label, progress=progress)
        return WarmReport(
            tokens=len(ids),
            hit=used.encoded == 0,
            reused=used.reused_ram + used.reused_disk,
            encoded=used.encoded,
            seconds=time.monotonic() - started,
        )

    def replace(self, **changes: Any) -> Agent:
        """Return an agent that differs in the given settings."""
        return replace(self, **changes)

    def format_of(self, *, thinking: bool, effort: int | None) -> ChatFormat:
        """Return the chat format with a session's own way of reasoning; raises ConfigError."""
        if (thinking, effort) == (self.format.thinking, self.format.effort):
            return self.format
        # A session's system turn is there already, so that the wording of tools does not matter.
        return chat_format(
            self.engine.chat_format, tokenizer=self.tokenizer, thinking=thinking, effort=effort
        )

    def draw_seed(self) -> int:
        """Return the seed of a new session."""
        return secrets.randbits(64) if self.seed is None else self.seed

    def _check_settings(self) -> None:
        is_system = self.system is None or isinstance(self.system, str)
        is_tools = isinstance(self.tools, Sequence) and not isinstance(self.tools, str)
        is_template = self.tools_template is None or isinstance(self.tools_template, str)
        is_thinking = self.thinking is None or isinstance(self.thinking, bool)
        for name, value, is_right, expected in (
            ("system", self.system, is_system, "a text or None"),
            ("tools", self.tools, is_tools, "a list of tools"),
            ("thinking", self.thinking, is_thinking, "True, False or None"),
            ("tools_template", self.tools_template, is_template, "a text or None"),
            ("limits", self.limits, isinstance(self.limits, Limits), "Limits"),
            ("approve", self.approve, self.approve is None or callable(self.approve), "a function"),
        ):
            if not is_right:
                raise UsageError(f"{name}: expected {expected}, got {one_line(repr(value))[:80]}")
        # It knows the ranges of these.
        Sampling(self.temperature, self.top_p, 0 if self.seed is None else self.seed)
