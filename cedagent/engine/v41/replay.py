"""Replay: the last rows through the decoder, from their encoder outputs.

`bounded` runs max(1, min(P, R * W)) rows as one batch; `exact` a trapezoid of tiles, `full` every
tile. All are functions of the tokens and the prefill end, never of what was cached.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cedagent.engine.family import Mode
from cedagent.engine.v41.state import V41State
from cedagent.model.ced import V41Model
from cedagent.model.config import TILE
from cedagent.model.encoder import Outputs
from cedagent.model.forward import batch_forward


def replay(
    model: V41Model, state: V41State, *, n_tokens: int, mode: Mode, replay_windows: int
) -> tuple[Tensor, int]:
    """Return (next-token logits [V] float32, rows run through the first decoder layer).

    Leaves the decoder windows of this prefill end in `state`.
    """
    if mode == "bounded":
        return _bounded(model, state, n_tokens, replay_windows)
    outputs, n_rows = _tiles(model, state, n_tokens, exact=mode == "exact")
    # The head runs on the whole last tile, so that its shape is the same in both modes.
    last = Outputs(outputs.streams[-TILE:], outputs.pre[-TILE:])
    return model.logits(last)[(n_tokens - 1) % TILE], n_rows


def score(model: V41Model, state: V41State, *, n_tokens: int) -> Tensor:
    """Return logits [P, V] float32 of every position, computed as `full` does."""
    (streams, pre), _ = _tiles(model, state, n_tokens, exact=False)
    rows = [
        model.logits(Outputs(streams[start : start + TILE], pre[start : start + TILE]))
        for start in range(0, len(pre), TILE)
    ]
    return torch.cat(rows)[:n_tokens]


def _bounded(
    model: V41Model, state: V41State, n_tokens: int, replay_windows: int
) -> tuple[Tensor, int]:
    config = model.config
    n_rows = config.replay_rows(n_tokens, replay_windows=replay_windows)
    start = n_tokens - n_rows
    state.decoder_windows = [state.new_window(start) for _ in range(config.n_decoder_layers)]
    rows = batch_forward(start, n_tokens, window=config.window)
    inputs = state.outputs.rows(start, n_tokens)
    streams, pre = model.decoder.run(rows, inputs, state.decoder_windows, state.sources)
    state.work.count(_decoder_layers(model), n_valid=n_rows, n_rows=n_rows)
    return model.logits(Outputs(streams[-1:], pre[-1:]))[0], n_rows


def _tiles(model: V41Model, state: V41State, n_tokens: int, *, exact: bool) -> tuple[Outputs, int]:
    config = model.config
    stop = -(-n_tokens // TILE) * TILE
    starts = [0] * config.n_decoder_layers
    if exact:
        starts = [
            n_tokens - config.exact_rows(n_tokens, layers_left=left)
            for left in range(config.n_decoder_layers, 0, -1)
        ]
    first_tile = starts[0] // TILE
    state.decoder_windows = []
    for start in starts:
        # The first tile's window begins before it; those rows are zero and masked.
        window = state.new_window(max(0, start // TILE * TILE - (config.window - 1)))
        window.write_zeros(start // TILE * TILE)
        state.decoder_windows.append(window)
    outputs = model.decoder.tiles(
        state.outputs.rows(first_tile * TILE, stop),
        state.decoder_windows,
        state.sources,
        first_tile=first_tile,
        starts=starts,
        n_tokens=n_tokens,
    )
    for layer, start in zip(_decoder_layers(model), starts, strict=True):
        n_rows = stop - start // TILE * TILE
        state.work.count(range(layer, layer + 1), n_valid=n_tokens - start, n_rows=n_rows)
    return outputs, n_tokens - starts[0]


def _decoder_layers(model: V41Model) -> range:
    return range(model.config.n_encoder_layers, model.config.num_hidden_layers)
