"""Commit: write the new blocks of one path with what hangs on them, then publish them at once.

Knows the order that makes a crash harmless: records, one sync, one index transaction, in which all
that was planned is checked once more against what other processes published meanwhile. Invariants:
a block is published only with its whole path, what was published before is never rewritten, and a
stamp is above those of all removals before it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ced_kvstore.compact import INDEX_MARGIN, used_bytes
from ced_kvstore.core import Core
from ced_kvstore.entry import Entry
from ced_kvstore.errors import Stale
from ced_kvstore.evict import FULL
from ced_kvstore.index import Index
from ced_kvstore.plan import Plan, fit, is_news, make_plan, records_of
from ced_kvstore.record import Kind, Place, Record
from ced_kvstore.request import Request
from ced_kvstore.results import Anchor, Commit
from ced_kvstore.rows import Tables

KEEP_SNAPSHOTS = 2
"""Newest snapshots of a branch that stay; older ones only at pins and forks."""

_TRIES = 5
"""Plans before a commit gives up what other processes keep in its way."""

_DROPPED = "the path below was dropped meanwhile"


@dataclass(slots=True)
class _Done:
    """What one transaction published."""

    blocks: int = 0
    skipped: int = 0
    """Planned blocks that another process had published."""
    reason: str | None = None


def commit(core: Core, index: Index, request: Request) -> Commit:
    """Store what is new; the caller holds core.lock. Raises one of errors.TROUBLE."""
    reason = None
    for tries_left in reversed(range(_TRIES)):
        plan = make_plan(core, request)
        if isinstance(plan, str):
            return Commit(0, 0, plan)
        skipped = len(plan.hashes) - request.first_block - len(plan.new)
        fit(core, index, request, plan)
        records = records_of(request, plan)
        if not records:
            return Commit(0, skipped, plan.reason)
        places = core.writer.append(index, records, plan.stamp)
        change = _Change(core, index, request, plan, records, places, is_last=not tries_left)
        try:
            done = core.publish(index, change.publish)
        except Stale as stale:
            reason = str(stale)
            continue
        core.writer.published(places)
        core.counters.blocks_written += done.blocks
        return Commit(done.blocks, skipped + done.skipped, plan.reason or done.reason)
    return Commit(0, 0, reason)


@dataclass(frozen=True, slots=True)
class _Change:
    """One try to enter written records into the index."""

    core: Core
    index: Index
    request: Request
    plan: Plan
    records: Sequence[Record]
    places: Sequence[Place]
    is_last: bool
    """Publish what can be, instead of planning anew."""

    def publish(self, tables: Tables) -> _Done:
        """Enter them, all in one transaction; raises Stale when the plan is to be made anew."""
        plan, done = self.plan, _Done()
        if plan.stamp <= tables.get_meta("removal"):
            raise Stale("what other processes removed keeps getting in the way")
        anchors, added = iter(plan.anchors), set()
        for record, place in zip(self.records, self.places, strict=True):
            # What is not published is dead bytes from here on.
            tables.extend_segment(place)
            tables.mark_segment(place.segment, plan.stamp)
            if record.kind is Kind.BLOCK:
                if self._put_block(tables, record, place, done):
                    added.add(record.key)
            elif record.kind is Kind.SNAPSHOT:
                if not tables.block(record.key):
                    self._miss(done, _DROPPED)
                elif not self._has_snapshot(tables, record.key):
                    tables.put_snapshot(record.key, place)
            elif record.kind is Kind.ANCHOR:
                self._put_anchor(tables, next(anchors), place, done)
            elif not tables.has_fingerprint(record.key):
                tables.put_fingerprint(record.key, self.request.fingerprint.fields, place)
        # What others filled meanwhile; half of the margin is for transactions that drop something.
        if used_bytes(tables, self.index) + INDEX_MARGIN // 2 > self.core.budget(tables):
            raise Stale(FULL)
        tables.put_meta("stamp", max(plan.stamp, tables.get_meta("stamp")))
        tips = [key for key in plan.hashes if key in added]
        if tips:
            tables.put_heat(tips[-1], time.time(), 1.0)
        if plan.snapshots:
            _thin_snapshots(tables, plan.hashes)
        return done

    def _put_block(self, tables: Tables, record: Record, place: Place, done: _Done) -> bool:
        """Add a block, or skip one that is there; return whether it was added."""
        if tables.block(record.key) and not self._is_bad(tables, record.key):
            done.skipped += 1
            return False
        if record.position > 0 and tables.block(record.parent) is None:
            self._miss(done, _DROPPED)
            return False
        # Where a bad block is mended, what was stored with it is not to be trusted either.
        tables.drop_snapshot(record.key)
        entry = Entry(place, record.position, False, record.fingerprint, record.parent)
        tables.put_block(record.key, entry)
        done.blocks += 1
        return True

    def _put_anchor(self, tables: Tables, anchor: Anchor, place: Place, done: _Done) -> None:
        is_root = anchor.block_hash == self.request.fingerprint.root
        if not is_root and tables.block(anchor.block_hash) is None:
            # Making room may just have evicted a block that is not on this path.
            self._miss(done, "an anchor's block was dropped meanwhile")
        elif is_news(tables, anchor):
            old = tables.anchor(anchor)
            # Of two records of one anchor the one with the higher stamp counts at a rebuild.
            if old and (old.pinned > anchor.pinned or self.plan.stamp <= tables.get_meta("stamp")):
                raise Stale("other processes keep setting the same anchor")
            tables.put_anchor(anchor, place)

    def _is_bad(self, tables: Tables, key: bytes) -> bool:
        return self.core.is_bad(key, tables)

    def _has_snapshot(self, tables: Tables, key: bytes) -> bool:
        return self.core.has_snapshot(key, tables) and not self._is_bad(tables, key)

    def _miss(self, done: _Done, reason: str) -> None:
        if not self.is_last:
            raise Stale(reason)
        done.reason = reason


def _thin_snapshots(tables: Tables, hashes: Sequence[bytes]) -> None:
    """Drop the snapshots of a path but the newest two and the last one before each pin and fork."""
    kept, wanted = 0, False
    for key in reversed(hashes):
        is_pinned = any(anchor.pinned for anchor, _ in tables.anchors(key))
        wanted = wanted or is_pinned or len(tables.children(key)) > 1
        if tables.snapshot(key) is None:
            continue
        kept += 1
        if kept > KEEP_SNAPSHOTS and not wanted:
            tables.drop_snapshot(key)
        wanted = False
