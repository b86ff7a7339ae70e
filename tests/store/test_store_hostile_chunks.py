"""Chunks of an archive that do not hold what their manifest says are refused, whatever their sums.

Every sum here fits: what is refused is the content.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forged_archive import STREAMS, Forge, Target, make_archive

from ced_kvstore import chunk, manifest, proof
from ced_kvstore.hashing import block_hash
from ced_kvstore.record import checksum

B1, B2, WINDOWS = "000001-blocks", "000002-blocks", "000003-snapshots"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make_archive(tmp_path_factory.mktemp("good"))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with Target(tmp_path) as made:
        yield made


class Edit:
    """One chunk's header and bytes, to be changed."""

    def __init__(self, forge: Forge, name: str = B1) -> None:
        self.forge, self.name = forge, f"{name}.safetensors"
        self.header, self.data = forge.tensors(self.name)

    def part(self, tensor: str, at: int, size: int) -> slice:
        """Where one block's part of a tensor is."""
        start = self.header[tensor]["data_offsets"][0] + at * size
        return slice(start, start + size)

    def rehash(self, at: int) -> None:
        """Give a block the checksum that its ids and rows have now."""
        data, sizes = self.data, [(f"rows.{s.name}", s.block_bytes) for s in STREAMS]
        pieces = [data[self.part(name, at, size)] for name, size in [("ids", 512), *sizes]]
        data[self.part("checksums", at, 16)] = checksum(pieces)

    def rename(self, tensor: str, name: str) -> None:
        self.header[name] = self.header.pop(tensor)

    def save(self) -> None:
        self.forge.put(self.name, self.header, bytes(self.data))


def length(edit: Edit, value: int) -> None:
    raw = edit.forge.files[edit.name]
    edit.forge.files[edit.name] = struct.pack("<Q", value) + raw[8:]


def swap(edit: Edit, first: int, second: int) -> None:
    """Change the order of two blocks, whole with everything."""
    sizes = {"ids": 512, "keys": 32, "parents": 32, "checksums": 16}
    for name, size in {**sizes, **{f"rows.{s.name}": s.block_bytes for s in STREAMS}}.items():
        a, b = edit.part(name, first, size), edit.part(name, second, size)
        edit.data[a], edit.data[b] = edit.data[b], edit.data[a]
    edit.save()


def change(edit: Edit, tensor: str, at: int, size: int, value: bytes | None = None) -> None:
    """Change one block's part of a tensor; its checksum follows."""
    where = edit.part(tensor, at, size)
    edit.data[where] = value or bytes(b ^ 1 for b in edit.data[where])
    if tensor != "checksums":
        edit.rehash(at)
    edit.save()


def field(edit: Edit, tensor: str, name: str, value: Any) -> None:
    edit.header[tensor][name] = value
    edit.save()


def new_ids(edit: Edit) -> None:
    """Other ids with the hash they have, but under the old parent's old children."""
    ids = bytes(512)
    edit.data[edit.part("keys", 3, 32)] = block_hash(bytes(32), ids)
    edit.data[edit.part("parents", 3, 32)] = bytes(32)
    change(edit, "ids", 3, 512, ids)


def raw(edit: Edit, header: bytes) -> None:
    edit.forge.put(edit.name, header, bytes(edit.data))


def others_rows(forge: Forge) -> None:
    """The first model's blocks under the second one's fingerprint."""
    first, second = (section["blocks"][0]["file"] for section in forge.manifest["fingerprints"])
    forge.manifest["fingerprints"][1]["blocks"][0]["count"] = 4
    forge.files[second] = forge.files[first]


def text(edit: Edit) -> bytes:
    return json.dumps(edit.header).encode()


K = "rows.k"
CASES: dict[str, tuple[str, Callable[[Edit], Any]]] = {
    "long header": ("safetensors header within", lambda e: length(e, 1 << 62)),
    "header to the end": ("expected JSON", lambda e: length(e, len(e.forge.files[e.name]) - 8)),
    "no header": ("expected JSON", lambda e: length(e, 0)),
    "short": ("safetensors header within", lambda e: e.forge.files.update({e.name: b"1234567"})),
    "large header": ("header within", lambda e: raw(e, text(e) + b" " * (1 << 20))),
    "no JSON": ("expected JSON", lambda e: raw(e, b"{")),
    "list": ("an object", lambda e: raw(e, b"[]")),
    "deep": ("nested too deeply", lambda e: raw(e, b'{"ids":' * 100_000)),
    "NaN": ("NaN is not", lambda e: raw(e, text(e).replace(b"128", b"NaN"))),
    "name twice": ("twice", lambda e: raw(e, b'{"ids": {},' + text(e)[1:])),
    "metadata": ("an object of", lambda e: e.header.update(__metadata__={"a": "b"}) or e.save()),
    "no object": ("an object of", lambda e: e.header.update(ids=[]) or e.save()),
    "dtype": ("U8 or U32", lambda e: field(e, K, "dtype", "F32")),
    "dtype list": ("U8 or U32", lambda e: field(e, K, "dtype", ["U8"])),
    "dtype of bytes": ("bytes, got", lambda e: field(e, K, "dtype", "U32")),
    "dtype of ids": (
        "expected ids of type U32",
        lambda e: e.header["ids"].update(dtype="U8", shape=[4, 512]) or e.save(),
    ),
    "flat": ("expected rows.k of type U8", lambda e: field(e, K, "shape", [160])),
    "negative shape": ("whole number", lambda e: field(e, K, "shape", [-4, -40])),
    "huge shape": ("whole number", lambda e: field(e, K, "shape", [1 << 40, 1 << 40])),
    "bool shape": ("whole number", lambda e: field(e, K, "shape", [True, 160])),
    "dimensions": ("dimensions", lambda e: field(e, K, "shape", [1] * 1000)),
    "one offset": ("offsets", lambda e: field(e, K, "data_offsets", [0])),
    "negative offset": ("whole number", lambda e: field(e, K, "data_offsets", [-160, 0])),
    "offset outside": ("whole number", lambda e: field(e, K, "data_offsets", [1 << 20, 160])),
    "overlap": ("but it is at", lambda e: field(e, K, "data_offsets", [0, 160])),
    "hole": ("bytes of tensors", lambda e: e.data.extend(b"x") or e.save()),
    "name": ("expected rows.k of type U8", lambda e: e.rename(K, "rows.x") or e.save()),
    "missing": ("it at", lambda e: e.header.pop(K) and e.save()),
    "one more": (
        "expected 6 tensors",
        lambda e: (
            e.header.update(more={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}) or e.save()
        ),
    ),
    "ids": ("the hash that follows", lambda e: change(e, "ids", 1, 512)),
    "key": ("the hash that follows", lambda e: change(e, "keys", 0, 32, b"\xff" * 32)),
    "parent": ("whose parent", lambda e: change(e, "parents", 1, 32)),
    "checksum": ("its checksum", lambda e: change(e, "checksums", 2, 16)),
    "no path": ("whose parent", new_ids),
    "order": ("whose parent", lambda e: swap(e, 0, 1)),
    "another model": ("whose parent", lambda e: others_rows(e.forge)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_chunk_is_refused(good: bytes, target: Target, name: str) -> None:
    why, work = CASES[name]
    forge = Forge(good)
    work(Edit(forge))
    assert why in target.refuses(forge.sign().pack())


def test_rows_that_changed_are_refused(good: bytes, target: Target) -> None:
    edit = Edit(forge := Forge(good))
    edit.data[edit.part(K, 2, 40)] = bytes(40)
    edit.save()
    assert "its checksum" in target.refuses(forge.sign().pack())


def test_bytes_that_the_manifest_does_not_know_are_refused(good: bytes, target: Target) -> None:
    forge, name = Forge(good), f"{WINDOWS}.safetensors"
    content = forge.sign().files[name]
    # The last byte is a snapshot's, of which nothing else tells.
    forge.files[name] = content[:-1] + b"x"
    assert "expected the sha256" in target.refuses(forge.pack())
    forge.files[name] = content + bytes(9000)
    assert f"expected {len(content)} bytes, got" in target.refuses(forge.pack())


def test_a_name_that_leads_elsewhere_is_refused_in_tar_and_manifest(
    good: bytes, target: Target
) -> None:
    forge, name = Forge(good), "../../evil"
    forge.files[name] = forge.files.pop(f"{B1}.safetensors")
    forge.first["blocks"][0]["file"] = name
    assert f"expected '{B1}.safetensors', got '{name}'" in target.refuses(forge.sign().pack())


def test_a_chunk_larger_than_any_that_is_written_is_refused(
    good: bytes, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As many bytes as four blocks have, without a header.
    monkeypatch.setattr(chunk, "CHUNK_BYTES", 4 * (512 + 40 + 24 + 32 + 32 + 16))
    monkeypatch.setattr(chunk, "MAX_HEADER", 0)
    assert "blocks 0: bytes: expected a whole number" in target.refuses(good)


def test_more_snapshots_than_a_chunk_has_are_refused(
    good: bytes, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MAX_SNAPSHOTS", 1)
    assert "snapshots 0: count: expected a whole number" in target.refuses(good)


def test_a_block_that_comes_twice_is_refused(good: bytes, target: Target) -> None:
    forge = Forge(good)
    # The first chunk again in place of the second one.
    forge.files[f"{B2}.safetensors"] = forge.files[f"{B1}.safetensors"]
    forge.first["blocks"][1]["count"] = 4
    assert "ascending hash" in target.refuses(forge.sign().pack())


@pytest.mark.parametrize(
    ("why", "work"),
    [
        ("hex digits", lambda e, key: e.rename(key, "../evil")),
        ("hex digits", lambda e, key: e.rename(key, key.upper())),
        ("is none", lambda e, key: e.rename(key, "ab" * 32)),
        ("one dimension", lambda e, key: e.header[key].update(shape=[1, 3])),
    ],
)
def test_a_hostile_snapshot_is_refused(good: bytes, target: Target, why: str, work: Any) -> None:
    edit = Edit(forge := Forge(good), WINDOWS)
    work(edit, next(key for key in edit.header if key.strip("0123456789")))
    edit.save()
    assert why in target.refuses(forge.sign().pack())


def test_a_snapshot_that_comes_twice_is_refused(good: bytes, target: Target) -> None:
    forge = Forge(good)
    rows, name = forge.first["snapshots"], "000004-snapshots.safetensors"
    section = forge.manifest["fingerprints"].pop()
    for row in section["blocks"] + section["snapshots"]:
        del forge.files[row["file"]]
    rows.append({**rows[0], "file": name})
    forge.files[name] = forge.files[rows[0]["file"]]
    assert "there are two" in target.refuses(forge.sign().pack())


def test_a_path_is_no_longer_than_a_record_can_say(
    good: bytes, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "MAX_DEPTH", 3)
    assert "at most 3 blocks" in target.refuses(good)
