"""An archive that was opened, and all that must hold of it before anything of it is published.

Knows the archive alone, no store. Invariants: names and sizes were checked before a file is read,
no more than one chunk is in memory at a time, and nothing is ever written. What cannot be checked
is whether rows are what a model makes of these ids: whoever imports trusts whoever exported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ced_kvstore import manifest
from ced_kvstore.chunk import Blocks, Chunk, snapshots
from ced_kvstore.hashing import IDS_BYTES, block_hash
from ced_kvstore.manifest import Section
from ced_kvstore.schema import fault, refuse
from ced_kvstore.tape import Tape

MAX_DEPTH = 2**32 // 128
"""Most blocks of one path; a record's position has 32 bits."""


class Walk:
    """The path down to the block that came last, as blocks come in path order.

    Children of one block come by ascending hash, so that none can come twice.
    """

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._path: list[bytes] = []
        self.ids = bytearray()
        """The ids of the whole path."""

    @property
    def depth(self) -> int:
        """Blocks of the path."""
        return len(self._path)

    def step(self, key: bytes, parent: bytes, raw_ids: memoryview, what: str) -> None:
        """Go to the next block; raises StoreError when it cannot come here or has another hash."""
        before = b""
        while (self._path[-1] if self._path else self._root) != parent:
            if not self._path:
                fault(
                    what, "a block whose parent is on the path before it", f"it is {parent.hex()}"
                )
            before = self._path.pop()
        if key <= before:
            fault(what, "children of one block by ascending hash", f"then came {key.hex()}")
        if block_hash(parent, raw_ids) != key:
            fault(what, "the hash that follows from parent and ids", f"it is {key.hex()}")
        if self.depth >= MAX_DEPTH:
            fault(what, f"a path of at most {MAX_DEPTH} blocks", "it is longer")
        self._path.append(key)
        del self.ids[(self.depth - 1) * IDS_BYTES :]
        self.ids += raw_ids


class Opened:
    """An archive's sections, and its files by name. Every method raises StoreError."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        first = tape.first(manifest.NAME, manifest.MAX_BYTES)
        self.sections: Sequence[Section] = manifest.parse(tape.read(first))
        chunks = [chunk for s in self.sections for chunk in (*s.blocks, *s.snapshots)]
        self._members = tape.rest(first, {chunk.file for chunk in chunks})
        for chunk in chunks:
            size = self._members[chunk.file].size
            if size != chunk.n_bytes:
                refuse(chunk.file, f"{chunk.n_bytes} bytes", size)

    def blocks(self, section: Section, chunk: Chunk) -> Blocks:
        """Read a chunk of blocks."""
        return Blocks(self._read(chunk), chunk, section.streams)

    def snapshots(self, chunk: Chunk) -> dict[bytes, memoryview]:
        """Read a chunk of snapshots."""
        return snapshots(self._read(chunk), chunk)

    def _read(self, chunk: Chunk) -> memoryview:
        raw = self._tape.read(self._members[chunk.file])
        found = hashlib.sha256(raw).hexdigest()
        if found != chunk.sha256:
            fault(chunk.file, f"the sha256 {chunk.sha256}", f"it is {found}")
        return raw

    def prove(self) -> None:
        """Read everything once and check it."""
        for section in self.sections:
            self._prove(section)

    def _prove(self, section: Section) -> None:
        root = section.fingerprint.root
        wanted = {anchor.block_hash for anchor in section.anchors} - {root}
        seen: set[bytes] = set()
        for chunk in section.snapshots:
            keys = self.snapshots(chunk).keys()
            if seen & keys:
                fault(chunk.file, "one snapshot of a block", "there are two")
            seen |= keys
        wanted |= seen
        walk = Walk(root)
        for chunk in section.blocks:
            wanted -= self._prove_blocks(section, chunk, walk)
        if wanted:
            what = "anchors and snapshots"
            fault(what, "them at blocks of the archive", f"{min(wanted).hex()} is none")

    def _prove_blocks(self, section: Section, chunk: Chunk, walk: Walk) -> set[bytes]:
        blocks = self.blocks(section, chunk)
        for at in range(blocks.count):
            what = f"{chunk.file}: block {at}"
            walk.step(blocks.key(at), blocks.parent(at), blocks.raw_ids(at), what)
            blocks.check(at)
        return {blocks.key(at) for at in range(blocks.count)}
