"""Replay: the last rows through the decoder, from their encoder outputs.

`bounded` runs max(1, min(P, R * W)) rows as one batch; `exact` a trapezoid of tiles, `full` every
tile. All are functions of the tokens and the prefill end, never of what was cached. The decoder's
global rows are derived here from E_out, tile by tile, and are never stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cedagent.engine.family import Mode
from cedagent.engine.llama.state import SequenceState
from cedagent.model.config import TILE
from cedagent.model.llama.ced import LlamaModel


def replay(
    model: LlamaModel, state: SequenceState, *, n_tokens: int, mode: Mode, replay_windows: int
) -> tuple[Tensor, int]:
    """Return (next-token logits [V] float32, rows run through the first decoder layer).

    Leaves the decoder windows of this prefill end in `state`.
    """
    if mode == "bounded":
        hidden, n_rows = _bounded(model, state, n_tokens, replay_windows)
        return model.logits(hidden[-1:])[0], n_rows
    hidden, n_rows = _tiles(model, state, n_tokens, exact=mode == "exact")
    # The head runs on the whole last tile, so that its shape is the same in both modes.
    return model.logits(hidden[-TILE:])[(n_tokens - 1) % TILE], n_rows


def score(model: LlamaModel, state: SequenceState, *, n_tokens: int) -> Tensor:
    """Return logits [P, V] float32 of every position, computed as `full` does."""
    hidden, _ = _tiles(model, state, n_tokens, exact=False)
    rows = [model.logits(hidden[start : start + TILE]) for start in range(0, len(hidden), TILE)]
    return torch.cat(rows)[:n_tokens]


def derive_to(model: LlamaModel, state: SequenceState, *, stop: int) -> None:
    """Derive the decoder's global rows for every tile that begins below `stop`."""
    if not state.global_rows:
        return
    for start in range(state.derived // TILE * TILE, stop, TILE):
        model.decoder.derive(state.e_out(start, start + TILE), state.global_rows, start=start)
        state.derived = start + TILE


def _bounded(
    model: LlamaModel, state: SequenceState, n_tokens: int, replay_windows: int
) -> tuple[Tensor, int]:
    config = model.config
    if not config.n_decoder_layers:
        return state.e_out(n_tokens - 1, n_tokens), 0
    derive_to(model, state, stop=n_tokens)
    n_rows = config.replay_rows(n_tokens, replay_windows=replay_windows)
    start = n_tokens - n_rows
    state.windows = [model.new_cache(base=start) for _ in state.global_rows]
    hidden = model.decoder.bounded(
        state.e_out(start, n_tokens), state.global_rows, state.windows, start=start
    )
    return hidden, n_rows


def _tiles(
    model: LlamaModel, state: SequenceState, n_tokens: int, *, exact: bool
) -> tuple[Tensor, int]:
    config = model.config
    stop = -(-n_tokens // TILE) * TILE
    if not config.n_decoder_layers:
        first = 0 if not exact else stop - TILE
        return state.e_out(first, stop), 0
    derive_to(model, state, stop=n_tokens)
    starts = [0] * config.n_decoder_layers
    if exact:
        starts = [
            n_tokens - config.exact_rows(n_tokens, layers_left=left)
            for left in range(config.n_decoder_layers, 0, -1)
        ]
    first_tile = starts[0] // TILE
    # The first tile's window begins before it; those rows are zero and masked.
    base = max(0, first_tile * TILE - max(0, config.decoder_window - 1))
    state.windows = [model.new_cache(base=base) for _ in state.global_rows]
    hidden = model.decoder.tiles(
        state.e_out(first_tile * TILE, stop),
        state.global_rows,
        state.windows,
        first_tile=first_tile,
        starts=starts,
    )
    return hidden, n_tokens - starts[0]
