"""What of a store goes into an archive: the paths of labels and blocks, or everything.

Knows the index and reads no records. Invariants: keys come in path order (a block behind the one
before it, children of one block by ascending hash), and a selection has the whole path of each of
its blocks. Transactions are short, so what is written meanwhile may or may not be in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ced_kvstore.core import Core
from ced_kvstore.errors import StoreError
from ced_kvstore.hashing import Fingerprint
from ced_kvstore.manifest import streams_of
from ced_kvstore.results import Anchor, Stream

BATCH = 1024
"""Blocks looked up in one transaction."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is chosen of one fingerprint."""

    fingerprint: Fingerprint
    streams: tuple[Stream, ...]
    keys: list[bytes]
    snapshots: list[tuple[bytes, int]]
    """Block hash and bytes of each."""
    anchors: list[Anchor]


def select(core: Core, targets: Sequence[str | bytes]) -> tuple[list[Selection], int]:
    """Return what to export, and how many blocks it should be.

    Raises StoreError for a target that is not stored, else one of errors.TROUBLE.
    """
    with core.read() as tables:
        fingerprints = tables.fingerprints()
        anchors = [anchor for anchor, _place in tables.anchors()]
        count = tables.count("blocks")
    wanted: set[bytes] | None = None
    if targets:
        anchors = _anchors(core, targets, anchors)
        starts = [anchor.block_hash for anchor in anchors]
        wanted = _paths(core, [*starts, *(t for t in targets if isinstance(t, bytes))])
        count = len(wanted)
    at: dict[bytes, list[Anchor]] = {}
    for anchor in anchors:
        at.setdefault(anchor.block_hash, []).append(anchor)
    selections = []
    for digest, fields in sorted(fingerprints.items()):
        fingerprint = Fingerprint.from_fields(fields)
        try:
            streams = streams_of(fields)
        except (ValueError, LookupError):
            continue
        if fingerprint.digest == digest:
            selections.append(_walk(core, fingerprint, streams, at, wanted))
    return [each for each in selections if each.keys or each.anchors], count


def _anchors(core: Core, targets: Sequence[str | bytes], anchors: Iterable[Anchor]) -> list[Anchor]:
    """Return the anchors of some labels, and those at some blocks."""
    chosen = [a for a in anchors if a.label in targets or a.block_hash in targets]
    for target in targets:
        if isinstance(target, str):
            if all(anchor.label != target for anchor in chosen):
                raise StoreError(f"nothing is stored under {target!r}; see the labels of anchors()")
            continue
        with core.read() as tables:
            is_there = tables.block(target) is not None
        if not is_there and all(anchor.block_hash != target for anchor in chosen):
            raise StoreError(f"no block {target.hex()[:16]} is stored; see the anchors' blocks")
    return chosen


def _paths(core: Core, starts: Iterable[bytes]) -> set[bytes]:
    """Return some blocks with everything before them."""
    found: set[bytes] = set()
    for start in starts:
        with core.read() as tables:
            key, entry = start, tables.block(start)
            while entry is not None and key not in found:
                found.add(key)
                key = entry.parent
                entry = tables.block(key)
    return found


def _walk(
    core: Core,
    fingerprint: Fingerprint,
    streams: tuple[Stream, ...],
    anchors: Mapping[bytes, list[Anchor]],
    wanted: set[bytes] | None,
) -> Selection:
    """Return what is wanted of one tree."""
    made = Selection(fingerprint, streams, [], [], list(anchors.get(fingerprint.root, ())))
    root = fingerprint.root
    ahead = [(root, b"")]
    while ahead:
        with core.read() as tables:
            for _ in range(min(BATCH, len(ahead))):
                key, before = ahead.pop()
                if key != root:
                    entry = tables.block(key)
                    # What only the table of children says is no edge.
                    if entry is None or entry.parent != before:
                        continue
                    made.keys.append(key)
                    made.anchors.extend(anchors.get(key, ()))
                    snapshot = tables.snapshot(key)
                    if snapshot is not None:
                        made.snapshots.append((key, snapshot.length))
                # The table keeps them in ascending order; the stack turns it around.
                children = [c for c in tables.children(key) if wanted is None or c in wanted]
                ahead += [(child, key) for child in reversed(children) if child != root]
    return made
