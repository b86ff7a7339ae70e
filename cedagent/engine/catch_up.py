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
from cedagent.engine.resume import begin_rerun
from cedagent.engine.reuse import Reused, take_known
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
    with engine.forward():
        reused = take_known(
            engine.family,
            state,
            ids,
            open_sequences=engine.known_to(sequence),
            store=engine.store,
        )
    engine.take_notice(reused.notice)
    return _run_again(engine, state, ids, reused, sequence, before_tile)


def _run_again(
    engine: Engine,
    state: State,
    ids: Sequence[int],
    reused: Reused,
    sequence: CedSequence | None,
    before_tile: Callable[[int, int], bool],
) -> CaughtUp:
    """Make the windows that `state` goes on from, where its family has windows."""
    windows, store = engine.family.windows, engine.store
    if windows is None:
        return CaughtUp(state, reused.ram, reused.disk)
    with engine.forward():
        rerun = begin_rerun(
            windows, state, ids, open_sequences=engine.known_to(sequence), store=store
        )
    if rerun is None:
        return CaughtUp(state, reused.ram, reused.disk)
    n_rows = 0
    for tile in rerun.tiles:
        if not before_tile(state.settled, state.settled):
            if not rerun.empty_from:
                # What whole windows led to is exact: the next run goes on from there.
                with engine.forward():
                    windows.finish(state, rerun.scratch, empty_from=0)
            return CaughtUp(state, reused.ram, reused.disk, n_rows, finished=False)
        with engine.forward():
            differs_at = windows.rerun_tile(
                rerun.scratch, ids, tile=tile, empty_from=rerun.empty_from
            )
        n_rows += TILE
        if differs_at is not None:
            _distrust(engine, ids[: state.settled], differs_at)
            return CaughtUp(engine.family.new_state(), rerun=n_rows)
    # Held, too: another thread's sequence may be copying this one's windows.
    with engine.forward():
        windows.finish(state, rerun.scratch, empty_from=rerun.empty_from)
    return CaughtUp(state, reused.ram, reused.disk, n_rows)


def _distrust(engine: Engine, path: Sequence[int], differs_at: int) -> None:
    """Quarantine a path on which a re-run differs, and say so.

    All of it: the wrong row may lie far before the first place that shows it.
    """
    store = engine.store
    if store is not None:
        store.quarantine(store.hashes(path))
        engine.take_notice(
            f"prefix store {store.directory}: the stored rows near token {differs_at:,} are not "
            "what the model computes; none of them was used, the text is encoded again"
        )
