"""What takes a store's bytes: each label's share, what is shared, what is nobody's, and the rest.

Knows records by kind and place, and files by size; it reads no payload. `tree` and `show`, the
other two views of a whole store, are to be had here, too. Invariant: the rows' `own_bytes` add up
to what the store's files hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ced_kvstore.errors import TROUBLE
from ced_kvstore.files import Files
from ced_kvstore.forest import TreeNode, tree
from ced_kvstore.record import Kind, Place
from ced_kvstore.results import Anchor
from ced_kvstore.shown import Shown, show

if TYPE_CHECKING:
    from pathlib import Path

    from ced_kvstore.core import Core
    from ced_kvstore.rows import Tables

__all__ = ["Shown", "TreeNode", "Usage", "du", "show", "tree"]

_FOLDERS = ("index", "pins")
_FILES = ("VERSION", "OPEN", "LOCK", "LEASE")
_NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Usage:
    """One row of `du`. Bytes are those of whole records on disk, header and padding included."""

    label: str
    """The label of a row of kind `label`, else empty."""
    kind: str
    """label; shared: needed by several labels; nobody: no anchor is at it or after it; store:
    fingerprints and removals; dead: in segments, but named by nothing; index: all other files."""
    blocks: int
    """Blocks that it needs, with their whole paths."""
    bytes: int
    """What it needs; other labels may need it, too."""
    own_bytes: int
    """What it alone needs; these add up to the bytes on disk."""
    own_records: int
    """Live records among them; these add up to what `verify` reads."""
    snapshot_bytes: int = 0
    """Bytes of snapshots among `bytes`."""
    anchors: int = 0
    pinned: bool = False
    """One of its anchors is pinned."""
    created: float = 0.0
    """When its newest anchor was made, in seconds since the epoch; 0 without one."""


@dataclass(slots=True)
class _Sum:
    blocks: int = 0
    records: int = 0
    bytes: int = 0
    snapshot_bytes: int = 0


@dataclass(slots=True)
class _Found:
    """What the index says, copied out of one transaction."""

    parents: dict[bytes, tuple[int, bytes]]
    """Block -> (position, parent)."""
    anchors: list[tuple[Anchor, Place]]
    placed: list[tuple[Place, Kind, bytes]]


def du(core: Core) -> tuple[Usage, ...]:
    """Return a row for each label, the largest first, then one for each other kind that there is.

    Reads the whole index (about 8 s per million blocks); nothing when it cannot be read.
    """
    try:
        with core.read() as tables:
            found = _copy(tables)
        sizes = {n: core.segments.size(n) for n in {place.segment for place, _, _ in found.placed}}
        in_segments = _folder_bytes(core.files, core.segments.folder)
        others = sum(core.files.size(core.directory / name) for name in _FILES)
        others += sum(_folder_bytes(core.files, core.directory / name) for name in _FOLDERS)
    except TROUBLE:
        return ()
    sums, store = _sums(found, sizes)
    rows = _label_rows(found, sums, sizes)
    shared = _total(part for labels, part in sums.items() if len(labels) > 1)
    for kind, part in (("shared", shared), ("nobody", sums.get(_NOBODY, _Sum())), ("store", store)):
        if part.records or part.blocks:
            row = Usage(
                "", kind, part.blocks, part.bytes, part.bytes, part.records, part.snapshot_bytes
            )
            rows.append(row)
    live = sum(row.own_bytes for row in rows)
    # A writer may append between the two looks; what is not in the index yet counts as dead.
    for kind, size in (("dead", max(0, in_segments - live)), ("index", others)):
        if size:
            rows.append(Usage("", kind, 0, size, size, 0))
    return tuple(rows)


def _copy(tables: Tables) -> _Found:
    return _Found(
        {key: (entry.position, entry.parent) for key, entry in tables.blocks()},
        list(tables.anchors()),
        list(tables.placed()),
    )


def _sums(found: _Found, sizes: dict[int, int]) -> tuple[dict[frozenset[str], _Sum], _Sum]:
    """Return (set of labels -> blocks and snapshots that exactly these need, fingerprints and
    removals)."""
    needed_by = _labels_of_blocks(found)
    sums: dict[frozenset[str], _Sum] = defaultdict(_Sum)
    store = _Sum()
    for labels in needed_by.values():
        sums[labels].blocks += 1
    for place, kind, key in found.placed:
        if kind is Kind.ANCHOR:
            continue
        is_on_block = kind in (Kind.BLOCK, Kind.SNAPSHOT)
        part = sums[needed_by.get(key, _NOBODY)] if is_on_block else store
        size = _on_disk(place, sizes)
        part.records += 1
        part.bytes += size
        if kind is Kind.SNAPSHOT:
            part.snapshot_bytes += size
    return sums, store


def _labels_of_blocks(found: _Found) -> dict[bytes, frozenset[str]]:
    """Return block -> labels of the anchors at it or after it."""
    at: dict[bytes, set[str]] = defaultdict(set)
    for anchor, _place in found.anchors:
        at[anchor.block_hash].add(anchor.label)
    after: dict[bytes, frozenset[str]] = {}
    needed_by: dict[bytes, frozenset[str]] = {}
    deepest_first = sorted(found.parents.items(), key=lambda item: -item[1][0])
    for key, (_position, parent) in deepest_first:
        labels = after.pop(key, _NOBODY)
        if key in at:
            labels |= at[key]
        needed_by[key] = labels
        known = after.get(parent, _NOBODY)
        # Along a path it is one and the same set, not one per block.
        after[parent] = labels if known <= labels else known | labels
    return needed_by


def _label_rows(
    found: _Found, sums: dict[frozenset[str], _Sum], sizes: dict[int, int]
) -> list[Usage]:
    by_label: dict[str, list[tuple[Anchor, Place]]] = defaultdict(list)
    for anchor, place in found.anchors:
        by_label[anchor.label].append((anchor, place))
    parts: dict[str, list[_Sum]] = defaultdict(list)
    for labels, part in sums.items():
        for label in labels:
            parts[label].append(part)
    rows = []
    for label, anchors in by_label.items():
        size = sum(_on_disk(place, sizes) for _anchor, place in anchors)
        total, own = _total(parts[label]), sums.get(frozenset((label,)), _Sum())
        row = Usage(
            label,
            "label",
            total.blocks,
            total.bytes + size,
            own.bytes + size,
            own.records + len(anchors),
            total.snapshot_bytes,
            len(anchors),
            any(anchor.pinned for anchor, _place in anchors),
            max(anchor.created for anchor, _place in anchors),
        )
        rows.append(row)
    return sorted(rows, key=lambda row: (-row.bytes, row.label))


def _total(parts: Iterable[_Sum]) -> _Sum:
    total = _Sum()
    for part in parts:
        total.blocks += part.blocks
        total.records += part.records
        total.bytes += part.bytes
        total.snapshot_bytes += part.snapshot_bytes
    return total


def _on_disk(place: Place, sizes: dict[int, int]) -> int:
    """Return a record's bytes as far as its file reaches; somebody may have truncated it."""
    return max(0, min(place.end, sizes.get(place.segment, 0)) - place.offset)


def _folder_bytes(files: Files, folder: Path) -> int:
    try:
        return sum(files.size(folder / name) for name in files.names(folder))
    except FileNotFoundError:
        return 0
