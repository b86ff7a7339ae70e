"""Which rows one forward runs, and which window keys each of them sees (report, CSA2 and replay).

Three kinds: a whole tile at its absolute place, a batch of rows as a replay runs them, and the one
row of a decoded token. Shapes are a function of positions alone, never of what was cached.

Letters: T rows, n window keys, K picks, B candidate blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cedagent.model.config import TILE


@dataclass(slots=True)
class Shared:
    """What an index source leaves to the layers after it, within one forward."""

    picks: Tensor | None = None
    """[T, K] int64: stored rows that attention reads, -1 for none."""
    candidates: Tensor | None = None
    """[T, B] bool: blocks that later index sources may pick from."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Rows [start, start + n) of a sequence as one forward through some layers."""

    start: int
    n: int
    first_key: int
    """Position of the first window key."""
    seen: tuple[Tensor, Tensor]
    """Two [T] int32: row t sees window keys seen[0][t] <= j < seen[1][t] from `first_key` on."""
    routed: Tensor
    """[T] bool: rows that experts run on; padding and rows before a layer's start are not."""
    shared: Shared = field(default_factory=Shared)

    @property
    def stop(self) -> int:
        """Position after the last row; stored rows of the tokens below it are in sight."""
        return self.start + self.n

    def sharing(self, shared: Shared) -> Forward:
        """Return the same rows as a later layer runs them, with what index sources left."""
        return replace(self, shared=shared)

    def visible(self, ratio: int) -> Tensor:
        """Return how many stored rows of this ratio each row may see: [T] int64."""
        return torch.arange(self.start + 1, self.stop + 1) // ratio


def tile_forward(tile: int, *, window: int, n_tokens: int, first_row: int = 0) -> Forward:
    """Return tile `tile`, whole: rows at or after `n_tokens` are padding.

    Rows before `first_row` are zero and masked: a layer of an exact replay starts there.
    """
    start = tile * TILE
    first_key = max(0, start - (window - 1))
    position = torch.arange(start, start + TILE, dtype=torch.int32)
    # A row before the layer's start is not needed; it sees itself, so that it stays finite.
    first = (position - (window - 1)).clamp(min=first_row).minimum(position)
    seen = (first - first_key).clamp(min=0), position + 1 - first_key
    routed = (position >= first_row) & (position < n_tokens)
    return Forward(start, TILE, first_key, seen, routed)


def batch_forward(start: int, stop: int, *, window: int) -> Forward:
    """Return rows [start, stop) as one batch whose window is clipped at `start`."""
    n = stop - start
    last = torch.arange(1, n + 1, dtype=torch.int32)
    seen = (last - window).clamp(min=0), last
    return Forward(start, n, start, seen, torch.ones(n, dtype=torch.bool))


def row_forward(pos: int, *, window: int) -> Forward:
    """Return the one row at `pos`."""
    first_key = max(0, pos - (window - 1))
    seen = torch.zeros(1, dtype=torch.int32), torch.tensor([pos + 1 - first_key], dtype=torch.int32)
    return Forward(pos, 1, first_key, seen, torch.ones(1, dtype=torch.bool))
