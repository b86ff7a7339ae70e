"""The whole block tree in memory, to decide what goes: weights of subtrees, who is pointed at.

Knows the index and no files; built only when something is to be dropped (about 100 ms per 25,000
blocks). Invariant: a node's order is never below its parent's, so taking nodes in order takes
leaves first and never leaves a hole.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from ced_kvstore.rows import Tables


@dataclass(slots=True)
class Node:
    """One block with what its subtree adds up to."""

    key: bytes
    parent: bytes
    position: int
    record_bytes: int
    """Bytes on disk of the block's record, the same for a whole tree."""
    hits: float = 0.0
    """Decayed hits of the subtree."""
    last: float = 0.0
    """Newest use in the subtree."""
    is_pointed_at: bool = False
    """An anchor is at this block or after it."""
    is_pinned: bool = False
    """A pinned anchor is at this block or after it."""


def worth(node: Node) -> tuple[float, ...]:
    """Return the order in which blocks are dropped, lowest first; a parent's is never lower.

    Branches nobody points at go first, then what is used least for the bytes it takes. Encoding a
    block again takes the same time for all blocks of one fingerprint, so hits over bytes stand for
    time saved over bytes.
    """
    return node.is_pointed_at, node.hits / node.record_bytes, node.last, -node.position


def load(tables: Tables) -> dict[bytes, Node]:
    """Return every block's node with its subtree's sums."""
    now = time.time()
    nodes: dict[bytes, Node] = {}
    for key, entry in tables.blocks():
        nodes[key] = Node(key, entry.parent, entry.position, entry.place.span)
    for key, last, hits in tables.heats():
        if key in nodes:
            nodes[key].last, nodes[key].hits = last, decayed(hits, now - last)
    for anchor, _place in tables.anchors():
        at = nodes.get(anchor.block_hash)
        if at is not None:
            at.is_pointed_at = True
            at.is_pinned |= anchor.pinned
    for node in by_depth(nodes.values()):
        parent = nodes.get(node.parent)
        if parent is not None:
            parent.hits += node.hits
            parent.last = max(parent.last, node.last)
            parent.is_pointed_at |= node.is_pointed_at
            parent.is_pinned |= node.is_pinned
    return nodes


def by_depth(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes, deepest first, so that children come before their parents."""
    return sorted(nodes, key=lambda node: -node.position)


def paths(nodes: dict[bytes, Node], keys: Iterable[bytes]) -> set[bytes]:
    """Return some blocks and everything before them, as far as they are stored."""
    found: set[bytes] = set()
    for key in keys:
        # What was found on another path was followed then; in an index that somebody forged a path
        # may also lead back to itself.
        while key in nodes and key not in found:
            found.add(key)
            key = nodes[key].parent
    return found


def decayed(hits: float, seconds: float) -> float:
    """Return what is left of some hits after a time; half after a day."""
    return float(hits * 0.5 ** (max(0.0, seconds) / 86_400))
