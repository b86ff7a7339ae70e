"""SequenceState: what is in RAM for one sequence, by absolute position.

Rows below `settled` (a multiple of 128) are a function of the tokens below it alone and never
change. Rows from there on are the overlay: the unfinished tile and decoded tokens; the next append
writes over them. A windowed encoder layer keeps its last rows alone, which can be made again from
the ids and the settled rows. Decoder windows belong to one prefill and its decoded tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cedagent.model.llama.cache import KvCache, bits
from cedagent.model.llama.ced import LlamaModel

_FIRST_CAPACITY = 512


class SequenceState:
    """Encoder streams and windows, derived global rows and decoder windows of one sequence."""

    def __init__(self, model: LlamaModel) -> None:
        """Start empty."""
        config = model.config
        self.encoder = [model.new_cache() for _ in range(config.n_encoder_layers)]
        """Rows of each encoder layer: a global one's from 0 on, a windowed one's from its base."""
        self.global_layers = config.encoder_global_layers
        self.windowed_layers = config.encoder_windowed_layers
        self.encoder_windows_at = 0
        """Windowed layers hold the W - 1 rows below this position, which is at most F."""
        self.global_rows: Sequence[KvCache] = [
            model.new_cache() for _ in range(config.n_decoder_layers)
        ]
        self.windows: Sequence[KvCache] = []
        """Window rows of each decoder layer."""
        self.settled = 0
        """F: rows below are settled."""
        self.derived = 0
        """Global rows below this position are derived from settled or overlaid E_out."""
        self._e_out = torch.zeros(0, config.hidden_size, dtype=model.e_out_dtype)

    def e_out(self, start: int, stop: int) -> Tensor:
        """Return encoder outputs [stop - start, D] float32 as stored."""
        return self._e_out[start:stop].float()

    def stored_e_out(self, start: int, stop: int) -> Tensor:
        """Return a view [stop - start, D] of encoder outputs in their stored type, with room."""
        if stop > len(self._e_out):
            grown = self._e_out.new_zeros(
                max(stop, 2 * len(self._e_out), _FIRST_CAPACITY), self._e_out.shape[1]
            )
            grown[: len(self._e_out)] = self._e_out
            self._e_out = grown
        return self._e_out[start:stop]

    def write_e_out(self, start: int, rows: Tensor) -> None:
        """Store encoder outputs [T, D] from `start` on."""
        self.stored_e_out(start, start + len(rows)).copy_(rows)

    def e_out_differs_at(self, start: int, rows: Tensor) -> int | None:
        """Return the first position from `start` on whose stored E_out is not rows [T, D], if any.

        Rows are compared as they would be stored, bit for bit.
        """
        stored = self.stored_e_out(start, start + len(rows))
        differs = (bits(stored) != bits(rows.to(stored.dtype))).any(1).nonzero()
        return start + int(differs[0]) if len(differs) else None

    def drop_overlay(self) -> None:
        """Forget the decoder windows and what was derived from rows that are not settled.

        The next append writes over all of these, or takes settled rows in their place.
        """
        self.windows = []
        self.derived = min(self.derived, self.settled)

    def with_new_windows(self, model: LlamaModel) -> SequenceState:
        """Return a state with the same settled rows, shared, whose encoder windows are empty."""
        made = SequenceState(model)
        made.settled, made._e_out = self.settled, self._e_out
        for layer in self.global_layers:
            made.encoder[layer] = self.encoder[layer]
        return made

    def copy_settled(self, source: SequenceState, stop: int) -> None:
        """Copy rows [settled, stop), settled there, and what is derived of them."""
        start = self.settled
        for layer in self.global_layers:
            self.encoder[layer].copy_rows(source.encoder[layer], start, stop)
        self.write_e_out(start, source.stored_e_out(start, stop))
        derived = min(stop, source.derived)
        if derived > self.derived:
            for mine, theirs in zip(self.global_rows, source.global_rows, strict=True):
                mine.copy_rows(theirs, self.derived, derived)
            self.derived = derived
        self.settled = stop
