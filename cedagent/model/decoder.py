"""The decoder half: layers E .. L-1, run as a replay or one row at a time (report, CED).

Their global memory is the decoder source's stored rows, a function of encoder outputs alone; their
windows are their own. A bounded replay runs its rows as one batch and clips windows at its start.
An exact replay runs encode's absolute tiles, each layer from its own start on, and equals a full
one bit for bit.

Letters: T rows, S streams, D hidden, n tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cedagent.model.block import Block
from cedagent.model.config import TILE
from cedagent.model.encoder import Outputs
from cedagent.model.forward import Forward, Shared, tile_forward
from cedagent.model.source import SourceRows
from cedagent.model.stored_rows import StoredRows
from cedagent.model.v41_config import V41Config


class Decoder:
    """Layers E .. L-1."""

    def __init__(self, config: V41Config, blocks: Sequence[Block]) -> None:
        """Take the decoder's layers."""
        self._window = config.window
        self._blocks = blocks

    def run(
        self,
        rows: Forward,
        inputs: Outputs,
        windows: Sequence[StoredRows],
        sources: Mapping[int, SourceRows],
    ) -> Outputs:
        """Run all layers on one batch of rows, or on one decoded row."""
        streams, pre = inputs
        for block, own in zip(self._blocks, windows, strict=True):
            streams, pre = block.run(streams, block.enter(streams, pre), rows, own, sources)
        return Outputs(streams, pre)

    def tiles(
        self,
        inputs: Outputs,
        windows: Sequence[StoredRows],
        sources: Mapping[int, SourceRows],
        *,
        first_tile: int,
        starts: Sequence[int],
        n_tokens: int,
    ) -> Outputs:
        """Replay whole tiles from `first_tile` on: outputs [n * 128, ...] to the last layer's.

        Layer i runs rows from starts[i] on; rows before it are zero and masked. A full replay has
        all starts 0. Rows at or after `n_tokens` are padding, which no earlier row sees.
        """
        streams, pre = inputs.streams.clone(), inputs.pre.clone()
        n_tiles = len(streams) // TILE
        shared: dict[int, Shared] = {}
        for block, own, start in zip(self._blocks, windows, starts, strict=True):
            for tile in range(max(start // TILE, first_tile), first_tile + n_tiles):
                rows = tile_forward(tile, window=self._window, n_tokens=n_tokens, first_row=start)
                # What an index source picked in a tile serves the layers after it there.
                rows = rows.sharing(shared.setdefault(tile, rows.shared))
                kept = slice((tile - first_tile) * TILE, (tile - first_tile + 1) * TILE)
                before = max(0, start - tile * TILE)
                part, part_pre = streams[kept], pre[kept]
                part[:before], part_pre[:before] = 0, 0
                entered = block.enter(part, part_pre)
                streams[kept], pre[kept] = block.run(part, entered, rows, own, sources)
        return Outputs(streams, pre)
