"""A chat as the command line holds it: one engine, the session in use, and how it is shown.

It opens, forks and switches sessions and turns a message into events for a renderer; it never
touches token ids. A stop by Ctrl-C leaves the session as it is and the conversation usable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cedagent.cli.approval import Approval
from cedagent.cli.interrupt import stop_on_interrupt
from cedagent.cli.opening import Opening, check_tool_choice
from cedagent.cli.pace import Pace
from cedagent.cli.render import Renderer, warn
from cedagent.cli.report import count
from cedagent.cli.session_names import fresh_name, listed_tools
from cedagent.errors import SessionError
from cedagent.events import Done, ToolEnd, Usage
from cedagent.paths import sessions_dir

if TYPE_CHECKING:
    from cedagent.agent.agent import Agent
    from cedagent.agent.session import Session
    from cedagent.agent.tools import Tool
    from cedagent.engine import Engine

EXIT_CODES = {"end": 0, "limit": 3, "context": 3, "error": 5, "cancelled": 130}
"""Stop reason of a run -> exit code of the process."""
REFUSED = 4
"""The exit code of a run that ended, but not without a call that was turned down."""

Must = Literal["be new", "exist", "either"]


@dataclass(frozen=True, slots=True)
class Setup:
    """What an agent is made of, as the options say it."""

    engine: Engine
    system: str | None
    builtin: Sequence[Tool]
    tools: Sequence[Tool]
    """The tools that the user named."""
    temperature: float
    top_p: float
    seed: int | None
    max_tokens: int | None
    tool_choice: str
    thinking: bool | None
    effort: int | None
    approval: Approval

    def agent(self, *, listed: frozenset[str] | None = None) -> Agent:
        """Return the agent; the list of a session chooses among the built-in tools."""
        from cedagent.agent.agent import Agent
        from cedagent.agent.limits import Limits

        builtin = [t for t in self.builtin if listed is None or t.name in listed]
        return Agent(
            self.engine,
            system=self.system,
            tools=[*builtin, *self.tools],
            limits=Limits() if self.max_tokens is None else Limits(tokens=self.max_tokens),
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            tool_choice=self.tool_choice,
            thinking=self.thinking,
            effort=self.effort,
            approve=self.approval if self.approval.can_ask else None,
        )


class Conversation:
    """The session in use and its renderer."""

    def __init__(self, setup: Setup, renderer: Renderer) -> None:
        self._setup = setup
        self._renderer = renderer
        self._session: Session | None = None
        self._total = Usage()
        self._last: tuple[Usage, float] | None = None
        self._warned: set[str] = set()
        self.on_stop: Callable[[], None] = lambda: None
        """Called, perhaps in a signal handler, when an answer is told to stop."""
        self._warn_of_engine()

    @property
    def name(self) -> str:
        """Name of the session in use."""
        return self._open.name or ""

    @property
    def footer(self) -> str:
        """Figures of the session and of its last answer, one line."""
        session, limit = self._open, self._setup.engine.context_limit
        parts = [self.name, f"context {session.n_tokens:,} / {limit:,}"]
        if self._last is not None:
            used, speed = self._last
            reused = used.reused_ram + used.reused_disk
            parts.append(f"reused {reused:,} ({used.reused_disk:,} from disk)")
            parts.append(f"encoded {used.encoded:,}")
            if speed:
                parts.append(f"{speed:.0f} tok/s")
        return " · ".join(parts)

    @property
    def _open(self) -> Session:
        assert self._session is not None
        return self._session

    def open(self, name: str | None, *, must: Must = "either") -> None:
        """Go on with a session by name, or begin one; without a name it gets one from the clock.

        Raises SessionError, and then the session in use stays.
        """
        path = sessions_dir() / f"{name}.jsonl"
        if name is not None and must == "exist" and not path.is_file():
            raise SessionError(f"no session {name}; `cedagent sessions ls` lists them")
        if name is not None and must == "be new" and path.is_file():
            raise SessionError(f"session {name} exists; /switch goes on with it")
        listed = listed_tools(name)
        agent = self._setup.agent(listed=listed)
        check_tool_choice(
            agent.tool_choice,
            {spec.name for spec in agent.specs} if listed is None else listed,
        )
        self._take(agent.session(name or fresh_name()))

    def begin(self, opening: Opening) -> None:
        """Open the session that a chat begins with; raises UsageError."""
        if opening.origin is None:
            self.open(opening.name, must="exist" if opening.must_exist else "either")
        else:
            self.open(opening.origin, must="exist")
            self.fork(opening.turns, name=opening.name, seed=self._setup.seed)

    def fork(self, turns: int | None, *, name: str | None = None, seed: int | None = None) -> None:
        """Go on in a copy of the session in use, whole or up to a turn; raises UsageError."""
        self._take(self._open.fork(name or fresh_name(self.name), turns=turns, seed=seed))

    def close(self) -> None:
        """Close the session in use; the engine is whose it was."""
        if self._session is not None:
            self._session.close()

    def say(self, prompt: str | None) -> int:
        """Take one turn, show its events, and return the exit code of its stop reason."""
        session = self._open
        stopped = False

        def stop() -> None:
            nonlocal stopped
            stopped = True
            session.cancel()
            self.on_stop()

        approval = self._setup.approval
        approval.refused, approval.is_stopped = False, lambda: stopped
        code, pace = 0, Pace()
        with stop_on_interrupt(stop):
            for event in session.stream(prompt):
                if stopped:
                    # Once more: the first one may have come before the run had begun.
                    session.cancel()
                pace.note(event)
                self._renderer.event(event)
                if isinstance(event, ToolEnd):
                    self._tell_if_unasked(event)
                if isinstance(event, Done):
                    self._total += event.usage
                    self._last = event.usage, pace.tokens_per_second(event.usage)
                    code = EXIT_CODES[event.stop_reason]
                    if event.stop_reason != "end":
                        warn(event.message or event.stop_reason)
        self._warn_of_engine()
        return REFUSED if code == 0 and approval.refused else code

    def describe(self) -> str:
        """Return one line about the session in use."""
        session = self._open
        if not session.n_turns:
            return f"Session {session.name}."
        rest = " Its last turn is not finished: /continue." if session.unfinished else ""
        size = f"{count(session.n_turns, 'turn')}, {count(session.n_tokens, 'token')}"
        return f"Session {session.name}, {size}.{rest}"

    def tools(self) -> list[tuple[str, str]]:
        """Return name and description of the tools that the session may call."""
        return [(tool.name, tool.description) for tool in self._open.agent.registry.values()]

    def usage_lines(self) -> list[str]:
        """Return what this process's runs cost, in the words of docs/structure.md."""
        used, limit = self._total, self._setup.engine.context_limit
        return [
            f"context {self._open.n_tokens:,} of {limit:,} tokens",
            f"prompt {used.prompt:,}: reused {used.reused_ram:,} from RAM, {used.reused_disk:,} "
            f"from disk, encoded {used.encoded:,} ({used.reencoded:,} of them known before)",
            f"output: sampled {used.sampled:,}, forced {used.forced:,}, settled {used.settled:,}",
            f"rows: padded {used.padded:,}, replayed {used.replayed:,}, rerun {used.rerun:,}",
        ]

    def _take(self, session: Session) -> None:
        if self._session is not None:
            self._session.close()
        self._session = session
        self._total, self._last = Usage(), None

    def _tell_if_unasked(self, event: ToolEnd) -> None:
        """Say that a call was turned down for want of a terminal to ask on."""
        approval, tool = self._setup.approval, self._open.agent.registry.get(event.name)
        if event.error and tool is not None and tool.approve == "ask" and not approval.can_ask:
            approval.refused = True
            warn(f"{event.name} was not run: it asks for an approval, and there is no terminal")

    def _warn_of_engine(self) -> None:
        for notice in self._setup.engine.notices:
            if notice not in self._warned:
                self._warned.add(notice)
                warn(notice)
