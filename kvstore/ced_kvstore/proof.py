"""An archive that was opened, and all that must hold of it before anything of it is published.

Knows the archive alone, no store. Invariants: names and sizes were checked before a file is read,
no more than one chunk is in memory at a time, and nothing is ever written. What cannot be checked
is whether rows are what a model makes of these ids: whoever imports trusts whoever exported.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence

from ced_kvstore import manifest
from ced_kvstore.chunk import Blocks, Chunk, snapshots
from ced_kvstore.hashing import IDS_BYTES, block_hash
from ced_kvstore.manifest import Section
from ced_kvstore.record import span
from ced_kvstore.schema import fault, refuse
from ced_kvstore.tape import Tape

MAX_DEPTH = 2**32 // 128
"""Most blocks of one path; a record's position has 32 bits."""

BATCH = 4096
"""Blocks looked up in one transaction."""


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


class Outline:
    """The tree of a section that was proven, and no rows: about 50 bytes per block.

    Blocks are numbered from 1 on as they come in the archive; 0 is the root.
    """

    def __init__(self, section: Section) -> None:
        self.section = section
        self.parents = array("I", [0])
        self.snapshots = array("Q", [0])
        """Bytes that the record of each block's snapshot will take, 0 without one."""
        self._keys = bytearray(section.fingerprint.root)
        self._path = [0]

    def __len__(self) -> int:
        return len(self.parents)

    def key(self, at: int) -> bytes:
        """Return a block's hash."""
        return bytes(self._keys[at * 32 : at * 32 + 32])

    def batches(self) -> Iterator[range]:
        """Yield the numbers of all blocks, as many at a time as one transaction looks up."""
        for start in range(1, len(self), BATCH):
            yield range(start, min(start + BATCH, len(self)))

    def add(self, key: bytes, depth: int, snapshot: int | None) -> None:
        """Add the block that comes next, as so many-th of its path, with its snapshot's bytes."""
        del self._path[depth:]
        self._keys += key
        self.parents.append(self._path[-1])
        self.snapshots.append(0 if snapshot is None else span(snapshot))
        self._path.append(len(self) - 1)


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

    def prove(self) -> list[Outline]:
        """Read everything once and check it; return each section's tree."""
        return [self._prove(section) for section in self.sections]

    def _prove(self, section: Section) -> Outline:
        outline, root = Outline(section), section.fingerprint.root
        wanted = {anchor.block_hash for anchor in section.anchors} - {root}
        sizes: dict[bytes, int] = {}
        for chunk in section.snapshots:
            found = self.snapshots(chunk)
            if sizes.keys() & found.keys():
                fault(chunk.file, "one snapshot of a block", "there are two")
            sizes |= {key: len(data) for key, data in found.items()}
        wanted |= sizes.keys()
        walk = Walk(root)
        for chunk in section.blocks:
            blocks = self.blocks(section, chunk)
            for at in range(blocks.count):
                key = blocks.key(at)
                walk.step(key, blocks.parent(at), blocks.raw_ids(at), f"{chunk.file}: block {at}")
                blocks.check(at)
                outline.add(key, walk.depth, sizes.get(key))
                wanted.discard(key)
        if wanted:
            what = "anchors and snapshots"
            fault(what, "them at blocks of the archive", f"{min(wanted).hex()} is none")
        return outline
