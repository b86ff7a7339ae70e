"""One block: everything that the index and its own record say about it.

Reads that one record. Invariant: the ids that it returns are those that the block's hash was made
of, or none.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ced_kvstore.entry import Entry
from ced_kvstore.errors import TROUBLE, BadRecord, told
from ced_kvstore.hashing import IDS_BYTES, Value, block_hash, token_ids
from ced_kvstore.record import Kind, Place
from ced_kvstore.results import Anchor

if TYPE_CHECKING:
    from ced_kvstore.core import Core
    from ced_kvstore.rows import Tables

MAX_NAMED = 4
"""Blocks named when a prefix fits several."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What is known of one block."""

    block_hash: bytes
    position: int
    """Token index of its first token."""
    parent: bytes
    """The block before it; the fingerprint's root at position 0."""
    children: tuple[bytes, ...]
    file: str
    """The segment that its record is in, below the store's folder."""
    offset: int
    bytes: int
    """Bytes of the record on disk, header and padding included."""
    stamp: int | None
    """Number of the commit that wrote it; None when the header is damaged."""
    fingerprint: str
    """First 16 bytes of the fingerprint's SHA-256, in hex."""
    fields: dict[str, Value]
    """The fingerprint in plain form; empty when it is not known."""
    anchors: tuple[Anchor, ...]
    snapshot_bytes: int | None
    """Bytes on disk of its snapshot; None without one."""
    hits: float
    """Decayed hits of this very block at its last use."""
    last: float
    """Its last use in seconds since the epoch; 0 for never."""
    problem: str | None
    """What is wrong with its record; None for a good one."""
    ids: tuple[int, ...]
    """Its 128 token ids; none when they cannot be trusted."""

    @property
    def is_good(self) -> bool:
        """Whether header, ids and rows are as they were written."""
        return self.problem is None


def show(core: Core, prefix: str) -> Shown:
    """Return what is known of the one block whose hash begins with these hex digits.

    Fewer than all 64 digits are sought in the whole index (about 3 s per million blocks). Raises
    ValueError when there is not exactly one.
    """
    digits = prefix.lower()
    if not digits or len(digits) > 64 or not set(digits) <= set(string.hexdigits):
        raise ValueError(f"expected up to 64 hex digits of a block's hash, got {prefix!r}")
    try:
        keys, shown = _look_up(core, digits)
        if shown is not None and not shown.is_good:
            # Another process may have moved the record while this one looked at its old place.
            keys, shown = _look_up(core, digits)
    except TROUBLE as error:
        raise ValueError(f"no block can be looked up: {told(error)}") from None
    if shown is not None:
        return shown
    if not keys:
        raise ValueError(f"no block's hash begins with {digits}")
    named = ", ".join(key.hex()[: max(12, len(digits) + 4)] for key in keys[:MAX_NAMED])
    more = ", ..." if len(keys) > MAX_NAMED else ""
    raise ValueError(f"the hashes of {len(keys)} blocks begin with {digits}: {named}{more}")


def _look_up(core: Core, digits: str) -> tuple[list[bytes], Shown | None]:
    """Return (the blocks whose hashes begin so, what is known of it if it is one)."""
    with core.read() as tables:
        keys = _keys(tables, digits)
        return keys, _describe(core, tables, keys[0]) if len(keys) == 1 else None


def _keys(tables: Tables, digits: str) -> list[bytes]:
    if len(digits) == 64:
        key = bytes.fromhex(digits)
        return [key] if tables.block(key) else []
    return [key for key, _entry in tables.blocks() if key.hex().startswith(digits)]


def _describe(core: Core, tables: Tables, key: bytes) -> Shown:
    entry = tables.block(key)
    if entry is None:
        raise BadRecord("the block has just been dropped")
    place, snapshot = entry.place, tables.snapshot(key)
    last, hits = tables.heat(key)
    plain = {digest[:16]: fields for digest, fields in tables.fingerprints().items()}
    stamp, problem = _check(core, key, entry)
    if problem is None and core.is_bad(key, tables):
        problem = "its rows were found to be wrong"
    return Shown(
        block_hash=key,
        position=entry.position,
        parent=entry.parent,
        children=tuple(sorted(tables.children(key))),
        file=f"seg/{core.segments.path(place.segment).name}",
        offset=place.offset,
        bytes=place.span,
        stamp=stamp,
        fingerprint=entry.fingerprint.hex(),
        fields=plain.get(entry.fingerprint, {}),
        anchors=tuple(anchor for anchor, _place in tables.anchors(key)),
        snapshot_bytes=None if snapshot is None else snapshot.span,
        hits=hits,
        last=last,
        problem=problem,
        ids=_ids(core, key, place, entry.parent),
    )


def _check(core: Core, key: bytes, entry: Entry) -> tuple[int | None, str | None]:
    """Return (the record's stamp, what is wrong with it or None)."""
    stamp = None
    try:
        stamp = core.segments.read_header(entry.place)[0].stamp
        header, _payload = core.segments.read_payload(entry.place, Kind.BLOCK, key)
    except BadRecord as error:
        return stamp, str(error)
    said = header.position, header.parent, header.fingerprint
    if said != (entry.position, entry.parent, entry.fingerprint):
        return stamp, "the record's header says other than the index"
    return stamp, None


def _ids(core: Core, key: bytes, place: Place, parent: bytes) -> tuple[int, ...]:
    try:
        _header, raw = core.segments.read_header(place, IDS_BYTES)
    except BadRecord:
        return ()
    return token_ids(raw) if block_hash(parent, raw) == key else ()
