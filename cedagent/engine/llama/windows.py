"""Encoder windows: where a sequence can go on from, and their bytes as a snapshot.

To go on at F a state needs the last W - 1 rows of each windowed encoder layer; E_out, from which a
replay starts, is a stream. A live state has them, and a snapshot at F holds them. Without either,
windows start further back, from an older snapshot, another sequence, or empty, and the tiles up to
F are run again. In a snapshot: by layer, keys and values as codes [2, H, n, d], then on the int8
path their float16 scales [2, H, n].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cedagent.engine.llama.encode import rerun_tile
from cedagent.engine.llama.state import SequenceState
from cedagent.model.config import TILE
from cedagent.model.llama.ced import LlamaModel
from cedagent.model.llama.encoder import window_start


class LlamaWindows:
    """Windows of the states of one model that has windowed encoder layers."""

    def __init__(self, model: LlamaModel) -> None:
        """Take a model."""
        self._model = model
        self._layers = model.config.encoder_windowed_layers
        self._window = model.config.decoder_window

    def wanted(self, settled: int) -> int:
        """Return F itself: nothing before it is needed but the windows there."""
        return settled

    def empty_start(self, settled: int) -> int:
        """Return where windows may begin empty, so that every one is exact where F needs it.

        The j-th windowed layer's rows are exact (j - 1)(W - 1) rows after an empty start, whatever
        global layers lie between, and the last of n must be from F - (W - 1) on.
        """
        return max(0, settled - len(self._layers) * (self._window - 1)) // TILE * TILE

    def ready_at(self, state: SequenceState, settled: int, *, limit: int) -> int | None:
        """Return the boundary at which a state's windows stand, None where it is above `limit`.

        From there they lead to `settled`.
        """
        start = state.encoder_windows_at
        return start if start <= limit else None

    def begin(self, state: SequenceState) -> SequenceState:
        """Return a state for a re-run: the same settled rows, windows of its own.

        So a re-run that is stopped, or finds a difference, leaves nothing behind.
        """
        return state.with_new_windows(self._model)

    def copy(self, scratch: SequenceState, source: SequenceState, *, start: int) -> None:
        """Take windows at `start` from another state."""
        self.begin_empty(scratch, start=start)
        for layer in self._layers:
            scratch.encoder[layer].copy_rows(source.encoder[layer], self._first(start), start)

    def begin_empty(self, scratch: SequenceState, *, start: int) -> None:
        """Begin windows at `start` with rows of zero, which stand for none."""
        for layer in self._layers:
            base = window_start(start, window=self._window)
            scratch.encoder[layer] = self._model.new_cache(base=base)
            scratch.encoder[layer].reserve(start)
        scratch.encoder_windows_at = start

    def restore(self, scratch: SequenceState, *, start: int, data: bytes) -> bool:
        """Begin windows at `start` with the rows of a snapshot; False if it is of another shape."""
        self.begin_empty(scratch, start=start)
        parts = list(self._parts(scratch, start))
        if len(data) != sum(part.nbytes for part in parts):
            return False
        stored, used = torch.frombuffer(bytearray(data), dtype=torch.uint8), 0
        for part in parts:
            mine = stored[used : used + part.nbytes]
            part.copy_(mine.view(part.dtype).view(part.shape))
            used += part.nbytes
        return True

    def rerun_tile(
        self, scratch: SequenceState, ids: Sequence[int], *, tile: int, empty_from: int
    ) -> int | None:
        """Run a settled tile again; returns the first position whose stored row is not the same.

        `empty_from` is where windows began empty, 0 when they did not.
        """
        return rerun_tile(self._model, scratch, ids, tile=tile, empty_from=empty_from)

    def finish(self, state: SequenceState, scratch: SequenceState, *, empty_from: int) -> None:
        """Take what a re-run made; the W - 1 rows that can be seen are exact wherever it began."""
        self.trim(scratch)
        for layer in self._layers:
            state.encoder[layer] = scratch.encoder[layer]
        state.encoder_windows_at = scratch.encoder_windows_at

    def trim(self, state: SequenceState) -> None:
        """Forget rows that no tile from where the windows stand is given."""
        first = window_start(state.encoder_windows_at, window=self._window)
        for layer in self._layers:
            state.encoder[layer].drop_before(first)

    def snapshot(self, state: SequenceState) -> tuple[int, bytes] | None:
        """Return (F, the windows there as bytes); None where they are not held or have no rows."""
        settled = state.settled
        if state.encoder_windows_at != settled or self._first(settled) == settled:
            return None
        parts = [
            part.contiguous().view(torch.uint8).numpy().tobytes()
            for part in self._parts(state, settled)
        ]
        return settled, b"".join(parts)

    def _parts(self, state: SequenceState, stop: int) -> Iterator[Tensor]:
        """Yield what is stored of the windows at `stop`: a snapshot's parts, in order."""
        for layer in self._layers:
            for part in state.encoder[layer].rows(self._first(stop), stop):
                if part is not None:
                    yield part

    def _first(self, start: int) -> int:
        """Return the first position that a row at `start` sees."""
        return max(0, start - (self._window - 1))
