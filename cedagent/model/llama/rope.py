"""The rotary angles of one model, by absolute position."""

from __future__ import annotations

from torch import Tensor

from ced_kernels.rope import rope_table
from cedagent.model.config import TILE
from cedagent.model.llama.config import LlamaConfig


class Rope:
    """Cosines and sines for every position that a sequence or its last tile's padding has."""

    def __init__(self, config: LlamaConfig) -> None:
        """Compute the table once."""
        n_positions = config.max_position_embeddings + TILE
        self._cos, self._sin = rope_table(n_positions, config.head_dim, theta=config.rope_theta)

    def angles(self, start: int, n_rows: int) -> tuple[Tensor, Tensor]:
        """Return (cos, sin), each [n_rows, d], for positions from `start` on."""
        stop = start + n_rows
        # A short slice would reach kernels that count on n_rows of angles.
        assert 0 <= start <= stop <= len(self._cos), f"positions {start} .. {stop - 1}"
        return self._cos[start:stop], self._sin[start:stop]
