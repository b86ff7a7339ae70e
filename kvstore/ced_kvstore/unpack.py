"""Import: add what an archive holds to a store, after every byte of it was checked.

Knows the order: prove the whole archive, then read it once more and publish it by ordinary commits,
in path order. Invariants: a bad archive publishes nothing, what is published was proven in the very
bytes that are written, and what the store has already is left as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ced_kvstore import publish
from ced_kvstore.chunk import Blocks, Chunk
from ced_kvstore.core import Core
from ced_kvstore.errors import TROUBLE, StoreError
from ced_kvstore.manifest import Section
from ced_kvstore.proof import Opened, Walk
from ced_kvstore.request import Request
from ced_kvstore.results import Anchor, Commit
from ced_kvstore.tape import Tape

T = TypeVar("T")

BATCH = 4096
"""Rows looked up in one transaction."""

MOST_PINS = 1024
"""Ends of paths that are kept while later ones come in; each one more is written down anew."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What one import did, and what of its archive the store holds now."""

    blocks: int
    """Blocks newly written."""
    snapshots: int
    """Snapshots of the archive that the store holds now."""
    anchors: int
    """Anchors of the archive that the store holds now."""
    bytes: int
    """Bytes of the rows newly written."""
    skipped: int
    """Blocks that were already there."""
    left_out: int
    """Blocks of the archive that the store does not hold now."""
    reason: str | None = None
    """Why something is not there; None when all of it is."""


def import_(core: Core, path: Path) -> Imported:
    """Add an archive's blocks, snapshots and anchors; what is there already is skipped.

    Reads the archive twice, in chunks. Raises StoreError for an archive that is not whole and
    consistent, then nothing was published; trouble with the store's own disk is a reason.
    """
    reason = core.change(lambda _core, _index: None, lambda reason: reason)
    if reason is not None:
        return Imported(0, 0, 0, 0, 0, 0, reason)
    advice = "nothing was imported; export it anew or fetch it again"
    try:
        with Tape(core.files, path) as tape:
            opened = Opened(tape)
            opened.prove()
            advice = "it changed while it was read; what was imported before is whole"
            return _Import(core, opened).run()
    except StoreError as error:
        raise StoreError(f"archive {path}: {error}; {advice}") from None


class _Import:
    """The publishing of one archive that was proven."""

    def __init__(self, core: Core, opened: Opened) -> None:
        self._core = core
        self._opened = opened
        self._blocks = self._skipped = self._bytes = 0
        self._reason: str | None = None
        self._pins: list[bytes] = []
        self._keys: list[bytes] = []
        """Hashes of the blocks that came up."""
        self._snapshots: list[bytes] = []

    def run(self) -> Imported:
        """Publish until the end, or until something cannot be stored."""
        sections = self._opened.sections
        try:
            for section in sections:
                if self._reason is None:
                    self._section(section)
        finally:
            for key in self._pins:
                self._core.unpin(key)
        present, snapshots, anchors = self._present()
        left_out = sum(chunk.count for s in sections for chunk in s.blocks) - present
        n_snapshots = sum(chunk.count for s in sections for chunk in s.snapshots)
        n_anchors = sum(len(section.anchors) for section in sections)
        if left_out or snapshots < n_snapshots or anchors < n_anchors:
            self._reason = self._reason or "something was dropped meanwhile, or did not fit"
        else:
            self._reason = None
        return Imported(
            blocks=self._blocks,
            snapshots=snapshots,
            anchors=anchors,
            bytes=self._bytes,
            skipped=self._skipped,
            left_out=left_out,
            reason=self._reason,
        )

    def _section(self, section: Section) -> None:
        at: dict[bytes, list[Anchor]] = {}
        for anchor in section.anchors:
            at.setdefault(anchor.block_hash, []).append(anchor)
        if section.fingerprint.root in at:
            self._commit(section, anchors=at[section.fingerprint.root])
        walk = Walk(section.fingerprint.root)
        for chunk in section.blocks:
            if self._reason is None:
                self._chunk(section, chunk, walk, at)
        # Behind all blocks, and without their ids: nothing is thinned out here, as whoever wrote
        # the archive did that.
        for chunk in section.snapshots:
            if self._reason is None:
                found = self._opened.snapshots(chunk)
                self._snapshots += found
                self._commit(section, snapshots=self._with_blocks(found))

    def _chunk(
        self, section: Section, chunk: Chunk, walk: Walk, anchors: Mapping[bytes, list[Anchor]]
    ) -> None:
        """Publish a chunk, each run of blocks that follow one another in one commit."""
        blocks = self._opened.blocks(section, chunk)
        for first, last in _runs(blocks):
            keys = [blocks.key(at) for at in range(first, last)]
            for at, key in enumerate(keys, start=first):
                walk.step(key, blocks.parent(at), blocks.raw_ids(at), chunk.file)
            done = self._commit(
                section,
                raw_ids=bytes(walk.ids),
                first_block=walk.depth - len(keys),
                rows=blocks.rows(first, last),
                anchors=[anchor for key in keys for anchor in anchors.get(key, ())],
            )
            self._keys += keys
            self._skipped += done.skipped
            self._blocks += done.blocks
            if self._reason is not None:
                return
            # Later commits make room, but not at the cost of what just came in.
            goes_on = bool(self._pins) and self._pins[-1] == blocks.parent(first)
            if goes_on or len(self._pins) < MOST_PINS:
                self._core.pin(keys[-1])
                self._pins.append(keys[-1])
            if goes_on:
                self._core.unpin(self._pins.pop(-2))

    def _commit(
        self,
        section: Section,
        *,
        raw_ids: bytes = b"",
        first_block: int = 0,
        rows: Mapping[str, memoryview] | None = None,
        anchors: Sequence[Anchor] = (),
        snapshots: Mapping[bytes, memoryview] | None = None,
    ) -> Commit:
        request = Request(
            fingerprint=section.fingerprint,
            streams=section.streams,
            raw_ids=raw_ids,
            first_block=first_block,
            rows=rows or {},
            anchors=self._missing(anchors),
            snapshots=snapshots or {},
        )
        done = self._core.change(
            lambda core, index: publish.commit(core, index, request),
            lambda reason: Commit(0, 0, reason),
        )
        size = sum(stream.block_bytes for stream in section.streams)
        self._bytes += done.blocks * size
        self._reason = done.reason
        return done

    def _missing(self, anchors: Sequence[Anchor]) -> list[Anchor]:
        """Return the anchors that the store has no other of the same name for."""
        with contextlib.suppress(*TROUBLE), self._core.read() as tables:
            return [anchor for anchor in anchors if tables.anchor(anchor) is None]
        return list(anchors)

    def _with_blocks(self, snapshots: Mapping[bytes, memoryview]) -> Mapping[bytes, memoryview]:
        """Return the snapshots whose blocks are there: others may have been dropped meanwhile."""
        with contextlib.suppress(*TROUBLE), self._core.read() as tables:
            return {key: data for key, data in snapshots.items() if tables.block(key) is not None}
        return snapshots

    def _present(self) -> tuple[int, int, int]:
        """Return how many blocks, snapshots and anchors of the archive are in the store now."""
        blocks = snapshots = anchors = 0
        ours = [anchor for section in self._opened.sections for anchor in section.anchors]
        core = self._core
        with contextlib.suppress(*TROUBLE):
            for keys in _batches(self._keys):
                with core.read() as tables:
                    blocks += sum(
                        tables.block(key) is not None and not core.is_bad(key, tables)
                        for key in keys
                    )
            for keys in _batches(self._snapshots):
                with core.read() as tables:
                    snapshots += sum(tables.snapshot(key) is not None for key in keys)
            for batch in _batches(ours):
                with core.read() as tables:
                    anchors += sum(tables.anchor(each) is not None for each in batch)
        return blocks, snapshots, anchors


def _runs(blocks: Blocks) -> Iterator[tuple[int, int]]:
    """Yield [first, last) of blocks that follow one another."""
    first = 0
    for at in range(1, blocks.count + 1):
        if at == blocks.count or blocks.parent(at) != blocks.key(at - 1):
            yield first, at
            first = at


def _batches(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]
