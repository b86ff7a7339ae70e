"""Counts of what the store did since it was opened, and sizes now, for `Store.stats`.

Changes nothing; a store that cannot be read has sizes of 0.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ced_kvstore.errors import TROUBLE
from ced_kvstore.results import StoreStats

if TYPE_CHECKING:
    from ced_kvstore.core import Core

COLD_LOOKUPS = 20
"""Lookups without a hit after which something is wrong, and not only new."""


@dataclass(slots=True)
class Counters:
    """Plain counts, shared by all handles of one directory."""

    lookups: int = 0
    hits: int = 0
    blocks_matched: int = 0
    blocks_read: int = 0
    blocks_written: int = 0
    blocks_bad: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    evicted: dict[str, int] = field(default_factory=dict)

    def count_match(self, blocks: int, reason: str) -> None:
        """Count one lookup of at least one whole block."""
        self.lookups += 1
        self.hits += blocks > 0
        self.blocks_matched += blocks
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def count_evicted(self, why: str, blocks: int) -> None:
        """Count blocks that this process dropped."""
        if blocks:
            self.evicted[why] = self.evicted.get(why, 0) + blocks


def cold_notice(core: Core) -> str | None:
    """Return one line when many lookups were made and none hit, although something is stored."""
    counters = core.counters
    if counters.lookups < COLD_LOOKUPS or counters.hits:
        return None
    blocks = 0
    with contextlib.suppress(*TROUBLE), core.read() as tables:
        blocks = tables.count("blocks")
    if not blocks:
        return None
    most = max(counters.reasons, key=counters.reasons.__getitem__)
    return (
        f"prefix store {core.directory}: none of {counters.lookups} lookups hit although {blocks} "
        f"blocks are stored (mostly {most}); ask `explain` why"
    )


def collect(core: Core) -> StoreStats:
    """Return sizes and counts of one directory."""
    blocks = snapshots = anchors = live = ends = index_bytes = 0
    segments: dict[int, tuple[int, int]] = {}
    max_bytes = core.max_bytes
    with contextlib.suppress(*TROUBLE), core.read() as tables:
        blocks, snapshots = tables.count("blocks"), tables.count("snapshots")
        anchors, segments = tables.count("anchors"), tables.segments()
        max_bytes = core.budget(tables)
        live = sum(live for _end, live in segments.values())
        ends = sum(end for end, _live in segments.values())
    with contextlib.suppress(*TROUBLE):
        index_bytes = core.files.size(core.directory / "index" / "data.mdb")
    counters = core.counters
    return StoreStats(
        blocks=blocks,
        snapshots=snapshots,
        anchors=anchors,
        segments=len(segments),
        bytes_live=live,
        bytes_on_disk=ends + index_bytes,
        bytes_index=index_bytes,
        max_bytes=max_bytes,
        read_only=core.read_only,
        notice=core.notice or cold_notice(core),
        lookups=counters.lookups,
        hits=counters.hits,
        blocks_matched=counters.blocks_matched,
        blocks_read=counters.blocks_read,
        blocks_written=counters.blocks_written,
        blocks_evicted=sum(counters.evicted.values()),
        blocks_bad=counters.blocks_bad,
        reasons=dict(counters.reasons),
        evicted=dict(counters.evicted),
    )
