"""One block's row in the index, packed. Knows its bytes and nothing of tables."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ced_kvstore.record import Place

_BLOCK = struct.Struct("<IQIIB16s32s")

BAD_AT = 20
"""Offset of `bad` in the packed row."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One block in the index."""

    place: Place
    position: int
    """Token index of its first token."""
    bad: bool
    """Its record was found damaged; it is a miss until it is written again."""
    fingerprint: bytes
    parent: bytes

    def pack(self) -> bytes:
        """Return the row's value."""
        p = self.place
        return _BLOCK.pack(
            p.segment, p.offset, p.length, self.position, self.bad, self.fingerprint, self.parent
        )

    @classmethod
    def unpack(cls, raw: bytes) -> Entry:
        """Parse the row's value."""
        segment, offset, length, position, bad, fingerprint, parent = _BLOCK.unpack(raw)
        return cls(Place(segment, offset, length), position, bool(bad), fingerprint, parent)
