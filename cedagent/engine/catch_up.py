"""Catch up: everything known of some ids into one state, ready to encode from there.

Settled rows come from RAM and from the prefix store; then the tiles that a family's windows need
are run again, one at a time. What does not agree with the stored rows is not used: the state starts
anew, so that a hit never changes an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cedagent.engine.family import State
from cedagent.engine.resume import Rerun, begin_rerun, distrusted
from cedagent.engine.reuse import take_known
from cedagent.model.config import TILE

if TYPE_CHECKING:
    from cedagent.engine.engine import Engine
    from cedagent.engine.sequence import CedSequence


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A state with all that was known, and where that came from, in tokens."""

    state: State
    ram: int = 0
    disk: int = 0
    rerun: int = 0
    """Rows below the settled end that were run again."""
    finished: bool = True
    """False when it was asked to stop: the state cannot go on yet."""


def catch_up(
    engine: Engine,
    state: State,
    ids: Sequence[int],
    *,
    sequence: CedSequence | None,
    before_tile: Callable[[int, int], bool],
) -> CaughtUp:
    """Extend a state without overlay by what RAM and the store know of `ids`.

    `before_tile(position, known)` is asked before each tile that is run again; False stops there.
    """
    family, store = engine.family, engine.store
    with engine.forward():
        reused = take_known(
            family, state, ids, open_sequences=engine.known_to(sequence), store=store
        )
        rerun = begin_rerun(
            family.windows, state, ids, open_sequences=engine.known_to(sequence), store=store
        )
    engine.take_notice(reused.notice)
    n_rerun = 0
    for tile in rerun.tiles:
        if not before_tile(state.settled, state.settled):
            return CaughtUp(state, reused.ram, reused.disk, n_rerun, finished=False)
        with engine.forward():
            agrees = _rerun_tile(engine, state, ids, tile, rerun)
        n_rerun += TILE
        if not agrees:
            if store is not None:
                engine.take_notice(distrusted(store, ids, rerun))
            return CaughtUp(family.new_state(), rerun=n_rerun)
    if family.windows is not None and n_rerun:
        family.windows.finish(state, empty_from=rerun.empty_from)
    return CaughtUp(state, reused.ram, reused.disk, n_rerun)


def _rerun_tile(engine: Engine, state: State, ids: Sequence[int], tile: int, rerun: Rerun) -> bool:
    windows = engine.family.windows
    assert windows is not None
    differs = windows.rerun_tile(state, ids, tile=tile, empty_from=rerun.empty_from)
    return differs is None
