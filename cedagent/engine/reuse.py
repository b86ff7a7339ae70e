"""Reuse: find the longest known prefix of some ids, and take its settled rows.

Sources in order of preference at equal length: the sequence's own rows, another open sequence, the
prefix store. Blocks are compared by their token ids, so a hit is never taken on a hash alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ced_kvstore import Match, Store
from cedagent.engine.buffers import empty_buffers, raw
from cedagent.engine.family import Family, State
from cedagent.model.config import TILE

_RESTORE_BLOCKS = 64
"""Blocks read at a time: bounds the scratch memory of a restore."""


@dataclass(frozen=True, slots=True)
class Known:
    """Ids whose settled rows are in RAM."""

    ids: Sequence[int]
    state: State


@dataclass(frozen=True, slots=True)
class Reused:
    """Tokens whose rows were taken instead of encoded."""

    ram: int
    disk: int
    notice: str | None = None
    """One line for the user when stored rows could not be used."""


def common_blocks(ours: Sequence[int], theirs: Sequence[int], *, most: int) -> int:
    """Return how many whole leading blocks two id lists share, at most `most`."""
    limit = min(len(ours), len(theirs), most * TILE)
    for block in range(limit // TILE):
        rows = slice(block * TILE, (block + 1) * TILE)
        if list(ours[rows]) != list(theirs[rows]):
            return block
    return limit // TILE


def take_known(
    family: Family[Any],
    state: State,
    ids: Sequence[int],
    *,
    open_sequences: Iterable[Known],
    store: Store | None,
) -> Reused:
    """Extend `state` with settled rows of `ids` from RAM and from the store, without encoding."""
    best: tuple[int, State] | None = None
    for known in open_sequences:
        blocks = common_blocks(ids, known.ids, most=known.state.settled // TILE)
        if blocks * TILE > max(state.settled, best[0] if best else 0):
            best = blocks * TILE, known.state
    if best is not None:
        state.copy_settled(best[1], best[0])
    ram = state.settled
    if store is None:
        return Reused(ram=ram, disk=0)
    match = store.match(ids)
    disk = _restore(family, state, match, store)
    return Reused(ram=ram, disk=disk, notice=_notice(store, match, ids, ram + disk))


def _notice(store: Store, match: Match, ids: Sequence[int], taken: int) -> str | None:
    """Return a line for the user when rows that should be there could not be used."""
    if taken < match.position:
        if store.read_only and store.notice:
            # The disk did not answer in time: nothing is known to be wrong with what is on it.
            return store.notice
        # Another process may have dropped them between match and read.
        match = store.match(ids)
    if match.reason != "corrupt" and match.position <= taken:
        return None
    return (
        f"prefix store {store.directory}: the stored rows from token {taken:,} on are damaged and "
        "are encoded again; `cedagent kv verify` checks the rest"
    )


def _restore(family: Family[Any], state: State, match: Match, store: Store) -> int:
    """Read matched blocks beyond the settled part from the store; returns their tokens."""
    streams = family.streams()
    first = start = state.settled // TILE
    while first < match.blocks:
        n_blocks = min(_RESTORE_BLOCKS, match.blocks - first)
        buffers = empty_buffers(streams, n_blocks)
        views = {name: raw(buffer) for name, buffer in buffers.items()}
        good = store.read(match, views, first_block=first, n_blocks=n_blocks)
        # Swapped in only now: a bad record never leaves half of a block in live rows.
        if good:
            family.unpack(state, buffers, first, good)
        first += good
        if good < n_blocks:
            break
    return (first - start) * TILE
