"""Encode: tiles of 128 rows through the encoder, on the absolute grid.

A partial last tile is filled up with one fixed token, whose rows nobody sees. A tile's rows have
the same bits in every situation, so tiles are the only way in which settled rows come to be.
"""

from __future__ import annotations

from collections.abc import Sequence

from cedagent.engine.llama.state import SequenceState
from cedagent.model.config import TILE
from cedagent.model.llama.ced import LlamaModel

PADDING_ID = 0


def encode_tile(model: LlamaModel, state: SequenceState, ids: Sequence[int], *, tile: int) -> None:
    """Encode tile `tile` of the sequence and write its rows; a whole tile is settled by it."""
    start = tile * TILE
    rows = list(ids[start : start + TILE])
    n_valid = len(rows)
    rows += [PADDING_ID] * (TILE - n_valid)
    e_out = model.encoder.tile(model.embed(rows), state.encoder, tile=tile)
    state.write_e_out(start, e_out)
    state.derived = min(state.derived, start)
    if n_valid == TILE:
        state.settled = start + TILE
