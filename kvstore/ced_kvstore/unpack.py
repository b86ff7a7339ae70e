"""Import: add what an archive holds to a store, after every byte of it was checked.

Knows the order: prove the whole archive, choose which of its paths come in, then read it once more
and publish these by ordinary commits, in path order. Invariants: a bad archive publishes nothing,
what is published was proven in the very bytes that are written, what the store has already is left
as it is, and nothing goes that an anchor of it needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ced_kvstore import publish
from ced_kvstore.choice import Choice, Part, choose, holdings, no_room
from ced_kvstore.chunk import Blocks, Chunk
from ced_kvstore.core import Core
from ced_kvstore.errors import TROUBLE, StoreError
from ced_kvstore.evict import FULL, TOO_SMALL
from ced_kvstore.index import Index
from ced_kvstore.manifest import Section
from ced_kvstore.proof import Opened, Outline, Walk
from ced_kvstore.request import Request
from ced_kvstore.results import Anchor, Commit
from ced_kvstore.tape import Tape

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

    Of an archive that does not fit, whole paths are left out, and nothing goes of the store that an
    anchor of it needs.

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
            outlines = opened.prove()
            advice = "it changed while it was read; what was imported before is whole"
            return _Import(core, opened, outlines).run()
    except StoreError as error:
        raise StoreError(f"archive {path}: {error}; {advice}") from None


class _Import:
    """The publishing of one archive that was proven."""

    def __init__(self, core: Core, opened: Opened, outlines: Sequence[Outline]) -> None:
        self._core = core
        self._opened = opened
        self._outlines = outlines
        self._blocks = self._bytes = 0
        self._reason: str | None = None
        self._pins: list[bytes] = []

    def run(self) -> Imported:
        """Publish what was chosen until the end, or until something cannot be stored."""
        choice = self._core.change(self._choose, self._fail)
        if choice is None:
            return self._imported(self._reason)
        try:
            for part in choice.parts:
                if self._reason is None:
                    self._part(part)
        finally:
            for key in self._pins:
                self._core.unpin(key)
        return self._imported(self._reason if choice.is_all else self._reason or FULL)

    def _choose(self, core: Core, index: Index) -> Choice | None:
        return choose(core, index, self._outlines)

    def _fail(self, reason: str) -> None:
        self._reason = reason

    def _imported(self, reason: str | None) -> Imported:
        sections = self._opened.sections
        present, snapshots, anchors = holdings(self._core, self._outlines)
        left_out = sum(chunk.count for s in sections for chunk in s.blocks) - present
        lost = [
            (left_out, "blocks"),
            (sum(len(section.anchors) for section in sections) - anchors, "anchors"),
            (sum(chunk.count for s in sections for chunk in s.snapshots) - snapshots, "snapshots"),
        ]
        what = next((f"{count} of its {noun}" for count, noun in lost if count), None)
        if what is None:
            reason = None
        elif reason in (FULL, TOO_SMALL):
            reason = self._core.change(
                lambda core, index: no_room(core, index, what, self._blocks), lambda reason: reason
            )
        else:
            reason = reason or "something was dropped meanwhile, or did not fit"
        return Imported(
            blocks=self._blocks,
            snapshots=snapshots,
            anchors=anchors,
            bytes=self._bytes,
            skipped=max(0, present - self._blocks),
            left_out=left_out,
            reason=reason,
        )

    def _part(self, part: Part) -> None:
        section = part.outline.section
        at: dict[bytes, list[Anchor]] = {}
        for anchor in part.anchors:
            at.setdefault(anchor.block_hash, []).append(anchor)
        if section.fingerprint.root in at:
            self._commit(section, anchors=at[section.fingerprint.root])
        walk, number = Walk(section.fingerprint.root), 1
        for chunk in section.blocks:
            if self._reason is None and part.chosen.find(1, number) > 0:
                self._chunk(part, chunk, walk, number, at)
            number += chunk.count
        # Behind all blocks, and without their ids: nothing is thinned out here, as whoever wrote
        # the archive did that.
        chosen = part.snapshots()
        for chunk in section.snapshots if chosen else ():
            if self._reason is None:
                found = self._opened.snapshots(chunk)
                found = {key: data for key, data in found.items() if key in chosen}
                self._commit(section, snapshots=self._with_blocks(found))

    def _chunk(
        self,
        part: Part,
        chunk: Chunk,
        walk: Walk,
        number: int,
        anchors: Mapping[bytes, list[Anchor]],
    ) -> None:
        """Publish what is chosen of a chunk whose first block has this number, each run of blocks
        that follow one another in one commit."""
        section = part.outline.section
        blocks = self._opened.blocks(section, chunk)
        comes = part.chosen[number : number + blocks.count]
        for first, last in _runs(blocks, comes):
            keys = [blocks.key(at) for at in range(first, last)]
            for at, key in enumerate(keys, start=first):
                walk.step(key, blocks.parent(at), blocks.raw_ids(at), chunk.file)
            if not comes[first]:
                continue
            done = self._commit(
                section,
                raw_ids=bytes(walk.ids),
                first_block=walk.depth - len(keys),
                rows=blocks.rows(first, last),
                anchors=[anchor for key in keys for anchor in anchors.get(key, ())],
            )
            self._blocks += done.blocks
            if self._reason is not None:
                return
            # Others make room meanwhile, but not at the cost of what just came in.
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
            may_drop=False,
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


def _runs(blocks: Blocks, comes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield [first, last) of blocks that follow one another and all come in, or all do not."""
    first = 0
    for at in range(1, blocks.count + 1):
        if (
            at == blocks.count
            or blocks.parent(at) != blocks.key(at - 1)
            or comes[at] != comes[at - 1]
        ):
            yield first, at
            first = at
