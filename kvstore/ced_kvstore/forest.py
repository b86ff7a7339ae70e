"""The block tree as runs: chains of blocks between forks and anchors.

Knows the index and no files. Invariant: every block is in exactly one run, and a run comes after
the one that it continues.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ced_kvstore.entry import Entry
from ced_kvstore.errors import TROUBLE
from ced_kvstore.hashing import BLOCK_TOKENS
from ced_kvstore.record import Kind
from ced_kvstore.results import Anchor
from ced_kvstore.tree import Node, load

if TYPE_CHECKING:
    from ced_kvstore.core import Core


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One run of blocks; it ends where an anchor is, where branches part, or at a leaf."""

    parent: int | None
    """Index of the run before it in the same tuple; None where a text begins."""
    depth: int
    """Runs before it on its path."""
    block_hash: bytes
    """Its last block."""
    position: int
    """Token index of its first token."""
    n_tokens: int
    bytes: int
    """Bytes on disk of its blocks and their snapshots; nothing for damaged ones."""
    labels: tuple[str, ...]
    """Labels of the anchors at its last block."""
    pinned: tuple[str, ...]
    """Those of them that are pinned."""
    hits: float
    """Decayed hits of it and of everything after it."""
    last: float
    """Newest use of it or of anything after it, in seconds since the epoch; 0 for never."""
    snapshots: int
    bad: int
    """Blocks whose records were found damaged."""
    fingerprint: str
    """First 16 bytes of the fingerprint's SHA-256, in hex."""


@dataclass(slots=True)
class _Found:
    """What the index says, copied out of one transaction."""

    nodes: dict[bytes, Node]
    entries: dict[bytes, Entry]
    anchors: dict[bytes, list[Anchor]]
    snapshot_bytes: dict[bytes, int]

    def run_from(self, key: bytes, children: dict[bytes, list[bytes]]) -> list[bytes]:
        """Return the blocks from `key` on, up to an anchor, a fork or a leaf."""
        run = [key]
        while run[-1] not in self.anchors and len(children[run[-1]]) == 1:
            run += children[run[-1]]
        return run

    def describe(self, run: list[bytes], parent: int | None, depth: int) -> TreeNode:
        """Return the run's line."""
        first, entries = self.nodes[run[0]], [self.entries[key] for key in run]
        snapshots = [self.snapshot_bytes[key] for key in run if key in self.snapshot_bytes]
        anchors = sorted(self.anchors.get(run[-1], ()), key=lambda anchor: anchor.label)
        return TreeNode(
            parent=parent,
            depth=depth,
            block_hash=run[-1],
            position=first.position,
            n_tokens=len(run) * BLOCK_TOKENS,
            bytes=sum(e.place.span for e in entries if not e.bad) + sum(snapshots),
            labels=tuple(anchor.label for anchor in anchors),
            pinned=tuple(anchor.label for anchor in anchors if anchor.pinned),
            hits=first.hits,
            last=first.last,
            snapshots=len(snapshots),
            bad=sum(entry.bad for entry in entries),
            fingerprint=entries[0].fingerprint.hex(),
        )


def tree(core: Core) -> tuple[TreeNode, ...]:
    """Return all runs, each branch right behind its run, what was used last first.

    Reads the whole index (about 15 s per million blocks); nothing when it cannot be read.
    """
    try:
        with core.read() as tables:
            found = _Found(load(tables), dict(tables.blocks()), defaultdict(list), {})
            for anchor, _place in tables.anchors():
                found.anchors[anchor.block_hash].append(anchor)
            for place, kind, key in tables.placed():
                if kind is Kind.SNAPSHOT:
                    found.snapshot_bytes[key] = place.span
    except TROUBLE:
        return ()
    nodes = found.nodes
    children: dict[bytes, list[bytes]] = defaultdict(list)
    roots: list[bytes] = []
    # The last pushed is the next taken: what was used last is pushed last.
    for key in sorted(nodes, key=lambda key: (nodes[key].last, key)):
        parent = nodes[key].parent
        # Also a block whose parent is lost begins a run: it is there, and `verify` speaks of it.
        (children[parent] if parent in nodes else roots).append(key)
    runs: list[TreeNode] = []
    waiting: list[tuple[bytes, int | None, int]] = [(key, None, 0) for key in roots]
    while waiting:
        key, before, depth = waiting.pop()
        run = found.run_from(key, children)
        waiting += [(child, len(runs), depth + 1) for child in children[run[-1]]]
        runs.append(found.describe(run, before, depth))
    return tuple(runs)
