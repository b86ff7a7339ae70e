"""Keep the store within its bytes: when something must go, how much, and by which rule.

Knows budgets and policies; which block is worth what, tree.py knows. Works under the lease: one
process at a time chooses what goes. Invariants: pinned blocks, the path being committed and the
paths matched last are never dropped, and one commit drops and moves a bounded number of bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ced_kvstore import compact
from ced_kvstore.compact import INDEX_MARGIN, live_bytes, reclaim, used_bytes
from ced_kvstore.core import Core
from ced_kvstore.drop import UNREADABLE, Rule, drop, in_use
from ced_kvstore.index import Index
from ced_kvstore.locks import BUSY
from ced_kvstore.results import Collected

HIGH = 0.9
"""Share of the budget above which room is made: dead bytes are given back, if they are enough."""

LIVE_HIGH = 0.8
"""Share of the budget above which what is live is dropped, too. The less of it there is beside dead
bytes, the less has to be moved to give these back."""

LIVE_LOW = 0.7
"""Share to come down to then, so that not every commit has to look for what to drop."""

CALL_BLOCKS = 20_000
"""Most blocks dropped by one commit; the next one goes on."""

MOVED_SEGMENTS = 4
"""Most bytes moved to make room for one commit, in full segments, beside four times its own."""

FULL = "the byte budget is full of pinned blocks and the path in use"

TOO_SMALL = "the byte budget is smaller than what one block takes"


@dataclass(frozen=True, slots=True)
class Room:
    """What may be written now."""

    fits: int
    """Bytes."""
    reason: str
    """Why it is not more."""
    at_most: int
    """What would fit if nothing else were stored."""


@dataclass(frozen=True, slots=True)
class _Budget:
    """What is used and what may be."""

    used: int
    live: int
    """What of it would be left if no dead byte were."""
    stamp: int
    """The newest commit or removal."""
    limit: int
    reason: str
    """What sets the limit."""
    is_purge_due: bool

    def is_over(self, need: int, share: float = 1.0) -> bool:
        return self.used + need > share * self.limit


def make_room(
    core: Core, index: Index, need: int, *, keep: Sequence[bytes], may_drop: bool = True
) -> Room:
    """Drop what is worth least until `need` bytes fit; return what fits.

    Unless it may drop, it gives dead bytes back alone. The caller holds core.lock. Raises one of
    errors.TROUBLE.
    """
    now = _measure(core, index)
    reason = now.reason
    if now.is_purge_due or now.is_over(need, HIGH):
        # While another process makes room there is no need to wait, unless nothing fits before.
        with core.locks.lease(None if now.is_over(need + INDEX_MARGIN) else 0.0) as is_ours:
            if not is_ours:
                reason = BUSY
            else:
                target = int(HIGH * now.limit) - need
                if not may_drop:
                    # Whoever fills the store on purpose would else move something at each commit.
                    target = now.limit - need - INDEX_MARGIN
                elif now.is_over(need, HIGH) and not _drop(core, index, now, need, keep):
                    reason = UNREADABLE
                reclaim(core, index, target, MOVED_SEGMENTS * core.writer.limit + 4 * need)
        now = _measure(core, index)
    at_most = now.limit - index.used_bytes() - INDEX_MARGIN
    return Room(max(0, now.limit - now.used - INDEX_MARGIN), reason, at_most)


def _drop(core: Core, index: Index, now: _Budget, need: int, keep: Sequence[bytes]) -> bool:
    """Drop blocks if too much is live, not only too much dead; False when pins are unreadable."""
    if now.live + need <= LIVE_HIGH * now.limit:
        return True
    with index.read() as tables:
        tip = next((key for key in reversed(keep) if tables.block(key)), None)
    used = in_use(core)
    state = (now.live, now.stamp, core.pins.incoming, tip, used)
    # When all is pinned, reading the whole tree once more for each commit finds nothing new.
    if used is not None and state == core.in_vain:
        return True
    live = int(LIVE_LOW * now.limit) - need - index.used_bytes()
    count = drop(core, index, Rule("byte budget", frozenset(keep), max(0, live), CALL_BLOCKS))
    core.in_vain = None if count else state
    return count is not None


@dataclass(frozen=True, slots=True)
class Left:
    """What may still be written without dropping anything."""

    now: int
    """Bytes."""
    in_time: int
    """The same when all dead bytes were given back."""
    reason: str
    """Why it is not more."""


def left(core: Core, index: Index) -> Left:
    """Return what may still be written. Raises one of errors.TROUBLE."""
    now = _measure(core, index)
    limit = now.limit - INDEX_MARGIN
    return Left(max(0, limit - now.used), max(0, limit - now.live), now.reason)


def clear(core: Core, index: Index, need: int, keep: Collection[bytes]) -> None:
    """Make room for `need` bytes with what no anchor needs, `keep` aside, and with dead bytes.

    The caller holds core.lock. Raises one of errors.TROUBLE.
    """
    with core.locks.lease() as is_ours:
        goes_on = is_ours
        # Dropping and moving let the index grow, so that a second round may be due.
        while goes_on and (now := _measure(core, index)).is_over(need + INDEX_MARGIN):
            target = now.limit - INDEX_MARGIN - need
            live = max(0, target - index.used_bytes())
            dropped = drop(core, index, Rule("byte budget", keep, live, only_unneeded=True))
            goes_on = bool(reclaim(core, index, target) or dropped)


def _measure(core: Core, index: Index) -> _Budget:
    with index.read() as tables:
        core.set_budget(core.budget(tables))
        used, live = used_bytes(tables, index), live_bytes(tables) + index.used_bytes()
        stamp, is_purge_due = tables.get_meta("stamp"), bool(tables.purges())
    limit, reason = core.max_bytes, FULL
    with contextlib.suppress(OSError):
        free = core.files.free_bytes(core.directory)
        if used + free < limit:
            limit, reason = used + free, "the disk is nearly full"
    return _Budget(used, live, stamp, limit, reason, is_purge_due)


def take_budget(core: Core, index: Index, given: int | None) -> None:
    """Take up the budget given, which then is the folder's, or without one the folder's.

    A store that has more than that is brought down to it; other processes follow.
    """
    with index.read() as tables:
        kept = tables.get_meta("budget")
    # One more than it is: a budget of 0 is one, too.
    if given is not None and given + 1 != kept:
        index.write(lambda tables: tables.put_meta("budget", given + 1))
    if _measure(core, index).is_over(0):
        make_room(core, index, 0, keep=())


def shrink(core: Core, index: Index, to_bytes: int) -> int:
    """Bring the store down to `to_bytes` if pins allow it; return the bytes given back."""
    before = _measure(core, index).used
    with core.locks.lease() as is_ours:
        if is_ours and before > to_bytes:
            drop(core, index, Rule("byte budget", live_bytes=max(0, to_bytes - index.used_bytes())))
            reclaim(core, index, to_bytes, before)
    return before - _measure(core, index).used


def give_back(core: Core, index: Index) -> int:
    """Compact the segments less than half of which is live; return the bytes given back."""
    before = _measure(core, index).used
    with core.locks.lease() as is_ours:
        if is_ours:
            compact.compact(core, index)
    return before - _measure(core, index).used


def collect(core: Core, index: Index) -> Collected:
    """Drop what nobody points at, then give back every dead byte."""
    before = _measure(core, index).used
    with core.locks.lease() as is_ours:
        if not is_ours:
            return Collected(0, 0, 0, BUSY)
        blocks = drop(core, index, Rule("nobody pointed at it", only_unneeded=True))
        segments = compact.purge(core, index)
        with index.read() as tables:
            waiting = len(tables.purges())
    freed = before - _measure(core, index).used
    reason = UNREADABLE if blocks is None else None
    return Collected(blocks or 0, segments, freed, reason, waiting)
