"""The rotary angles of a V4.1 model: two bases, one per kind of layer (report, section on CSA2).

Layers that only see a window turn with rope_theta; layers with a compressed branch turn everything
(queries, window rows, latents, index keys, the inverse on the output) with compress_rope_theta and
YaRN. Only the last qk_rope_head_dim channels turn, in adjacent pairs.

Letters: T rows, R rotated channels.
"""

from __future__ import annotations

from torch import Tensor

from ced_kernels.rope import pair_table
from cedagent.model.v41_config import V41Config

_FIRST_POSITIONS = 4096

Angles = tuple[Tensor, Tensor]
"""(cos, sin), each [T, R / 2] for R rotated channels."""


class Ropes:
    """Cosines and sines by layer and position; tables grow as positions are asked for."""

    def __init__(self, config: V41Config) -> None:
        """Start with empty tables."""
        self._config = config
        self._tables: dict[bool, Angles] = {}

    def angles(self, layer: int, start: int, n_rows: int, *, step: int = 1) -> Angles:
        """Return the angles of `n_rows` positions start, start + step, ... for a layer's base."""
        stop = start + n_rows * step
        cos, sin = self._table(layer, stop)
        return cos[start:stop:step], sin[start:stop:step]

    def _table(self, layer: int, stop: int) -> Angles:
        compressed = self._config.ratio(layer) > 0
        table = self._tables.get(compressed)
        if table is None or len(table[0]) < stop:
            size = _FIRST_POSITIONS
            while size < stop:
                size *= 2
            table = pair_table(
                size,
                self._config.qk_rope_head_dim,
                theta=self._config.rope_theta_of(layer),
                yarn=self._config.yarn_of(layer),
            )
            self._tables[compressed] = table
        return table
