"""Keep the store within its bytes: drop blocks, leaf first, and give their segments back.

Knows budgets and policies; which block is worth what, tree.py knows. Invariants: pinned blocks, the
path being committed and the path matched last are never dropped, and the index stops naming a
record before its file goes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ced_kvstore.compact import forget, move_out
from ced_kvstore.core import Core
from ced_kvstore.index import Index
from ced_kvstore.rows import Tables
from ced_kvstore.tree import load, path, worth

HIGH = 0.9
"""Share of the budget above which something is dropped."""

LOW = 0.8
"""Share of the budget to come down to, so that not every commit has to drop something."""


INDEX_MARGIN = 64 << 10
"""Bytes left for the pages that the next index transaction adds."""


def used_bytes(core: Core, index: Index) -> int:
    """Return what the budget limits: segments and index on disk."""
    return core.segments.total() + index.used_bytes()


def make_room(core: Core, index: Index, need: int, *, keep: Sequence[bytes]) -> int:
    """Drop what is worth least until `need` bytes fit; return the bytes that fit.

    The caller holds core.lock. Raises one of errors.TROUBLE.
    """
    if used_bytes(core, index) + need > HIGH * core.max_bytes:
        live = int(LOW * core.max_bytes) - need - index.used_bytes()
        drop_least(core, index, live, keep)
        reclaim(core, index, int(HIGH * core.max_bytes) - need)
    return max(0, core.max_bytes - used_bytes(core, index) - INDEX_MARGIN)


def shrink(core: Core, index: Index, used: int) -> int:
    """Bring the store down to `used` bytes if pins allow it; return the bytes given back."""
    before = used_bytes(core, index)
    if before > used:
        drop_least(core, index, max(0, used - index.used_bytes()), keep=())
        reclaim(core, index, used)
    return before - used_bytes(core, index)


def drop_least(core: Core, index: Index, live_bytes: int, keep: Sequence[bytes]) -> int:
    """Drop blocks until no more than `live_bytes` of records are live; return how many went."""

    def change(tables: Tables) -> int:
        nodes, now, count = load(tables), time.time(), 0
        kept = {*keep, *(path(nodes, core.incoming) if core.incoming else ())}
        live = sum(live for _end, live in tables.segments().values())
        for node in sorted(nodes.values(), key=worth):
            if live <= live_bytes:
                break
            if not node.is_pinned and node.key not in kept:
                live -= tables.drop_block(node.key, "byte budget", now)
                count += 1
        return count

    count = index.write(change)
    core.counters.blocks_evicted += count
    return count


def reclaim(core: Core, index: Index, used: int) -> None:
    """Unlink dead segments and move live records out of the emptiest, down to `used` bytes."""
    while True:
        with index.read() as tables:
            segments = tables.segments()
        for number in [n for n, (_end, live) in segments.items() if not live]:
            forget(core, index, number)
            del segments[number]
        wasteful = {n: live / end for n, (end, live) in segments.items() if live < end}
        if not wasteful or used_bytes(core, index) <= used:
            return
        move_out(core, index, min(wasteful, key=wasteful.__getitem__))
