"""Export: write what is chosen of a store to one tar of safetensors files with a manifest.

Knows the order of the file: manifest first, in room that is kept for it, then chunk by chunk.
Invariants: no more than one chunk is in memory, every record is checked as it is read, a block is
exported only with its whole path, and under its name the file appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ced_kvstore import manifest, tape
from ced_kvstore.chunk import Chunk, block_tensors, blocks_each, chunk_name, packed
from ced_kvstore.core import Core
from ced_kvstore.errors import TROUBLE, BadRecord, StoreError, told
from ced_kvstore.files import Files
from ced_kvstore.hashing import IDS_BYTES, block_hash
from ced_kvstore.manifest import Section
from ced_kvstore.record import Header, Kind
from ced_kvstore.selection import Selection, select
from ced_kvstore.tensors import Tensor, header

_LONGEST = Chunk(chunk_name(999_999, "snapshots"), 10**9, 10**12, "0" * 64)


@dataclass(frozen=True, slots=True)
class Archived:
    """What one export wrote."""

    blocks: int
    snapshots: int
    anchors: int
    bytes: int
    """Size of the file."""
    skipped: int
    """Blocks that were left out: damaged ones and those behind them, or dropped meanwhile."""
    reason: str | None = None
    """Why something was left out; None when everything asked for is in the file."""


def export(core: Core, path: Path, targets: Sequence[str | bytes] = ()) -> Archived:
    """Write the paths of some labels and block hashes, or everything, to a private file.

    Anchors come along of the labels and at the blocks that are named, snapshots of all blocks. An
    existing file is replaced once the new one is durable. Raises StoreError when there is no file
    in the end: a target that is not stored, a store that cannot be read, a full disk.
    """
    targets = (targets,) if isinstance(targets, str | bytes) else targets
    # No name that somebody could have put a link under.
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        if path.parent.resolve().is_relative_to(core.directory.resolve()) or (
            path.exists() and not path.is_file()
        ):
            raise StoreError("expected the name of a file outside the store's folder")
        selections, expected = select(core, targets)
        fd = core.files.create(beside)
        if fd is None:
            raise StoreError(f"{beside} is there already")
        try:
            done = _Export(core, fd, selections).run(expected)
            core.files.sync_data(fd)
        finally:
            core.files.close(fd)
        core.files.replace(beside, path)
        return done
    except (StoreError, *TROUBLE) as error:
        raise StoreError(f"{told(error)}; nothing was exported to {path}") from None
    finally:
        with contextlib.suppress(OSError):
            core.files.unlink(beside)


class _Export:
    """The writing of one file."""

    def __init__(self, core: Core, fd: int, selections: Sequence[Selection]) -> None:
        self._core = core
        self._fd = fd
        self._selections = selections
        self._number = 0
        # The manifest comes first but is known last. What is left out makes it shorter, never
        # longer; spaces fill what is not needed.
        draft = manifest.dump([_draft(selection) for selection in selections])
        self._room = len(draft)
        self._end = tape.Member(manifest.NAME, tape.BLOCK, self._room).end
        if self._room > manifest.MAX_BYTES:
            raise StoreError(
                f"the manifest would take {self._room} bytes, at most {manifest.MAX_BYTES} are "
                "read; export fewer labels at a time"
            )

    def run(self, expected: int) -> Archived:
        """Write everything; raises one of errors.TROUBLE or StoreError."""
        sections = [self._section(selection) for selection in self._selections]
        sections = [s for s in sections if s.blocks or s.anchors]
        raw = manifest.dump(sections)
        # What could not be imported is better not exported.
        manifest.parse(memoryview(raw))
        assert len(raw) <= self._room
        self._write(0, manifest.NAME, [raw + b" " * (self._room - len(raw))])
        self._core.files.pwritev(self._fd, [tape.END], self._end)
        blocks = sum(chunk.count for s in sections for chunk in s.blocks)
        snapshots = sum(chunk.count for s in sections for chunk in s.snapshots)
        anchors = sum(len(section.anchors) for section in sections)
        lost = [
            (max(0, expected - blocks), "blocks"),
            (sum(len(s.snapshots) for s in self._selections) - snapshots, "snapshots"),
            (sum(len(s.anchors) for s in self._selections) - anchors, "anchors"),
        ]
        words = ", ".join(f"{what} {count}" for count, what in lost if count)
        reason = f"left out as damaged, behind damage or dropped meanwhile: {words}"
        return Archived(
            blocks=blocks,
            snapshots=snapshots,
            anchors=anchors,
            bytes=self._end + len(tape.END),
            skipped=lost[0][0],
            reason=reason if words else None,
        )

    def _section(self, selection: Selection) -> Section:
        lost: set[bytes] = set()
        blocks, each = [], blocks_each(selection.streams)
        for start in range(0, len(selection.keys), each):
            chunk = self._blocks(selection, selection.keys[start : start + each], lost)
            if chunk.count:
                blocks.append(chunk)
        snapshots = []
        for batch in packed([row for row in selection.snapshots if row[0] not in lost]):
            chunk = self._snapshots(selection, batch)
            if chunk.count:
                snapshots.append(chunk)
        anchors = tuple(a for a in selection.anchors if a.block_hash not in lost)
        return Section(
            selection.fingerprint, selection.streams, tuple(blocks), tuple(snapshots), anchors
        )

    def _blocks(self, selection: Selection, keys: Sequence[bytes], lost: set[bytes]) -> Chunk:
        """Write a chunk of blocks, without those that are damaged or come behind such a one."""
        found: list[tuple[Header, memoryview]] = []
        length = IDS_BYTES + sum(stream.block_bytes for stream in selection.streams)
        for key in keys:
            record = self._record(selection, Kind.BLOCK, key, length)
            if (
                record is None
                or record[0].parent in lost
                or block_hash(record[0].parent, record[1][:IDS_BYTES]) != key
            ):
                lost.add(key)
            else:
                found.append(record)
        pieces: list[bytes | memoryview] = [payload[:IDS_BYTES] for _, payload in found]
        pieces += [head.key for head, _ in found]
        pieces += [head.parent for head, _ in found]
        pieces += [head.checksum for head, _ in found]
        at = IDS_BYTES
        for stream in selection.streams:
            pieces += [payload[at : at + stream.block_bytes] for _, payload in found]
            at += stream.block_bytes
        return self._chunk(
            "blocks", len(found), block_tensors(selection.streams, len(found)), pieces
        )

    def _snapshots(self, selection: Selection, rows: Sequence[tuple[bytes, int]]) -> Chunk:
        """Write a chunk of snapshots, without the damaged ones."""
        found = []
        for key, length in rows:
            record = self._record(selection, Kind.SNAPSHOT, key, length)
            if record is not None:
                found.append(record)
        tensors = [Tensor(head.key.hex(), "U8", (len(data),)) for head, data in found]
        return self._chunk("snapshots", len(found), tensors, [data for _, data in found])

    def _record(
        self, selection: Selection, kind: Kind, key: bytes, length: int
    ) -> tuple[Header, memoryview] | None:
        """Return a record that is whole, None when there is none."""
        core, before = self._core, None
        while True:
            with core.read() as tables:
                entry = tables.block(key)
                if entry is None or core.is_bad(key, tables):
                    return None
                place = entry.place if kind is Kind.BLOCK else tables.snapshot(key)
            # A record that was moved meanwhile is looked up once more.
            if place is None or place == before:
                return None
            before = place
            with contextlib.suppress(BadRecord):
                head, payload = core.segments.read_payload(place, kind, key)
                is_ours = head.fingerprint == selection.fingerprint.short
                return (head, memoryview(payload)) if is_ours and len(payload) == length else None

    def _chunk(
        self, kind: str, count: int, tensors: Sequence[Tensor], pieces: Sequence[bytes | memoryview]
    ) -> Chunk:
        if not count:
            return replace(_LONGEST, count=0)
        self._number += 1
        name = chunk_name(self._number, kind)
        pieces = [header(tensors), *pieces]
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        size = sum(len(piece) for piece in pieces)
        self._end = self._write(self._end, name, pieces)
        return Chunk(name, count, size, digest.hexdigest())

    def _write(self, at: int, name: str, pieces: Sequence[bytes | memoryview]) -> int:
        """Write one member of the tar; return where the next one begins."""
        member = tape.Member(name, at + tape.BLOCK, sum(len(piece) for piece in pieces))
        padding = bytes(-member.size % tape.BLOCK)
        files: Files = self._core.files
        files.pwritev(self._fd, [tape.header(name, member.size), *pieces, padding], at)
        return member.end


def _draft(selection: Selection) -> Section:
    """Return a section that takes at least as many bytes in the manifest as the real one."""
    blocks = -(-len(selection.keys) // blocks_each(selection.streams))
    snapshots = sum(1 for _ in packed(selection.snapshots))
    return Section(
        selection.fingerprint,
        selection.streams,
        (_LONGEST,) * blocks,
        (_LONGEST,) * snapshots,
        tuple(selection.anchors),
    )
