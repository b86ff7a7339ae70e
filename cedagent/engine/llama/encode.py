"""Encode: tiles of 128 rows through the encoder, on the absolute grid.

A partial last tile is filled up with one fixed token, whose rows nobody sees. A tile's rows have
the same bits in every situation, so tiles are the only way in which settled rows come to be. A
re-run of a settled tile makes the rows of windowed layers again; it reads the stored rows, writes
none, and compares with them what it computes: a check for damage and for changed arithmetic.
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
        state.settled = state.encoder_windows_at = start + TILE


def rerun_tile(
    model: LlamaModel, state: SequenceState, ids: Sequence[int], *, tile: int, empty_from: int
) -> int | None:
    """Run a settled tile again for its window rows; returns where stored rows differ, if they do.

    Windows were empty at `empty_from`, 0 when they were not.
    """
    config, start = model.config, tile * TILE
    stop = start + TILE
    e_out, made = model.encoder.rerun(model.embed(ids[start:stop]), state.encoder, tile=tile)
    state.encoder_windows_at = stop

    def first_exact(n_below: int) -> int:
        exact = exact_from(empty_from, n_below, window=config.decoder_window)
        return min(stop, max(start, exact))

    windowed = config.encoder_windowed_layers
    found = []
    for layer, cache in made.items():
        first = first_exact(sum(below < layer for below in windowed))
        found.append(cache.differs_at(state.encoder[layer], first, stop))
    first = first_exact(len(windowed))
    found.append(state.e_out_differs_at(first, e_out[first - start :]))
    return min((place for place in found if place is not None), default=None)


def exact_from(empty_from: int, n_below: int, *, window: int) -> int:
    """Return the position from which a layer's input is exact when windows began empty.

    A windowed layer's output needs W - 1 exact rows of its input before it; a global layer's none,
    since in a re-run its keys are the stored rows. So the windowed layers below count alone.
    """
    return empty_from + n_below * (window - 1) if empty_from else 0
