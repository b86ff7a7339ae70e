"""Drop blocks, leaf first, in transactions of bounded size.

Knows the tree, pins and one rule at a time; evict.py has the rules. Invariants: no block goes
before those after it, and none that a pinned anchor, a live process's pin or the rule keeps.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Collection
from dataclasses import dataclass

from ced_kvstore.compact import live_bytes
from ced_kvstore.core import Core
from ced_kvstore.index import Index
from ced_kvstore.rows import Tables
from ced_kvstore.tree import Node, load, paths, worth

BATCH_BLOCKS = 1000
"""Most blocks looked at in one transaction, so that other processes need not wait for long."""

UNREADABLE = "what another process is using cannot be told"


@dataclass(frozen=True, slots=True)
class Rule:
    """What one round of dropping may take."""

    why: str
    keep: Collection[bytes] = frozenset()
    """Blocks that stay, the ones before them among them."""
    live_bytes: int = -1
    """Bytes of live records at which it is enough."""
    max_blocks: int | None = None
    only_unneeded: bool = False
    """Leave what an anchor points at."""


def drop(core: Core, index: Index, rule: Rule) -> int | None:
    """Drop blocks in the order of their worth; return how many, None when pins are unreadable.

    The tree is read once, outside of any write transaction, and not at all when little enough is
    live; each batch looks again whether what it takes is still a leaf that nothing keeps. The
    caller holds the lease. Raises one of TROUBLE.
    """
    with index.read() as tables:
        if live_bytes(tables) <= rule.live_bytes:
            return 0
        nodes = load(tables)
    order = iter(sorted(nodes.values(), key=worth))
    count, taken = 0, _Taken()
    while not taken.is_enough and (rule.max_blocks is None or count < rule.max_blocks):
        batch = list(itertools.islice(order, BATCH_BLOCKS))
        if not batch:
            break
        taken = index.write(functools.partial(_take, core, nodes, batch, rule))
        count += taken.blocks
    core.counters.count_evicted(rule.why, count)
    return count if taken.is_told else None


def in_use(core: Core) -> set[bytes] | None:
    """Return the blocks that other processes use and this one has pinned, None when that cannot be
    told."""
    others = core.pins.others()
    return None if others is None else others | core.pins.own


def unneeded(core: Core, index: Index) -> dict[bytes, int]:
    """Return the blocks that neither an anchor nor a process needs -> the bytes that go with each.

    None of them when it cannot be told what others use. Raises one of TROUBLE.
    """
    with index.read() as tables:
        nodes, used = load(tables), in_use(core)
        if used is None:
            return {}
        kept = paths(nodes, used | ({core.pins.incoming} if core.pins.incoming else set()))
        found = {}
        for key, node in nodes.items():
            entry = tables.block(key)
            # Of a damaged one the bytes are dead already.
            if node.is_pointed_at or key in kept or entry is None or entry.bad:
                continue
            snapshot = tables.snapshot(key)
            found[key] = node.record_bytes + (snapshot.span if snapshot else 0)
    return found


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one transaction dropped."""

    blocks: int = 0
    is_enough: bool = False
    is_told: bool = True
    """Whether all pins could be read."""


def _take(
    core: Core, nodes: dict[bytes, Node], batch: list[Node], rule: Rule, tables: Tables
) -> _Taken:
    # Pins are read within the transaction: who has pinned and then waited for it is safe.
    used = in_use(core)
    if used is None:
        return _Taken(0, True, False)
    if core.pins.incoming:
        used.add(core.pins.incoming)
    kept = paths(nodes, used)
    live, count, now = live_bytes(tables), 0, time.time()
    for node in batch:
        if live <= rule.live_bytes:
            return _Taken(count, True)
        if node.key in kept or node.key in rule.keep or node.is_pinned:
            continue
        if rule.only_unneeded and node.is_pointed_at:
            continue
        # Others go on meanwhile: a block may have got another one behind it, or an anchor.
        if tables.children(node.key):
            continue
        if any(anchor.pinned or rule.only_unneeded for anchor, _ in tables.anchors(node.key)):
            continue
        live -= tables.drop_block(node.key, rule.why, now)
        count += 1
    return _Taken(count)
