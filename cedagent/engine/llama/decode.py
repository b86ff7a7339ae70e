"""Decode: one token through both halves, into the overlay."""

from __future__ import annotations

from torch import Tensor

from cedagent.engine.llama.state import SequenceState
from cedagent.model.llama.ced import LlamaModel


def decode(
    model: LlamaModel, state: SequenceState, *, token: int, pos: int, prefill_end: int
) -> Tensor:
    """Run the token at `pos` and return the logits [V] float32 that follow it.

    Shapes are a function of `pos` and the prefill end.
    """
    e_out = model.encoder.row(model.embed([token]), state.encoder, pos=pos)
    state.write_e_out(pos, e_out)
    hidden = state.e_out(pos, pos + 1)
    if state.global_rows:
        # The window leaves one more row behind at each step; it is read from now on.
        left = pos - model.config.decoder_window
        if left >= prefill_end:
            model.decoder.derive(state.e_out(left, left + 1), state.global_rows, start=left)
        hidden = model.decoder.row(hidden, state.global_rows, state.windows, pos=pos)
    return model.logits(hidden)[0]
