"""Names of blocks: the prefix chain, and the fingerprint it starts from.

Knows token ids as opaque u32 and fingerprint fields as plain values. Invariant: two block hashes
are equal only when every token before the block's end and every fingerprint field are equal.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgpack

from ced_kvstore.results import Stream

BLOCK_TOKENS = 128
"""Tokens in one block, the unit of hashing and storing."""

FORMAT_VERSION = 1
"""Version of the on-disk format; part of every hash, so versions never read each other's rows."""

IDS_BYTES = 4 * BLOCK_TOKENS
"""Bytes of one block's token ids on disk (u32 little endian)."""

Value = str | int | None
"""What a fingerprint field may hold; floats go in as `float.hex()`."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that stored rows depend on beside the tokens, in plain and in hashed form."""

    fields: dict[str, Value]
    digest: bytes
    """SHA-256 of the canonical msgpack map of `fields`."""

    @property
    def short(self) -> bytes:
        """The 16 bytes that stand for it in a record's header."""
        return self.digest[:16]

    @property
    def root(self) -> bytes:
        """The hash before the first block."""
        return root_hash(self.digest)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Value]) -> Fingerprint:
        """Hash plain fields; raises TypeError for a value that has no canonical form."""
        for name, value in fields.items():
            if not isinstance(name, str) or not (value is None or isinstance(value, str | int)):
                raise TypeError(
                    f"fingerprint field {name!r}: expected str, int or None, got "
                    f"{type(value).__name__}; write floats as float.hex() and lists as text"
                )
        ordered = {name: fields[name] for name in sorted(fields)}
        return cls(ordered, hashlib.sha256(msgpack.packb(ordered)).digest())

    @classmethod
    def known(cls, fields: object, digest: bytes) -> Fingerprint:
        """Return the fingerprint of fields that somebody wrote down as those of a digest.

        Raises ValueError or TypeError when they are not.
        """
        if not isinstance(fields, dict):
            raise TypeError("a fingerprint's fields are none")
        made = cls.from_fields(fields)
        if made.digest != digest:
            raise ValueError("a fingerprint's fields are those of another one")
        return made

    @classmethod
    def of(cls, fields: Mapping[str, Value], streams: Sequence[Stream]) -> Fingerprint:
        """Join the caller's fields with the format version and the streams' names and sizes."""
        full: dict[str, Value] = dict(fields)
        full["store_format"] = FORMAT_VERSION
        full["stream_order"] = ",".join(stream.name for stream in streams)
        full.update({f"stream_bytes.{s.name}": s.block_bytes for s in streams})
        return cls.from_fields(full)


def root_hash(digest: bytes) -> bytes:
    """Return h_0 of a fingerprint digest."""
    version = FORMAT_VERSION.to_bytes(4, "little")
    return hashlib.sha256(b"ced-kv" + version + digest).digest()


def token_bytes(ids: Sequence[int]) -> bytes:
    """Return ids as u32 little endian; raises ValueError for an id that does not fit."""
    try:
        packed = array("I", ids)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids must be integers in [0, 2**32): {error}") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def token_ids(raw: bytes | memoryview) -> tuple[int, ...]:
    """Return the ids in u32 little endian bytes."""
    packed = array("I")
    packed.frombytes(raw)
    if sys.byteorder == "big":
        packed.byteswap()
    return tuple(packed)


def block_hash(parent: bytes, raw_ids: bytes | memoryview) -> bytes:
    """Return h_i from h_{i-1} and the block's 128 ids as u32 little endian."""
    digest = hashlib.sha256(parent)
    digest.update(raw_ids)
    return digest.digest()


def chain(root: bytes, raw_ids: bytes) -> Iterator[bytes]:
    """Yield the hash of each whole block of `raw_ids`, lazily: an early miss costs little."""
    view, parent = memoryview(raw_ids), root
    for start in range(0, len(raw_ids) - IDS_BYTES + 1, IDS_BYTES):
        parent = block_hash(parent, view[start : start + IDS_BYTES])
        yield parent
