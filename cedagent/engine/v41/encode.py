"""Encode: tiles of 128 rows through layers 0 .. E-1, and layer E's projections.

A new tile writes source rows, windows and outputs. A re-run of a settled tile makes windows and
outputs again, reads the stored source rows, its own among them, and compares what it computes with
them: a check for damage and for changed arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cedagent.engine.v41.state import V41State
from cedagent.model.ced import V41Model
from cedagent.model.config import TILE
from cedagent.model.encoder import Outputs
from cedagent.model.forward import tile_forward
from cedagent.model.source import Comparison

PADDING_ID = 0


def encode_tile(model: V41Model, state: V41State, ids: Sequence[int], *, tile: int) -> None:
    """Encode tile `tile` of the sequence and write its rows; a whole tile is settled by it."""
    config, start = model.config, tile * TILE
    n_tokens = min(len(ids), start + TILE)
    x, hashes = _inputs(model, ids, start, n_tokens)
    rows = tile_forward(tile, window=config.window, n_tokens=n_tokens)
    outputs = model.encoder.tile(x, hashes, rows, state.encoder_rows, n_tokens=n_tokens)
    state.outputs.write(start, outputs)
    n_valid = n_tokens - start
    state.work.count(range(config.n_encoder_layers), n_valid=n_valid, n_rows=TILE)
    state.work.projected += n_valid
    if n_valid == TILE:
        state.settled = start + TILE


def rerun_tile(
    model: V41Model, state: V41State, ids: Sequence[int], *, tile: int, empty_from: int
) -> int | None:
    """Run a settled tile again for its windows and outputs; returns where source rows differ.

    Windows were empty at `empty_from`: from there on, layer i is exact after i (W - 1) rows.
    """
    config, start = model.config, tile * TILE
    x, hashes = _inputs(model, ids, start, start + TILE)
    rows = tile_forward(tile, window=config.window, n_tokens=start + TILE)
    found = {
        layer: Comparison(exact_from(empty_from, layer, window=config.window))
        for layer in config.kv_source_layer_ids
    }
    outputs: Outputs = model.encoder.tile(
        x, hashes, rows, state.encoder_rows, n_tokens=start + TILE, compare=found
    )
    state.outputs.write(start, outputs)
    state.work.count_rerun(range(config.n_encoder_layers), n_rows=TILE)
    differing = [c.differs_at for c in found.values() if c.differs_at is not None]
    return min(differing, default=None)


def exact_from(empty_from: int, layer: int, *, window: int) -> int:
    """Return the position from which a layer's inputs are exact when windows began empty.

    A layer's rows need W - 1 rows of the layer below before them, so inexact rows form a trapezoid.
    """
    return empty_from + layer * (window - 1) if empty_from else 0


def _inputs(
    model: V41Model, ids: Sequence[int], start: int, n_tokens: int
) -> tuple[Tensor, Tensor | None]:
    """Return embeddings [128, D] and Engram hashes [128, ...] of a tile, padded."""
    padding = [PADDING_ID] * (start + TILE - n_tokens)
    # Look-back stops where the sequence begins, so what is cut off here must be out of its reach.
    first = max(0, start - max(0, model.config.engram_max_ngram_size - 1))
    known = [*ids[first:n_tokens], *padding]
    hashes = model.hashes(known, start - first, start - first + TILE)
    return model.embed(known[start - first :]), hashes
