"""What callers hand in, checked: buffers as flat views, and the arguments of one commit.

Knows sizes and names, no disk. Invariant: what passes here has the right lengths everywhere, so
that nothing later has to look again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ced_kvstore.hashing import BLOCK_TOKENS, Fingerprint, token_bytes
from ced_kvstore.record import MAX_PAYLOAD
from ced_kvstore.results import Anchor, Stream, check_hash

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class Request:
    """One call of `Store.commit`."""

    fingerprint: Fingerprint
    streams: Sequence[Stream]
    raw_ids: bytes
    first_block: int
    rows: Mapping[str, memoryview]
    anchors: Sequence[Anchor]
    snapshots: Mapping[bytes, memoryview]
    may_drop: bool = True
    """Whether room is made by dropping blocks, or by giving dead bytes back alone."""


def checked(
    fingerprint: Fingerprint,
    streams: Sequence[Stream],
    prefix_ids: Sequence[int],
    *,
    first_block: int,
    rows: Mapping[str, Buffer],
    anchors: Sequence[Anchor],
    snapshots: Mapping[bytes, Buffer],
) -> Request:
    """Check the arguments of a commit; raises ValueError."""
    blocks, rest = divmod(len(prefix_ids), BLOCK_TOKENS)
    if rest or not 0 <= first_block <= blocks:
        raise ValueError(
            f"prefix_ids: expected a multiple of {BLOCK_TOKENS} ids and first_block within them, "
            f"got {len(prefix_ids)} ids and first_block {first_block}"
        )
    for key in snapshots:
        check_hash(key)
    views = as_views(streams, rows, blocks - first_block, writable=False)
    flat = {key: memoryview(data).cast("B") for key, data in snapshots.items()}
    for data in flat.values():
        if len(data) > MAX_PAYLOAD:
            raise ValueError(f"a snapshot: expected at most {MAX_PAYLOAD} bytes, got {len(data)}")
    raw_ids = token_bytes(prefix_ids)
    return Request(fingerprint, streams, raw_ids, first_block, views, anchors, flat)


def as_views(
    streams: Sequence[Stream], buffers: Mapping[str, Buffer], blocks: int, *, writable: bool
) -> dict[str, memoryview]:
    """Return a flat view per buffer; raises ValueError for a wrong name, size or read-only one.

    Rows to be written must be there for every stream, unless there are no blocks.
    """
    unknown = buffers.keys() - {stream.name for stream in streams}
    if unknown:
        raise ValueError(f"unknown streams {sorted(unknown)}; the store was opened with others")
    views = {}
    for stream in streams:
        if stream.name not in buffers:
            if blocks and not writable:
                raise ValueError(f"rows of stream {stream.name} are missing")
            continue
        view = memoryview(buffers[stream.name]).cast("B")
        expected = blocks * stream.block_bytes
        if len(view) < expected or (len(view) != expected and not writable):
            raise ValueError(
                f"stream {stream.name}: expected {expected} bytes ({blocks} blocks of "
                f"{stream.block_bytes}), got {len(view)}"
            )
        if writable and view.readonly:
            raise ValueError(f"stream {stream.name}: the buffer is read-only")
        views[stream.name] = view
    return views
