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
        """Return the newest tile boundary up to `limit` at which a state's windows stand, or None.

        From there they lead to `settled`.
        """
        start = min(limit, state.windows_at)
        first = self._first(start)
        return start if all(state.encoder[i].base <= first for i in self._layers) else None

    def begin(self, state: SequenceState) -> SequenceState:
        """Return a state for a re-run: the same settled rows, windows of its own.

        So a re-run that is stopped, or finds a difference, leaves nothing behind.
        """
        return state.with_new_windows(self._model)

    def copy(self, scratch: SequenceState, source: SequenceState, *, start: int) -> None:
        """Take windows at `start` from another state."""
        first = self._begin_windows(scratch, start)
        for layer in self._layers:
            scratch.encoder[layer].copy_rows(source.encoder[layer], first, start)

    def begin_empty(self, scratch: SequenceState, *, start: int) -> None:
        """Begin windows at `start` with rows that stand for none."""
        # Zeros, so that shapes are those of any other run of the same tile.
        self._begin_windows(scratch, start)

    def restore(self, scratch: SequenceState, *, start: int, data: bytes) -> bool:
        """Begin windows at `start` with the rows of a snapshot; False if it is of another shape."""
        first = self._begin_windows(scratch, start)
        parts = list(self._stored(scratch, first, start))
        if len(data) != sum(part.numel() * part.element_size() for part in parts):
            return False
        stored, used = torch.frombuffer(bytearray(data), dtype=torch.uint8), 0
        for part in parts:
            size = part.numel() * part.element_size()
            part.copy_(stored[used : used + size].view(part.dtype).view(part.shape))
            used += size
        return True

    def rerun_tile(
        self, scratch: SequenceState, ids: Sequence[int], *, tile: int, empty_from: int
    ) -> int | None:
        """Run a settled tile again; returns the first position whose stored row is not the same.

        `empty_from` is where windows began empty, 0 when they did not.
        """
        return rerun_tile(self._model, scratch, ids, tile=tile, empty_from=empty_from)

    def finish(self, state: SequenceState, scratch: SequenceState, *, empty_from: int) -> None:
        """Take what a re-run made, without rows that are not exact or that nothing will read."""
        # What is kept, W - 1 rows, is exact by the choice of the empty start; others go first, so
        # that no other sequence can find them.
        self.trim(scratch)
        for layer in self._layers:
            state.encoder[layer] = scratch.encoder[layer]
        state.windows_at = scratch.windows_at

    def trim(self, state: SequenceState) -> None:
        """Forget rows that no window at `windows_at` or after it has."""
        first = self._first(state.windows_at)
        for layer in self._layers:
            # An unfinished tile may have been run beyond the settled end.
            state.encoder[layer].keep(first, state.windows_at + TILE)

    def snapshot(self, state: SequenceState) -> tuple[int, bytes] | None:
        """Return (F, the windows there as bytes); None where they are not held or have no rows."""
        settled, first = state.settled, self._first(state.settled)
        if first == settled or self.ready_at(state, settled, limit=settled) != settled:
            return None
        parts = [
            part.contiguous().view(torch.uint8).numpy().tobytes()
            for part in self._stored(state, first, settled)
        ]
        return settled, b"".join(parts)

    def _begin_windows(self, scratch: SequenceState, start: int) -> int:
        """Begin windows for a run from `start`; returns the position of their first row."""
        first = self._first(start)
        for layer in self._layers:
            scratch.encoder[layer] = self._model.new_cache(base=first)
            scratch.encoder[layer].reserve(start)
        scratch.windows_at = start
        return first

    def _stored(self, state: SequenceState, first: int, stop: int) -> Iterator[Tensor]:
        """Yield what is stored of rows [first, stop): a snapshot's parts, in order."""
        for layer in self._layers:
            for part in state.encoder[layer].rows(first, stop):
                if part is not None:
                    yield part

    def _first(self, start: int) -> int:
        """Return the first position that a window's next row at `start` sees."""
        return max(0, start - (self._window - 1))
