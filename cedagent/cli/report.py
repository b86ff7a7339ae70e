"""Figures and tables as people and programs read them: sizes, ages, JSON.

It knows no command; every command that prints a table or JSON prints it through here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import click


def print_json(value: Any) -> None:
    """Print a value as indented JSON; bytes become hex, dataclasses and paths what they hold."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2, default=_plain))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under a header, each column as wide as its widest cell."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def disk_bytes(folder: Path) -> int:
    """Return what the files below a folder occupy; sparse files count what they hold."""
    total = 0
    for path in folder.rglob("*"):
        try:
            # Blocks of 512 bytes, whatever the file system's own block size is.
            total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total


def size(n_bytes: float) -> str:
    """Return a number of bytes for people: 3.1 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


def count(n: int, noun: str) -> str:
    """Return a number with its noun: 1 block, 2,000 blocks."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def age(seconds_since_epoch: float) -> str:
    """Return how long ago something was, in its largest unit: 3 h."""
    seconds = max(0.0, time.time() - seconds_since_epoch)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")
