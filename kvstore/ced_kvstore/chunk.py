"""One safetensors file of an archive: some blocks, or some snapshots, as named tensors.

Blocks are tensors `ids` [blocks, 128], `keys` and `parents` [blocks, 32], `checksums` [blocks, 16]
(of a block's ids and rows, as its record has it) and `rows.NAME` [blocks, bytes] per stream; a
snapshot is one tensor, named by its block's hash. Knows nothing of files. Invariant: what was read
has exactly these tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ced_kvstore.hashing import BLOCK_TOKENS, IDS_BYTES
from ced_kvstore.record import checksum
from ced_kvstore.results import Stream
from ced_kvstore.schema import digest, fault, refuse
from ced_kvstore.tensors import MAX_HEADER, Tensor, parse

CHUNK_BYTES = 64 << 20
"""Bytes of one chunk, or of one block when that is larger: what is in memory at a time. Readers
refuse more, so a larger one needs another version of the archive."""

MAX_SNAPSHOTS = 4096
"""Most snapshots in one chunk."""

NAME_BYTES = 32 + 32 + 16
"""Bytes of one block's key, parent and checksum."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a manifest says of one file."""

    file: str
    count: int
    """Blocks, or snapshots, in it."""
    n_bytes: int
    sha256: str


def chunk_name(number: int, kind: str) -> str:
    """Return the name of an archive's file, counted from 1 over all kinds."""
    return f"{number:06d}-{kind}.safetensors"


def payload_bytes(streams: Sequence[Stream]) -> int:
    """Return the bytes of one block's ids and rows."""
    return IDS_BYTES + sum(stream.block_bytes for stream in streams)


def blocks_each(streams: Sequence[Stream]) -> int:
    """Return the most blocks in one chunk."""
    return max(1, CHUNK_BYTES // (payload_bytes(streams) + NAME_BYTES))


def largest(count: int, one: int) -> int:
    """Return the most bytes of a file with so many blocks or snapshots of at most `one` byte."""
    return MAX_HEADER + (one if count == 1 else CHUNK_BYTES)


def block_tensors(streams: Sequence[Stream], count: int) -> list[Tensor]:
    """Return the tensors of a chunk of blocks, in the order in which they are written."""
    return [
        Tensor("ids", "U32", (count, BLOCK_TOKENS)),
        Tensor("keys", "U8", (count, 32)),
        Tensor("parents", "U8", (count, 32)),
        Tensor("checksums", "U8", (count, 16)),
        # The prefix keeps a stream of any name apart from the others.
        *(Tensor(f"rows.{s.name}", "U8", (count, s.block_bytes)) for s in streams),
    ]


class Blocks:
    """A chunk of blocks that was read."""

    def __init__(self, raw: memoryview, chunk: Chunk, streams: Sequence[Stream]) -> None:
        """Raises StoreError unless these are the tensors of so many blocks."""
        self.count = chunk.count
        self._file = chunk.file
        self._streams = streams
        expected = block_tensors(streams, chunk.count)
        found = parse(raw, chunk.file)
        for tensor in expected:
            if tensor not in found:
                same = [other for other in found if other.name == tensor.name]
                fault(chunk.file, tensor.words, f"there is {same[0].words if same else 'none'}")
        if len(found) != len(expected):
            refuse(chunk.file, f"{len(expected)} tensors", len(found))
        self._ids, self._keys, self._parents, self._sums, *self._rows = map(
            found.__getitem__, expected
        )

    def key(self, at: int) -> bytes:
        """Return a block's hash."""
        return bytes(self._keys[at * 32 : at * 32 + 32])

    def parent(self, at: int) -> bytes:
        """Return the hash before a block."""
        return bytes(self._parents[at * 32 : at * 32 + 32])

    def raw_ids(self, at: int) -> memoryview:
        """Return a block's ids as u32 little endian."""
        return self._ids[at * IDS_BYTES : (at + 1) * IDS_BYTES]

    def rows(self, first: int, last: int) -> dict[str, memoryview]:
        """Return the rows of blocks [first, last), one buffer per stream."""
        return {
            s.name: rows[first * s.block_bytes : last * s.block_bytes]
            for s, rows in zip(self._streams, self._rows, strict=True)
        }

    def check(self, at: int) -> None:
        """Raise StoreError unless a block's ids and rows are those that its record had."""
        found = checksum([self.raw_ids(at), *self.rows(at, at + 1).values()])
        if found != self._sums[at * 16 : at * 16 + 16]:
            fault(f"{self._file}: block {at}", "rows that have its checksum", "they have another")


def snapshots(raw: memoryview, chunk: Chunk) -> dict[bytes, memoryview]:
    """Return block hash -> snapshot of a chunk that was read; raises StoreError."""
    found = parse(raw, chunk.file)
    if len(found) != chunk.count:
        refuse(chunk.file, f"{chunk.count} tensors", len(found))
    made = {}
    for tensor, view in found.items():
        key = digest(tensor.name, f"{chunk.file}: a tensor's name")
        if tensor.dtype != "U8" or len(tensor.shape) != 1:
            fault(chunk.file, "snapshots as U8 in one dimension", f"there is {tensor.words}")
        made[key] = view
    return made


def packed(rows: Iterable[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
    """Yield snapshots, given as block hash and bytes, that fit one chunk."""
    batch: list[tuple[bytes, int]] = []
    size = 0
    for key, length in rows:
        if batch and (len(batch) == MAX_SNAPSHOTS or size + length > CHUNK_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((key, length))
        size += length
    if batch:
        yield batch
