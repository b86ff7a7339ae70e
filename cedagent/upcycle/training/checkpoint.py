"""Where a run stands, on disk: parameters, the optimiser's moments, step, tokens, seconds.

A file that is replaced whole, and a log of JSON lines that is cut back to it. Knows nothing of what
is trained. Invariant: a process that dies at any moment leaves a checkpoint that a run can go on
from, or none.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cedagent.errors import CedError, UsageError
from cedagent.upcycle.training.whole_file import read_whole, write_whole

CHECKPOINT, LOG, RESULT = "checkpoint.safetensors", "log.jsonl", "trained.safetensors"


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
    values = {
        "step": standing.step,
        "tokens": standing.tokens,
        "seconds": standing.seconds,
        "identity": standing.identity,
    }
    write_whole(folder / CHECKPOINT, standing.tensors, values=values)


def read_checkpoint(folder: Path, identity: Mapping[str, Any]) -> Standing | None:
    """Return where the folder's run stands, None when there is none.

    Raises UsageError when it is another run's, or damaged.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    try:
        tensors, values = read_whole(path)
        standing = Standing(tensors=tensors, **values)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{path} is damaged ({error}): remove {folder} to begin again, or give another --out"
        ) from None
    if standing.identity != identity:
        raise UsageError(
            f"{folder} holds a run of another recipe ({difference(standing.identity, identity)}): "
            "give the same settings to go on with it, or another --out"
        )
    return standing


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the first setting that differs, in words."""
    for name in sorted(before.keys() | now.keys()):
        mine, theirs = now.get(name), before.get(name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping) and mine != theirs:
            return difference(theirs, mine)
        if mine != theirs:
            return f"{name} was {theirs}, now {mine}"
    return "nothing"


class Log:
    """JSON lines, one for each step and event."""

    def __init__(self, path: Path, *, steps: int | None) -> None:
        """Open the log of a run that goes on after `steps` steps, None: of one that begins.

        What was written after the checkpoint is dropped, a line that was cut off among it. Raises
        CedError when it cannot be written.
        """
        kept: list[str] = []
        self.last_event: str | None = None
        """The event of the last line that was found."""
        if steps is not None and path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    entry = json.loads(line)
                    is_kept, event = entry["step"] <= steps, entry["event"]
                except (KeyError, TypeError, ValueError):
                    continue
                if is_kept:
                    kept.append(line + "\n")
                    self.last_event = event
        self._path = path
        temporary = path.with_name(f".{path.name}.tmp")
        with self._named():
            temporary.write_text("".join(kept), encoding="utf-8")
            os.replace(temporary, path)

    def write(self, event: str, step: int, **values: Any) -> None:
        """Add one line; raises CedError when it cannot be written."""
        with self._named(), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "step": step, **values}) + "\n")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say which file could not be written: a full disk's error does not."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise CedError(f"cannot write {self._path}: {reason}") from error


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
