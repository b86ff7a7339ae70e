"""Whether a checkpoint's weights are held as float32 or kept as stored: what each takes of memory.

Knows sizes and this machine's memory; reads no tensor. An explicit choice is never changed, only
commented on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Weights = Literal["dequantize", "keep"]
WeightsChoice = Literal["auto", "dequantize", "keep"]

SHARE = 0.8
"""The part of the available memory that weights may take: caches and activations need the rest."""


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """The size of a checkpoint's text model, from its headers alone."""

    stored: int
    """As the files have it."""
    dequantized: int
    """As float32; tables that are only looked up in, which stay in their files, as stored."""


def available_memory() -> int:
    """Return the bytes that this machine has available: MemAvailable, or all where Linux is not."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def choose_weights(
    choice: WeightsChoice, size: WeightBytes, *, available: int
) -> tuple[Weights, str | None]:
    """Return how weights are held, and one line for the user where that costs something.

    "auto" takes float32 when it fits in SHARE of the available bytes.
    """
    fits = size.dequantized <= SHARE * available
    if choice == "dequantize" or (choice == "auto" and fits):
        if fits:
            return "dequantize", None
        return "dequantize", (
            f"weights take {_gb(size.dequantized)} as float32, this machine has {_gb(available)} "
            f"available: expect it to run out; keeping them as stored takes {_gb(size.stored)}"
        )
    larger = size.stored > SHARE * available
    if choice == "keep" and not larger:
        return "keep", None
    reading = (
        "the checkpoint is larger than that and is read from disk as experts are used"
        if larger
        else "each use dequantizes again"
    )
    return "keep", (
        f"weights are kept as stored: {_gb(size.stored)}, as float32 they would take "
        f"{_gb(size.dequantized)}, this machine has {_gb(available)} available; {reading}"
    )


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB"
