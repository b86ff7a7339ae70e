"""The store: bytes on disk keyed by the hash of a token prefix. The only public class.

Checks arguments, turns trouble into reasons, and leaves the work to its neighbours. It knows token
ids as opaque numbers and rows as bytes. Invariant: after `open`, only a wrong argument raises;
whatever the disk does is a miss, or a commit of nothing, with a reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ced_kvstore import evict, publish, remove
from ced_kvstore import explain as explaining
from ced_kvstore import verify as verifying
from ced_kvstore.core import Core
from ced_kvstore.errors import TROUBLE, StoreError
from ced_kvstore.files import Files, is_supported
from ced_kvstore.hashing import BLOCK_TOKENS, Fingerprint, Value, chain, token_bytes
from ced_kvstore.index import MAP_BYTES
from ced_kvstore.load import Loader, load_snapshot
from ced_kvstore.lookup import find
from ced_kvstore.opening import close_core, open_core
from ced_kvstore.request import as_views, checked
from ced_kvstore.results import (
    Anchor,
    Commit,
    Explanation,
    Match,
    Problem,
    Removal,
    StoreStats,
    Stream,
)
from ced_kvstore.stats import collect

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Store:
    """One handle: a directory, seen with one fingerprint and its streams."""

    def __init__(self, core: Core, fingerprint: Fingerprint, streams: Sequence[Stream]) -> None:
        """Use `Store.open`."""
        self._core = core
        self._fingerprint = fingerprint
        self._streams = tuple(streams)
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: str | Path,
        *,
        fingerprint: Mapping[str, Value],
        streams: Sequence[Stream],
        max_bytes: int | None = None,
        map_bytes: int = MAP_BYTES,
        files: Files | None = None,
    ) -> Store:
        """Open or create a store.

        `max_bytes` limits segments and index together: by default 10 GB or a tenth of the disk, the
        smaller. The first process to open a directory writes; others read only and say so in
        `notice`. Handles of one directory in one process share everything but fingerprint and
        streams, the first one's `files` included. A full, read-only or forbidden disk gives a store
        that always misses.

        Raises StoreError (the path is no folder, or of another format version), ValueError,
        TypeError.
        """
        if len({stream.name for stream in streams}) != len(streams) or not streams:
            raise ValueError("streams: expected at least one, each with a name of its own")
        if max_bytes is not None and max_bytes < 0:
            raise ValueError(f"max_bytes must be at least 0, got {max_bytes}")
        if not is_supported():
            raise StoreError("the prefix store needs preadv (Linux or macOS); run without a store")
        named = Fingerprint.of(fingerprint, streams)
        core = open_core(Path(directory), files or Files(), max_bytes, map_bytes)
        core.change(lambda core, index: evict.make_room(core, index, 0, keep=()), lambda _: 0)
        return cls(core, named, streams)

    @property
    def directory(self) -> Path:
        """The store's folder."""
        return self._core.directory

    @property
    def read_only(self) -> bool:
        """Whether commits are no-ops (another process writes, or writing failed)."""
        return self._core.read_only

    @property
    def notice(self) -> str | None:
        """One line for the user when the store is read-only or useless, else None."""
        return self._core.notice

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams, in the order of their bytes in a record."""
        return self._streams

    @property
    def root(self) -> bytes:
        """The hash before the first block: the block hash of an anchor at fewer than 128 tokens."""
        return self._fingerprint.root

    def hashes(self, ids: Sequence[int]) -> tuple[bytes, ...]:
        """Return the hash of each whole block of `ids`, stored or not."""
        return tuple(chain(self.root, token_bytes(ids)))

    def match(self, ids: Sequence[int]) -> Match:
        """Find the longest stored prefix of whole blocks. Pure, index only, never raises for disk
        trouble; ValueError for ids that are no u32."""
        raw_ids = token_bytes(ids)
        try:
            match = find(self._core, self._fingerprint, raw_ids)
        except TROUBLE:
            match = Match(0, (), "disabled")
        if len(ids) >= BLOCK_TOKENS:
            self._core.counters.count_match(match.blocks, match.reason)
        if match.blocks:
            self._core.touch(match.hashes[-1])
        return match

    def read(
        self,
        match: Match,
        buffers: Mapping[str, Buffer],
        *,
        first_block: int = 0,
        n_blocks: int | None = None,
    ) -> int:
        """Read blocks [first_block, first_block + n_blocks) of a match into one buffer per stream.

        Each buffer is contiguous, writable and holds n_blocks * block_bytes; a stream without a
        buffer is checked and dropped. Returns how many blocks are good from `first_block` on: what
        lies behind them in the buffers is undefined. A damaged record is quarantined. Raises
        ValueError for wrong buffers or a range outside the match.
        """
        count = match.blocks - first_block if n_blocks is None else n_blocks
        if first_block < 0 or count < 0 or first_block + count > match.blocks:
            raise ValueError(
                f"blocks [{first_block}, {first_block + count}) are not within the match's "
                f"{match.blocks}"
            )
        views = as_views(self._streams, buffers, count, writable=True)
        loader = Loader(self._core, self._fingerprint, self._streams, match, views, first_block)
        with contextlib.suppress(*TROUBLE):
            loader.run(count)
        self._core.counters.blocks_read += loader.good
        return loader.good

    def read_snapshot(self, block_hash: bytes) -> bytes | None:
        """Return the snapshot of a block, None when there is none or it is damaged."""
        return load_snapshot(self._core, self._fingerprint, block_hash)

    def quarantine(self, block_hashes: Sequence[bytes]) -> None:
        """Serve these blocks no more: a reader found their rows to be wrong.

        The next commit of the same blocks writes them, and their snapshots, anew.
        """
        with contextlib.suppress(*TROUBLE), self._core.read() as tables:
            for key in block_hashes:
                entry = tables.block(key)
                if entry is not None:
                    self._core.quarantine(key, entry.place)

    def commit(
        self,
        prefix_ids: Sequence[int],
        *,
        first_block: int,
        rows: Mapping[str, Buffer],
        anchors: Sequence[Anchor] = (),
        snapshots: Mapping[bytes, Buffer] | None = None,
    ) -> Commit:
        """Publish blocks from `first_block` on of the path `prefix_ids`, durable when it returns.

        `len(prefix_ids)` is a multiple of 128; `rows[stream]` holds the n blocks one by one
        (n may be 0: anchors and snapshots only). Blocks that are there are skipped. Trouble with a
        disk makes the store read-only, with one notice. Raises ValueError for wrong arguments.
        """
        request = checked(
            self._fingerprint,
            self._streams,
            prefix_ids,
            first_block=first_block,
            rows=rows,
            anchors=anchors,
            snapshots=snapshots or {},
        )
        return self._core.change(
            lambda core, index: publish.commit(core, index, request),
            lambda reason: Commit(0, 0, reason),
        )

    def explain(self, ids: Sequence[int]) -> Explanation:
        """Say why `ids` are served from the store or not, down to the first differing token."""
        return explaining.explain(self._core, self._fingerprint, token_bytes(ids))

    def anchors(self) -> list[Anchor]:
        """Return all anchors, of every fingerprint, oldest first."""
        try:
            with self._core.read() as tables:
                found = [anchor for anchor, _place in tables.anchors()]
        except TROUBLE:
            return []
        return sorted(found, key=lambda anchor: anchor.created)

    def remove(self, target: str | bytes, *, purge: bool = False) -> Removal:
        """Drop the anchors of a label (str) or at a block (bytes), and what only they needed.

        A block goes when no other anchor is at it or after it, with everything after it. Its bytes
        leave the disk with the next compaction of their segment, or at once with `purge`.
        """
        return self._core.change(
            lambda core, index: remove.remove(core, index, target, purge=purge),
            lambda reason: Removal(0, 0, 0, reason),
        )

    def evict(self, to_bytes: int) -> int:
        """Drop what is worth least until the store takes no more than `to_bytes`; return the bytes
        given back to the disk. Pinned blocks and the path matched last stay."""
        return self._core.change(
            lambda core, index: evict.shrink(core, index, to_bytes), lambda _reason: 0
        )

    def verify(self, fix: bool = False) -> list[Problem]:
        """Check every record; with `fix` drop what is damaged and what comes after it.

        Reads the whole store once; while fixing, commits wait.
        """
        return verifying.verify(self._core, fix=fix)

    def stats(self) -> StoreStats:
        """Return sizes now and counts since this process opened the store."""
        return collect(self._core)

    def close(self) -> None:
        """Let the store go; the last handle of a process closes the directory. Never raises."""
        if not self._closed:
            self._closed = True
            close_core(self._core)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
