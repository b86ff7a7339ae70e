"""Resume: make a sequence whose settled rows are known ready to go on.

A family with encoder windows needs the last rows of each, and perhaps the encoder's outputs, which
are not stored. This finds the nearest place from which they follow (the sequence's own windows,
another open sequence's, a snapshot, or empty windows far enough back) and says which tiles to run
again. A tile run again is compared with the stored rows and never writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ced_kvstore import Store
from cedagent.engine.family import EncoderWindows, State
from cedagent.engine.reuse import Known, common_blocks
from cedagent.model.config import TILE


@dataclass(frozen=True, slots=True)
class Rerun:
    """Which settled rows to run again."""

    start: int
    stop: int
    empty_from: int = 0
    """Where windows begin empty; 0 when they are whole."""

    @property
    def tiles(self) -> range:
        """The tiles to run, in order."""
        return range(self.start // TILE, self.stop // TILE)


def begin_rerun(
    windows: EncoderWindows[Any] | None,
    state: State,
    ids: Sequence[int],
    *,
    open_sequences: Iterable[Known],
    store: Store | None,
) -> Rerun:
    """Set the state's windows up at the nearest start; returns what to run from there.

    Nothing is to run where the state can go on as it is, or has no windows.
    """
    settled = state.settled
    if windows is None or windows.ready_at(state, settled, limit=settled) == settled:
        return Rerun(settled, settled)
    starts = [
        *_in_ram(windows, state, ids, open_sequences),
        *_in_store(windows, state, ids, store),
    ]
    # A stable sort: at the same place, what is in RAM comes before what must be read.
    for start, take in sorted(starts, key=lambda found: -found[0]):
        if start <= windows.empty_start(settled):
            break
        if take():
            return Rerun(start, settled)
    start = windows.empty_start(settled)
    windows.begin_empty(state, start=start)
    return Rerun(start, settled, empty_from=start)


_Start = tuple[int, Callable[[], bool]]
"""A tile boundary and what sets the windows up there; False when that fails."""


def _in_ram(
    windows: EncoderWindows[Any],
    state: State,
    ids: Sequence[int],
    open_sequences: Iterable[Known],
) -> Iterable[_Start]:
    settled = state.settled
    own = windows.ready_at(state, settled, limit=settled)
    if own is not None:

        def resume() -> bool:
            windows.resume(state, start=own)
            return True

        yield own, resume
    for known in open_sequences:
        blocks = common_blocks(ids, known.ids, most=min(settled, known.state.settled) // TILE)
        theirs = windows.ready_at(known.state, settled, limit=blocks * TILE)
        if theirs is not None:

            def copy(start: int = theirs, source: State = known.state) -> bool:
                windows.copy(state, source, start=start, settled=settled)
                return True

            yield theirs, copy


def _in_store(
    windows: EncoderWindows[Any], state: State, ids: Sequence[int], store: Store | None
) -> Iterable[_Start]:
    if store is None:
        return
    match = store.match(ids[: state.settled])
    for position in match.snapshots:
        if position > windows.wanted(state.settled):
            continue

        def restore(start: int = position) -> bool:
            data = store.read_snapshot(match.block_hash(start))
            return data is not None and windows.restore(state, start=start, data=data)

        yield position, restore


def distrusted(store: Store, ids: Sequence[int], rerun: Rerun) -> str:
    """Quarantine what a failed re-run started from and went over; returns a line for the user."""
    first = max(0, rerun.start // TILE - 1)
    store.quarantine(store.hashes(ids[: rerun.stop])[first:])
    return (
        f"prefix store {store.directory}: stored rows near token {rerun.start:,} are not what the "
        "model computes; nothing stored was used and the whole text is encoded again"
    )
