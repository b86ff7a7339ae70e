"""An archive's manifest: which fingerprints, chunks and anchors it holds, as JSON.

Knows names, numbers and sums; no tar and no rows. Invariants: what `parse` returns would be what
`dump` wrote, every fingerprint is the hash of its own fields, and no chunk is larger than one that
this version writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from ced_kvstore.chunk import (
    MAX_SNAPSHOTS,
    NAME_BYTES,
    Chunk,
    blocks_each,
    chunk_name,
    largest,
    payload_bytes,
)
from ced_kvstore.errors import StoreError
from ced_kvstore.hashing import BLOCK_TOKENS, FORMAT_VERSION, Fingerprint, Value
from ced_kvstore.record import MAX_PAYLOAD
from ced_kvstore.results import MAX_TEXT_BYTES, Anchor, Stream
from ced_kvstore.schema import (
    MAX_TEXT,
    digest,
    dumps,
    fault,
    flag,
    list_of,
    loads,
    refuse,
    seconds,
    shown,
    table_of,
    text,
    whole,
)

ARCHIVE_VERSION = 1
"""Version of this format; others are refused."""

NAME = "manifest.json"
MAX_BYTES = 16 << 20
"""Most bytes of a manifest: some 90,000 anchors."""

_FORMAT = "ced-kvstore archive"
_MAX_POSITION = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Section:
    """All that an archive holds of one fingerprint."""

    fingerprint: Fingerprint
    streams: tuple[Stream, ...]
    blocks: tuple[Chunk, ...]
    """In path order: a block comes behind the one before it in its path."""
    snapshots: tuple[Chunk, ...]
    anchors: tuple[Anchor, ...]


def streams_of(fields: dict[str, Value]) -> tuple[Stream, ...]:
    """Return the streams that a fingerprint's fields declare; raises ValueError, LookupError."""
    names = str(fields["stream_order"]).split(",")
    return tuple(Stream(name, int(fields[f"stream_bytes.{name}"] or 0)) for name in names)


def dump(sections: Sequence[Section]) -> bytes:
    """Return the manifest's bytes."""
    content = {
        "format": _FORMAT,
        "version": ARCHIVE_VERSION,
        "fingerprints": [
            {
                "digest": section.fingerprint.digest.hex(),
                "fields": section.fingerprint.fields,
                "streams": [
                    {"name": stream.name, "block_bytes": stream.block_bytes}
                    for stream in section.streams
                ],
                "blocks": [_chunk_row(chunk) for chunk in section.blocks],
                "snapshots": [_chunk_row(chunk) for chunk in section.snapshots],
                "anchors": [_anchor_row(anchor) for anchor in section.anchors],
            }
            for section in sections
        ],
    }
    # The sum is over the text without it, so that a flipped letter of a label is noticed, too.
    return dumps({**content, "sha256": hashlib.sha256(dumps(content)).hexdigest()})


def _chunk_row(chunk: Chunk) -> dict[str, Any]:
    return {
        "file": chunk.file,
        "count": chunk.count,
        "bytes": chunk.n_bytes,
        "sha256": chunk.sha256,
    }


def _anchor_row(anchor: Anchor) -> dict[str, Any]:
    return {
        "block": anchor.block_hash.hex(),
        "label": anchor.label,
        "kind": anchor.kind,
        "pinned": anchor.pinned,
        "created": anchor.created,
        "n_tokens": anchor.n_tokens,
    }


def parse(raw: memoryview) -> tuple[Section, ...]:
    """Return the sections of a manifest; raises StoreError."""
    value = loads(raw, NAME)
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        got = value.get("format") if isinstance(value, dict) else value
        refuse(f"{NAME}: format", repr(_FORMAT), got)
    if value.get("version") != ARCHIVE_VERSION or isinstance(value["version"], bool):
        refuse(NAME, f"an archive of version {ARCHIVE_VERSION}", value.get("version"))
    table = table_of(value, NAME, {"format", "version", "fingerprints", "sha256"})
    total = table.pop("sha256")
    rows = list_of(table["fingerprints"], f"{NAME}: fingerprints")
    sections: list[Section] = []
    number = 1
    for at, row in enumerate(rows):
        section = _section(row, f"{NAME}: fingerprint {at}", number)
        if any(section.fingerprint == other.fingerprint for other in sections):
            fault(f"{NAME}: fingerprint {at}", "each fingerprint once", "it is there twice")
        sections.append(section)
        number += len(section.blocks) + len(section.snapshots)
    if total != hashlib.sha256(dumps(table)).hexdigest():
        fault(NAME, "the sha256 of its content", f"it says {shown(total)}")
    return tuple(sections)


def _section(value: object, what: str, number: int) -> Section:
    names = {"digest", "fields", "streams", "blocks", "snapshots", "anchors"}
    row = table_of(value, what, names)
    fingerprint, streams = _fingerprint(row, what)
    most, one = blocks_each(streams), payload_bytes(streams) + NAME_BYTES
    blocks = _chunks(row, "blocks", what, number, most, one)
    number += len(blocks)
    snapshots = _chunks(row, "snapshots", what, number, MAX_SNAPSHOTS, MAX_PAYLOAD)
    anchors = [
        _anchor(each, f"{what}: anchor {at}")
        for at, each in enumerate(list_of(row["anchors"], f"{what}: anchors"))
    ]
    if len({(anchor.block_hash, anchor.label) for anchor in anchors}) != len(anchors):
        fault(f"{what}: anchors", "each label once at a block", "one is there twice")
    return Section(fingerprint, streams, blocks, snapshots, tuple(anchors))


def _fingerprint(row: dict[str, Any], what: str) -> tuple[Fingerprint, tuple[Stream, ...]]:
    fields = row["fields"]
    if not isinstance(fields, dict):
        refuse(f"{what}: fields", "an object", fields)
    for name, value in fields.items():
        text(name, f"{what}: a field's name")
        if isinstance(value, str):
            text(value, f"{what}: field {name[:60]!r}")
        elif isinstance(value, int):
            whole(int(value), f"{what}: field {name[:60]!r}", -(2**63), 2**64 - 1)
        elif value is not None:
            refuse(f"{what}: field {name[:60]!r}", "a text, a whole number or null", value)
    if fields.get("store_format") != FORMAT_VERSION:
        refuse(f"{what}: store_format", str(FORMAT_VERSION), fields.get("store_format"))
    listed = list_of(row["streams"], f"{what}: streams")
    streams = []
    for at, each in enumerate(listed):
        where = f"{what}: stream {at}"
        named = table_of(each, where, {"name", "block_bytes"})
        n_bytes = whole(named["block_bytes"], f"{where}: block_bytes", 1, 1 << 30)
        try:
            streams.append(Stream(text(named["name"], f"{where}: name"), n_bytes))
        except ValueError as error:
            raise StoreError(f"{where}: {str(error)[:200]}") from None
    made = Fingerprint.of(fields, streams)
    if not streams or made.fields != fields or made.digest != digest(row["digest"], what):
        fault(what, "fields that name its streams and have its digest", "they do not")
    if len(msgpack.packb(fields)) > 16 * MAX_TEXT or payload_bytes(streams) > MAX_PAYLOAD:
        fault(what, "fields and blocks that fit a record", "they are larger")
    return made, tuple(streams)


def _chunks(
    section: dict[str, Any], kind: str, what: str, number: int, most: int, one: int
) -> tuple[Chunk, ...]:
    chunks = []
    for at, each in enumerate(list_of(section[kind], f"{what}: {kind}")):
        where = f"{what}: {kind} {at}"
        row = table_of(each, where, {"file", "count", "bytes", "sha256"})
        # A name is what its number makes it, so none is there twice or leads elsewhere.
        name = chunk_name(number + at, kind)
        if row["file"] != name:
            refuse(f"{where}: file", repr(name), row["file"])
        count = whole(row["count"], f"{where}: count", 1, most)
        n_bytes = whole(row["bytes"], f"{where}: bytes", 1, largest(count, one))
        chunks.append(Chunk(name, count, n_bytes, digest(row["sha256"], where).hex()))
    return tuple(chunks)


def _anchor(value: object, what: str) -> Anchor:
    names = {"block", "label", "kind", "pinned", "created", "n_tokens"}
    row = table_of(value, what, names)
    if row["label"] == "":
        refuse(f"{what}: label", "a text by which `cedagent kv ls` can show it", "")
    return Anchor(
        digest(row["block"], f"{what}: block"),
        text(row["label"], f"{what}: label", MAX_TEXT_BYTES),
        text(row["kind"], f"{what}: kind", MAX_TEXT_BYTES),
        flag(row["pinned"], f"{what}: pinned"),
        seconds(row["created"], f"{what}: created"),
        whole(row["n_tokens"], f"{what}: n_tokens", 0, _MAX_POSITION + BLOCK_TOKENS),
    )
