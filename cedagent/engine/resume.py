"""Resume: the encoder windows that a sequence needs to go on from settled rows.

A family with encoder windows needs the last rows of each, and perhaps the encoder's outputs, which
are not stored. This finds the nearest place from which they follow (the sequence's own windows,
another open sequence's, a snapshot, or empty windows far enough back) and which tiles to run again
from there, in a scratch state that becomes the sequence's when all is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ced_kvstore import Store
from cedagent.engine.family import EncoderWindows, State
from cedagent.engine.reuse import Known, common_blocks
from cedagent.model.config import TILE


@dataclass(frozen=True, slots=True)
class Rerun:
    """Settled tiles to run again, into `scratch`."""

    scratch: State
    start: int
    empty_from: int = 0
    """Where windows begin empty; 0 when they are whole."""

    @property
    def tiles(self) -> range:
        """The tiles to run, in order."""
        return range(self.start // TILE, self.scratch.settled // TILE)


def begin_rerun(
    windows: EncoderWindows[Any],
    state: State,
    ids: Sequence[int],
    *,
    open_sequences: Iterable[Known],
    store: Store | None,
) -> Rerun | None:
    """Set windows up at the nearest start; returns what to run from there.

    None where the state can go on as it is.
    """
    settled = state.settled
    if windows.ready_at(state, settled, limit=settled) == settled:
        return None
    scratch = windows.begin(state)
    starts = [
        *_in_ram(windows, scratch, ids, [Known(ids, state), *open_sequences]),
        *_in_store(windows, scratch, ids, store),
    ]
    empty_start = windows.empty_start(settled)
    # A stable sort: at the same place, what is in RAM comes before what must be read.
    for start, take in sorted(starts, key=lambda found: -found[0]):
        # As near, whole windows are better than empty ones: everything can be compared.
        if start < empty_start:
            break
        if take():
            return Rerun(scratch, start)
    windows.begin_empty(scratch, start=empty_start)
    return Rerun(scratch, empty_start, empty_from=empty_start)


_Start = tuple[int, Callable[[], bool]]
"""A tile boundary and what sets the windows up there; False when that fails."""


def _in_ram(
    windows: EncoderWindows[Any], scratch: State, ids: Sequence[int], known: Iterable[Known]
) -> Iterator[_Start]:
    settled = scratch.settled
    for one in known:
        blocks = common_blocks(ids, one.ids, most=min(settled, one.state.settled) // TILE)
        start = windows.ready_at(one.state, settled, limit=blocks * TILE)
        if start is not None:

            def copy(start: int = start, source: State = one.state) -> bool:
                windows.copy(scratch, source, start=start)
                return True

            yield start, copy


def _in_store(
    windows: EncoderWindows[Any], scratch: State, ids: Sequence[int], store: Store | None
) -> Iterator[_Start]:
    if store is None:
        return
    match = store.match(ids[: scratch.settled])
    for position in match.snapshots:
        if position > windows.wanted(scratch.settled):
            continue

        def restore(start: int = position) -> bool:
            data = store.read_snapshot(match.block_hash(start))
            return data is not None and windows.restore(scratch, start=start, data=data)

        yield position, restore
