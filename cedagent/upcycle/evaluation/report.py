"""An evaluation as a value and as JSON: figures, and all that is needed to measure them again.

Knows no engine. Invariant: what is read back equals what was written; a file of another kind or
version is refused, not half understood.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from cedagent.errors import CedError, UsageError
from cedagent.upcycle.evaluation.closeness import Closeness
from cedagent.upcycle.evaluation.figures import Figure
from cedagent.upcycle.evaluation.tools import KindReport

Suite = Literal["text", "tools", "needle"]
SUITES: tuple[Suite, ...] = ("text", "tools", "needle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured, and on how much; the same settings draw the same texts and cases."""

    suites: tuple[Suite, ...] = SUITES
    cases: int = 100
    """Cases of each kind."""
    texts: int = 8
    tokens: int = 4097
    """Tokens of each text."""
    needles: tuple[int, ...] = (500, 1000, 2000, 3000)
    """Tokens of the tool results that hold needles."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of its range."""
        if not self.suites or set(self.suites) - set(SUITES):
            raise UsageError(
                f"suites: expected one or more of {', '.join(SUITES)}, got {list(self.suites)!r}"
            )
        for name, least in (("cases", 1), ("texts", 1), ("tokens", 2), ("seed", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name}: expected at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the model costs, from its config alone."""

    append_tokens: int
    append_token_layers: int
    """An append of that many tokens: encoder layers times tokens, and the bounded replay."""
    full_token_layers: int
    """The same through every layer, as a decoder-only model runs it."""
    bytes_per_token: int
    """Settled streams on disk."""
    snapshot_bytes: int
    """Windows of encoder layers that do not see the whole text, where a session is taken up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """Everything about one model."""

    model: str
    """As it was named."""
    digest: str
    """Of config and weights."""
    origin: dict[str, Any]
    """What origin.json says: source, recipe, training."""
    config: dict[str, Any]
    """Layers, split, global encoder layers, window, replay, stored type."""
    kernels: str
    """What runs between the products."""
    parent: str
    """Digest of the parent that it was compared with; empty without the text suite."""
    cost: Cost
    settings: Settings
    figures: tuple[Figure, ...]
    text: Closeness | None
    kinds: tuple[KindReport, ...]
    """Tools and needles."""
    seconds: dict[str, float]
    """Suite -> time it took."""
    machine: dict[str, Any]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Several models side by side."""

    models: tuple[ModelReport, ...]
    kind: Literal["cedagent evaluation"] = "cedagent evaluation"
    version: Literal[1] = 1


def write_report(path: Path, models: Sequence[ModelReport]) -> None:
    """Write models as one JSON file, whole or not at all; raises CedError when it cannot be."""
    content = msgspec.json.format(msgspec.json.encode(Report(models=tuple(models))), indent=2)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(content + b"\n")
        os.replace(temporary, path)
    except OSError as error:
        # A full disk's error names no file.
        raise CedError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def read_report(path: Path) -> tuple[ModelReport, ...]:
    """Return the models of a JSON file; raises UsageError for anything else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report).models
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{path}: expected what `cedagent model eval --json` writes, got another file: {error}"
        ) from error
