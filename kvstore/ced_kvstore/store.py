"""The store: bytes on disk keyed by the hash of a token prefix. The only public class.

Here is what it does with one prefix; upkeep.py has what it does with the whole folder. Checks
arguments, turns trouble into reasons, and leaves the work to its neighbours. It knows token ids as
opaque numbers and rows as bytes. Invariant: after `open`, only a wrong argument raises here;
whatever the disk does is a miss, or a commit of nothing, with a reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ced_kvstore import evict, publish
from ced_kvstore import explain as explaining
from ced_kvstore.core import Core
from ced_kvstore.errors import TROUBLE, StoreError
from ced_kvstore.files import Files, is_supported
from ced_kvstore.hashing import BLOCK_TOKENS, IDS_BYTES, Fingerprint, Value, chain, token_bytes
from ced_kvstore.index import MAP_BYTES
from ced_kvstore.load import Loader, load_snapshot
from ced_kvstore.lookup import find
from ced_kvstore.opening import close_core, open_core
from ced_kvstore.record import MAX_PAYLOAD
from ced_kvstore.request import as_views, checked
from ced_kvstore.results import Anchor, Commit, Explanation, Match, Stream, check_hash
from ced_kvstore.upkeep import Upkeep

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Store(Upkeep):
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
        smaller. The folder keeps it, and all who have it open follow. Several processes may have a
        directory open, and all of them write. Handles of one directory in one process share
        everything but fingerprint and streams, the first one's `files` included. A full, read-only
        or forbidden disk gives a store that only reads, or always misses, and says so in `notice`.

        Raises StoreError (no folder, one with other files in it, or of another format), ValueError,
        TypeError.
        """
        if len({stream.name for stream in streams}) != len(streams) or not streams:
            raise ValueError("streams: expected at least one, each with a name of its own")
        if IDS_BYTES + sum(stream.block_bytes for stream in streams) > MAX_PAYLOAD:
            raise ValueError(f"streams: expected at most {MAX_PAYLOAD} bytes of one block in all")
        if max_bytes is not None:
            _check_budget(max_bytes)
        if not is_supported():
            raise StoreError("the prefix store needs preadv (Linux or macOS); run without a store")
        named = Fingerprint.of(fingerprint, streams)
        core = open_core(Path(directory), files or Files(), max_bytes, map_bytes)
        core.change(
            lambda core, index: evict.take_budget(core, index, max_bytes), lambda _reason: None
        )
        return cls(core, named, streams)

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
        """Find the longest stored prefix of whole blocks, in the index alone.

        Its path is kept, in all processes, until the next match that finds something: for that a
        small file is written. Never raises for disk trouble; ValueError for ids that are no u32.
        """
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
        """Return the snapshot of a block, None when there is none or it is damaged.

        Raises ValueError for what is no hash.
        """
        check_hash(block_hash)
        return load_snapshot(self._core, self._fingerprint, block_hash)

    def pin(self, block_hash: bytes) -> None:
        """Keep a block and the path below it, in every process, until `unpin` or the end of this
        process; calls are counted.

        The block may have gone just before: match again. Raises ValueError for what is no hash.
        """
        check_hash(block_hash)
        self._core.pin(block_hash)

    def unpin(self, block_hash: bytes) -> None:
        """Take one `pin` back; raises ValueError for what is no hash."""
        check_hash(block_hash)
        self._core.unpin(block_hash)

    def quarantine(self, block_hashes: Sequence[bytes]) -> None:
        """Serve these blocks no more: a reader found their rows to be wrong.

        The next commit of the same blocks writes them, and their snapshots, anew. Raises ValueError
        for what is no hash.
        """
        for key in block_hashes:
            check_hash(key)
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

    def limit(self, max_bytes: int) -> None:
        """Give the folder another budget, and bring it down to it.

        As with the one of `open`, the folder keeps it, all who have it open follow, and pinned
        blocks and the paths in use stay. Raises ValueError for a wrong number.
        """
        _check_budget(max_bytes)
        self._core.change(
            lambda core, index: evict.take_budget(core, index, max_bytes), lambda _reason: None
        )
        # What makes room for a commit drops and moves a bounded number of bytes.
        if self.stats().bytes_on_disk > max_bytes:
            self.evict(int(evict.HIGH * max_bytes))

    def explain(self, ids: Sequence[int]) -> Explanation:
        """Say why `ids` are served from the store or not, down to the first differing token."""
        return explaining.explain(self._core, self._fingerprint, token_bytes(ids))

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


def _check_budget(max_bytes: int) -> None:
    if not 0 <= max_bytes < 1 << 62:
        raise ValueError(f"max_bytes: expected a number in [0, 2**62), got {max_bytes}")
