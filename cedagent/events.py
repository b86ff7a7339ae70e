"""What a run reports while it goes on: small frozen events, each with one `kind` string.

Knows neither engine nor tools; `as_json` gives the same names in JSON. The order in a run is
Prefill*, then Thinking, Text, ToolStart and ToolArgs as they are written, ToolEnd as calls finish,
and again from Prefill; Done comes last, once. A Notice may come anywhere before Done.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

StopReason = Literal["end", "limit", "context", "cancelled", "error"]


def clean(text: str) -> str:
    """Return the text without lone surrogates, which no UTF-8 file or token can hold."""
    return text.encode("utf-8", "replace").decode()


def one_line(message: object) -> str:
    """Return a message, whoever wrote it, as one clean line."""
    try:
        text = str(message)
    except Exception:  # an exception of a user's tool may not even be able to say what it is
        text = type(message).__name__
    return " ".join(clean(text).split())


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one run, summed over its prefills and outputs."""

    reused_ram: int = 0
    """Prompt tokens whose rows came from an open session."""
    reused_disk: int = 0
    """Prompt tokens whose rows came from the prefix store."""
    encoded: int = 0
    """Prompt tokens that went through the encoder."""
    reencoded: int = 0
    """Of `encoded`: known before (fewer than 128 per prefill)."""
    rerun: int = 0
    """Rows run again below a restore point (in no sum)."""
    settled: int = 0
    """Output tokens encoded again on the grid (in no sum)."""
    padded: int = 0
    """Padding rows (in no sum)."""
    replayed: int = 0
    """Rows run through the decoder before an output (in no sum)."""
    sampled: int = 0
    """Output tokens that the model chose."""
    forced: int = 0
    """Output tokens that the call grammar left no choice about."""

    @property
    def prompt(self) -> int:
        """Prompt tokens: reused from RAM, reused from disk, and encoded."""
        return self.reused_ram + self.reused_disk + self.encoded

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Usage)))


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prefill got on: `done` of `total` prompt tokens, `reused` of them without work."""

    kind: ClassVar[str] = "prefill"
    done: int
    total: int
    reused: int


@dataclass(frozen=True, slots=True)
class Thinking:
    """The model reasoned, which is no part of its answer; never ends inside a character."""

    kind: ClassVar[str] = "thinking"
    delta: str


@dataclass(frozen=True, slots=True)
class Text:
    """The model wrote text; never ends inside a character."""

    kind: ClassVar[str] = "text"
    delta: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """The model began to write a call; `call_id` is its index in this output."""

    kind: ClassVar[str] = "tool_start"
    call_id: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolArgs:
    """The model wrote part of a call's arguments, as JSON text."""

    kind: ClassVar[str] = "tool_args"
    call_id: int
    delta: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """A call was answered; `result` is what the model will read."""

    kind: ClassVar[str] = "tool_end"
    call_id: int
    name: str
    arguments: dict[str, Any]
    result: str
    error: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Notice:
    """One line that a person should see: a degraded mode, a repair, a cost."""

    kind: ClassVar[str] = "notice"
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", one_line(self.message))


@dataclass(frozen=True, slots=True)
class Done:
    """The run is over; `message` says in one line why it stopped early and what to do."""

    kind: ClassVar[str] = "done"
    text: str
    stop_reason: StopReason
    usage: Usage
    message: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", one_line(self.message))


Event = Prefill | Thinking | Text | ToolStart | ToolArgs | ToolEnd | Notice | Done


def as_json(event: Event) -> dict[str, Any]:
    """Return the event as plain values, `kind` first; one such object per line is `--jsonl`."""
    return {"kind": event.kind, **asdict(event)}
