"""Encoder windows: where a sequence can go on from, and their bytes as a snapshot.

To go on at F a state needs each encoder layer's last W - 1 window rows, and the encoder outputs of
as many rows as the next replay may reach back. A live state has both. A restored one starts its
windows further back, from a snapshot, from another sequence, or empty, and runs the tiles up to F
again. A snapshot is at s = F - 128 ceil(reach / 128); the bytes of a row are its codes and scales.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ced_kernels.block_codes import WINDOW, BlockCodes
from cedagent.engine.v41.encode import exact_from, rerun_tile
from cedagent.engine.v41.state import V41State
from cedagent.model.ced import V41Model
from cedagent.model.config import TILE


class V41Windows:
    """Windows of one model's states, for replays that reach back a given number of rows."""

    def __init__(self, model: V41Model, *, reach: int | None) -> None:
        """Take a model; `reach` None means that a replay runs every row."""
        self._model = model
        self._reach = reach
        self._window = model.config.window

    def wanted(self, settled: int) -> int:
        """Return s: the first position whose encoder outputs a replay after `settled` may need."""
        if self._reach is None:
            return 0
        return max(0, settled - -(-self._reach // TILE) * TILE)

    def empty_start(self, settled: int) -> int:
        """Return where windows may begin empty, so that all is exact from the replay's reach on."""
        if self._reach is None:
            return 0
        n_layers = self._model.config.n_encoder_layers
        return max(0, settled - self._reach - n_layers * (self._window - 1)) // TILE * TILE

    def ready_at(self, state: V41State, settled: int, *, limit: int) -> int | None:
        """Return the newest tile boundary up to `limit` from which a state can go on to `settled`.

        Windows stand there, and the outputs that a replay after `settled` needs from before it are
        held. None: nowhere.
        """
        wanted, outputs = self.wanted(settled), state.outputs
        stop = min(limit, *(window.stop for window in state.windows)) // TILE * TILE
        covered = outputs.base <= self._first(wanted) and outputs.stop >= stop
        start = stop if stop <= wanted or covered else wanted
        first = max(0, start - (self._window - 1))
        return start if all(window.base <= first for window in state.windows) else None

    def begin(self, state: V41State) -> V41State:
        """Return a state for a re-run: the same source rows, windows and outputs of its own.

        So a re-run that is stopped, or finds a difference, leaves nothing behind.
        """
        scratch = V41State(state.config)
        scratch.sources, scratch.settled, scratch.work = state.sources, state.settled, state.work
        return scratch

    def copy(self, scratch: V41State, source: V41State, *, start: int) -> None:
        """Take windows at `start`, and outputs before it that are wanted, from another state."""
        first = self._begin_windows(scratch, start)
        for mine, theirs in zip(scratch.windows, source.windows, strict=True):
            mine.copy_rows(theirs, first, start)
        wanted = max(self.wanted(scratch.settled), source.outputs.base)
        if wanted < start:
            scratch.outputs.write(wanted, source.outputs.rows(wanted, start))

    def begin_empty(self, scratch: V41State, *, start: int) -> None:
        """Begin windows at `start` with rows that stand for none."""
        self._begin_windows(scratch, start)
        for window in scratch.windows:
            # Zeros, so that shapes are those of any other run of the same tile.
            window.write_zeros(start)

    def rerun_tile(
        self, scratch: V41State, ids: Sequence[int], *, tile: int, empty_from: int
    ) -> int | None:
        """Run a settled tile again; returns the first position whose stored row is not the same.

        `empty_from` is where windows began empty, 0 when they did not.
        """
        return rerun_tile(self._model, scratch, ids, tile=tile, empty_from=empty_from)

    def finish(self, state: V41State, scratch: V41State, *, empty_from: int) -> None:
        """Take what a re-run made, without rows that are not exact or that nothing will read."""
        state.windows, state.outputs = scratch.windows, scratch.outputs
        for layer, window in enumerate(state.windows):
            window.drop_before(exact_from(empty_from, layer, window=self._window))
        n_layers = self._model.config.n_encoder_layers
        state.outputs.drop_before(exact_from(empty_from, n_layers, window=self._window))
        self.trim(state)

    def trim(self, state: V41State) -> None:
        """Forget rows further back than the next replay, or a snapshot, can reach."""
        wanted = self.wanted(state.settled)
        state.outputs.drop_before(wanted)
        for window in state.windows:
            window.drop_before(max(0, wanted - (self._window - 1)))

    def snapshot(self, state: V41State) -> tuple[int, bytes] | None:
        """Return (s, the windows at s as bytes); None at 0 or where they are not held."""
        wanted = self.wanted(state.settled)
        first = max(0, wanted - (self._window - 1))
        # A window of one token has no rows before its own: there is nothing to keep.
        if first == wanted or any(w.base > first or w.stop < wanted for w in state.windows):
            return None
        parts = [
            part.contiguous().numpy().tobytes()
            for window in state.windows
            for part in window.stored(first, wanted)
        ]
        return wanted, b"".join(parts)

    def restore(self, scratch: V41State, *, start: int, data: bytes) -> bool:
        """Begin windows at `start` with the rows of a snapshot; False if it is of another shape."""
        first = max(0, start - (self._window - 1))
        n_rows, width = start - first, self._model.config.head_dim
        sizes = n_rows * WINDOW.code_bytes(width), n_rows * WINDOW.scale_bytes(width)
        if not n_rows or len(data) != len(scratch.windows) * sum(sizes):
            return False
        self._begin_windows(scratch, start)
        stored = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        for window, part in zip(scratch.windows, stored.view(-1, sum(sizes)), strict=True):
            codes, scales = part[: sizes[0]].view(n_rows, -1), part[sizes[0] :].view(n_rows, -1)
            window.write(first, BlockCodes(codes, scales))
        return True

    def _begin_windows(self, scratch: V41State, start: int) -> int:
        """Begin windows for a run from `start`; returns the position of their first row."""
        first = max(0, start - (self._window - 1))
        scratch.windows = [scratch.new_window(first) for _ in scratch.windows]
        return first

    def _first(self, wanted: int) -> int:
        """Return the first position whose outputs a replay will really read."""
        if self._reach is None:
            return 0
        return wanted + -self._reach % TILE if wanted else 0
