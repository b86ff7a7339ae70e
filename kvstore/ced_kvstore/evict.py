"""Keep the store within its bytes: when something must go, how much, and by which rule.

Knows budgets and policies; which block is worth what, tree.py knows. Works under the lease: one
process at a time chooses what goes. Invariants: pinned blocks, the path being committed and the
paths matched last are never dropped, and one commit drops and moves a bounded number of bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from ced_kvstore import compact
from ced_kvstore.compact import reclaim, used_bytes
from ced_kvstore.core import Core
from ced_kvstore.drop import UNREADABLE, Rule, drop
from ced_kvstore.index import Index
from ced_kvstore.locks import BUSY
from ced_kvstore.results import Collected

HIGH = 0.9
"""Share of the budget above which something is dropped."""

LOW = 0.8
"""Share of the budget to come down to, so that not every commit has to drop something."""

CALL_BLOCKS = 20_000
"""Most blocks dropped by one commit; the next one goes on."""

MOVED_SEGMENTS = 4
"""Most bytes moved to make room for one commit, in full segments, beside four times its own."""

INDEX_MARGIN = 64 << 10
"""Bytes left for the pages that the next index transaction adds."""

FULL = "the byte budget is full of pinned blocks and the path in use"


@dataclass(frozen=True, slots=True)
class Room:
    """What may be written now."""

    fits: int
    """Bytes."""
    reason: str
    """Why it is not more."""


@dataclass(frozen=True, slots=True)
class _Budget:
    """What is used and what may be."""

    used: int
    limit: int
    reason: str
    """What sets the limit."""
    is_purge_due: bool

    def is_over(self, need: int, share: float = 1.0) -> bool:
        return self.used + need > share * self.limit


def make_room(core: Core, index: Index, need: int, *, keep: Sequence[bytes]) -> Room:
    """Drop what is worth least until `need` bytes fit; return what fits.

    The caller holds core.lock. Raises one of errors.TROUBLE.
    """
    now = _measure(core, index)
    reason = now.reason
    if now.is_purge_due or now.is_over(need, HIGH):
        # While another process makes room there is no need to wait, unless nothing fits before.
        with core.locks.lease(None if now.is_over(need + INDEX_MARGIN) else 0.0) as is_ours:
            if not is_ours:
                reason = BUSY
            else:
                live = int(LOW * now.limit) - need - index.used_bytes()
                rule = Rule("byte budget", keep, max(0, live), CALL_BLOCKS)
                if now.is_over(need, HIGH) and drop(core, index, rule) is None:
                    reason = UNREADABLE
                target = int(HIGH * now.limit) - need
                reclaim(core, index, target, MOVED_SEGMENTS * core.writer.limit + 4 * need)
        now = _measure(core, index)
    return Room(max(0, now.limit - now.used - INDEX_MARGIN), reason)


def _measure(core: Core, index: Index) -> _Budget:
    with index.read() as tables:
        used, purges = used_bytes(tables, index), tables.purges()
    with contextlib.suppress(OSError):
        free = core.files.free_bytes(core.directory)
        if used + free < core.max_bytes:
            return _Budget(used, used + free, "the disk is nearly full", bool(purges))
    return _Budget(used, core.max_bytes, FULL, bool(purges))


def take_budget(core: Core, index: Index, given: int | None) -> None:
    """Take up the budget given, which the folder keeps, or without one the budget that it kept.

    A store that has more than that is brought down to it.
    """
    with index.read() as tables:
        kept = tables.get_meta("budget")
    if given is None:
        core.set_budget(kept or core.max_bytes)
    elif given != kept:
        index.write(lambda tables: tables.put_meta("budget", given))
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
    """Drop what nobody points at, then compact."""
    before = _measure(core, index).used
    with core.locks.lease() as is_ours:
        if not is_ours:
            return Collected(0, 0, 0, BUSY)
        blocks = drop(core, index, Rule("nobody pointed at it", only_unneeded=True))
        segments = compact.compact(core, index)
    freed = before - _measure(core, index).used
    return Collected(blocks or 0, segments, freed, UNREADABLE if blocks is None else None)
