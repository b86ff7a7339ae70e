"""One record in a segment: a 128-byte header, a payload, zeros up to the next 4 KiB.

Knows the bytes of a record and nothing of files. Invariant: the header is covered by its crc32 and
the payload by an xxh3-128 in the header, so no bit of a record can change unnoticed.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from ced_kvstore.errors import BadRecord
from ced_kvstore.hashing import FORMAT_VERSION

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = b"CEDK"
HEADER_BYTES = 128
ALIGN = 4096

MAX_PAYLOAD = 2**32 - 1
"""Most bytes of one record's payload; its header has 32 bits for them."""

MAX_SEGMENT = 2**31 - 1
"""Highest number of a segment: more than there ever will be."""

MAX_SEGMENT_BYTES = 256 << 20
"""No record begins behind so many bytes of a segment."""

# magic, version, kind, payload length, position, stamp, key, parent, fingerprint id, checksum, zero
_HEADER = struct.Struct("<4sHHIIQ32s32s16s16sI")
_CRC = struct.Struct("<I")


class Kind(enum.IntEnum):
    """What a record's payload is."""

    BLOCK = 1
    """128 ids, then the rows of each stream in the fingerprint's order. Key: the block hash."""
    SNAPSHOT = 2
    """Window state as opaque bytes. Key: the hash of the block it belongs to."""
    ANCHOR = 3
    """msgpack [label, kind, pinned, created, n_tokens]. Key: the block hash."""
    FINGERPRINT = 4
    """msgpack map of the plain fields. Key: its SHA-256."""
    REMOVED = 5
    """msgpack [[block hash, ...], [[block hash, label], ...]] that `remove` dropped."""


@dataclass(frozen=True, slots=True)
class Header:
    """A record's header in plain form."""

    kind: int
    length: int
    """Bytes of payload."""
    position: int
    """Token index of the block's first token (blocks), else 0."""
    stamp: int
    """Number of the commit that wrote it; a removal wins over its own stamp and older ones."""
    key: bytes
    parent: bytes
    fingerprint: bytes
    """First 16 bytes of the fingerprint's SHA-256."""
    checksum: bytes
    """xxh3-128 of the payload, big endian."""

    def pack(self) -> bytes:
        """Return the 128 bytes."""
        body = _HEADER.pack(
            MAGIC,
            FORMAT_VERSION,
            self.kind,
            self.length,
            self.position,
            self.stamp,
            self.key,
            self.parent,
            self.fingerprint,
            self.checksum,
            0,
        )
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def unpack(cls, raw: bytes | bytearray | memoryview) -> Header:
        """Parse and check 128 bytes; raises BadRecord."""
        if len(raw) != HEADER_BYTES:
            raise BadRecord("the segment ends before the record does")
        if zlib.crc32(raw[: _HEADER.size]) != _CRC.unpack_from(raw, _HEADER.size)[0]:
            raise BadRecord("the header's crc32 does not fit")
        magic, version, kind, length, position, stamp, key, parent, fingerprint, checksum, _ = (
            _HEADER.unpack_from(raw)
        )
        if magic != MAGIC or version != FORMAT_VERSION:
            raise BadRecord("not a record of this format version")
        return cls(kind, length, position, stamp, key, parent, fingerprint, checksum)


@dataclass(frozen=True, slots=True)
class Record:
    """A record to be written; `pieces` are written one after the other, without a copy."""

    kind: Kind
    key: bytes
    parent: bytes
    fingerprint: bytes
    pieces: Sequence[bytes | memoryview]
    position: int = 0
    stamp: int | None = None
    """Kept when a record is moved; None takes the commit's."""

    @property
    def length(self) -> int:
        """Bytes of payload."""
        return sum(len(piece) for piece in self.pieces)

    def header(self, stamp: int) -> Header:
        """Return the header that goes with these pieces."""
        return Header(
            kind=self.kind,
            length=self.length,
            position=self.position,
            stamp=stamp if self.stamp is None else self.stamp,
            key=self.key,
            parent=self.parent,
            fingerprint=self.fingerprint,
            checksum=checksum(self.pieces),
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record is."""

    segment: int
    offset: int
    length: int
    """Bytes of payload."""

    @property
    def span(self) -> int:
        """Bytes on disk, header and padding included."""
        return span(self.length)

    @property
    def end(self) -> int:
        """Offset of the next record."""
        return self.offset + self.span


def span(length: int) -> int:
    """Return the bytes on disk of a record with `length` bytes of payload."""
    return -(-(HEADER_BYTES + length) // ALIGN) * ALIGN


def checksum(pieces: Iterable[Buffer]) -> bytes:
    """Return the xxh3-128 of the pieces one after the other."""
    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()
