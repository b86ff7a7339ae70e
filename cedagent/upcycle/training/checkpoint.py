"""Where a run stands, on disk: parameters, the optimiser's moments, step, tokens, seconds.

One safetensors file that is replaced whole, and a log of JSON lines that is cut back to it. Knows
nothing of what is trained. Invariant: a process that dies at any moment leaves a checkpoint that a
run can go on from, or none.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cedagent.errors import CedError, UsageError

CHECKPOINT, LOG, RESULT = "checkpoint.safetensors", "log.jsonl", "trained.safetensors"

_KEY = "cedagent"


@dataclass(frozen=True, slots=True)
class Standing:
    """What a run that goes on needs."""

    step: int
    """Steps done."""
    tokens: int
    """Tokens run in them."""
    seconds: float
    """Time spent, over all processes."""
    identity: Mapping[str, Any]
    """Recipe, model and start: another one is another run."""
    tensors: Mapping[str, Tensor]
    """Parameters and moments by name."""


def write_checkpoint(folder: Path, standing: Standing) -> None:
    """Replace the folder's checkpoint; raises CedError when it cannot be written."""
    temporary = folder / f".{CHECKPOINT}.tmp"
    values = {
        "step": standing.step,
        "tokens": standing.tokens,
        "seconds": standing.seconds,
        "identity": standing.identity,
    }
    try:
        save_file(
            {name: tensor.detach().cpu() for name, tensor in standing.tensors.items()},
            temporary,
            metadata={"format": "pt", _KEY: json.dumps(values, sort_keys=True)},
        )
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, folder / CHECKPOINT)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise CedError(f"cannot write {folder / CHECKPOINT}: {error}") from error


def read_checkpoint(folder: Path, identity: Mapping[str, Any]) -> Standing | None:
    """Return where the folder's run stands, None when there is none.

    Raises UsageError when it is another run's, or damaged.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            opened = cast(Any, file)
            values = json.loads(opened.metadata()[_KEY])
            tensors = {name: file.get_tensor(name) for name in list(opened.keys())}
        standing = Standing(tensors=tensors, **values)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is damaged ({error}): remove {folder} to begin again, or give another --out"
        ) from None
    if standing.identity != identity:
        raise UsageError(
            f"{folder} holds a run of another recipe ({_difference(standing.identity, identity)}): "
            "give the same settings to go on with it, or another --out"
        )
    return standing


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Name the first setting that differs."""
    for name in sorted(before.keys() | now.keys()):
        mine, theirs = now.get(name), before.get(name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping) and mine != theirs:
            return _difference(theirs, mine)
        if mine != theirs:
            return f"{name} was {theirs}, now {mine}"
    return "nothing"


class Log:
    """JSON lines, one for each step and event; also what a killed process wrote last."""

    def __init__(self, path: Path, *, steps: int) -> None:
        """Open the log of a run that goes on after `steps` steps; what came after is dropped."""
        kept = []
        if path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict) and entry.get("step", 0) <= steps:
                    kept.append(line + "\n")
        path.write_text("".join(kept), encoding="utf-8")
        self._path = path

    def write(self, event: str, step: int, **values: Any) -> None:
        """Add one line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "step": step, **values}) + "\n")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder and hold it; raises UsageError when another process trains there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise UsageError(f"cannot train in {folder}: {error.strerror or error}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another process trains in {folder}: give another --out") from None
        yield
