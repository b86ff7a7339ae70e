"""Decode: one token through both halves, into the overlay."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cedagent.engine.v41.state import V41State
from cedagent.model.ced import V41Model
from cedagent.model.forward import row_forward


def decode(model: V41Model, state: V41State, ids: Sequence[int], *, pos: int) -> Tensor:
    """Run the token ids[pos] and return the logits [V] float32 that follow it.

    Shapes are a function of `pos`; ids before it are looked back at by Engram.
    """
    config = model.config
    first = max(0, pos - max(0, config.engram_max_ngram_size - 1))
    known = list(ids[first : pos + 1])
    hashes = model.hashes(known, pos - first, pos - first + 1)
    rows = row_forward(pos, window=config.window)
    outputs = model.encoder.row(model.embed(known[-1:]), hashes, rows, state.encoder_rows)
    # A forward of its own: the decoder's picks begin with its source layer.
    rows = row_forward(pos, window=config.window)
    outputs = model.decoder.run(rows, outputs, state.decoder_windows, state.sources)
    state.work.count(range(config.num_hidden_layers), n_valid=1, n_rows=1)
    return model.logits(outputs)[0]
