"""Archives of a small store taken apart, changed and put together again, and a store they are
handed to."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Anchor, Store, StoreError, Stream, chunk

STREAMS = (Stream("k", 40), Stream("v", 24))
END = bytes(1024)


def ids(seed: int, n_blocks: int) -> list[int]:
    return [(seed << 16) + i for i in range(n_blocks * 128)]


def open_store(directory: Path, family: str = "a") -> Store:
    return Store.open(directory, fingerprint={"family": family}, streams=STREAMS)


def rows(n_blocks: int, seed: int) -> dict[str, bytes]:
    return {s.name: bytes([seed, *range(s.block_bytes - 1)]) * n_blocks for s in STREAMS}


def fill(store: Store, path: list[int], seed: int) -> None:
    hashes = store.hashes(path)
    anchors = [Anchor(hashes[-1], f"session:{seed}", created=5.0)]
    data = rows(len(hashes), seed)
    store.commit(path, first_block=0, rows=data, anchors=anchors, snapshots={hashes[-1]: b"win"})


class Forge:
    """An archive taken apart; what is changed gets sums that fit again, as an attacker would."""

    def __init__(self, raw: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            self.files = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
        self.manifest = json.loads(self.files.pop("manifest.json"))
        self.first = self.manifest["fingerprints"][0]

    def tensors(self, name: str) -> tuple[dict[str, Any], bytearray]:
        """The header and the bytes of one safetensors file."""
        (length,) = struct.unpack_from("<Q", self.files[name])
        return json.loads(self.files[name][8 : 8 + length]), bytearray(
            self.files[name][8 + length :]
        )

    def put(self, name: str, header: Any, data: bytes) -> None:
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        self.files[name] = struct.pack("<Q", len(raw)) + raw + data

    def text(self) -> bytes:
        return json.dumps(self.manifest).encode()

    def sign(self, *, keep_bytes: bool = False) -> Forge:
        sections = [] if keep_bytes else self.manifest["fingerprints"]
        for row in [row for s in sections for row in [*s["blocks"], *s["snapshots"]]]:
            content = self.files[row["file"]]
            row["bytes"], row["sha256"] = len(content), hashlib.sha256(content).hexdigest()
        self.manifest.pop("sha256", None)
        raw = json.dumps(self.manifest, sort_keys=True, separators=(",", ":")).encode()
        self.manifest["sha256"] = hashlib.sha256(raw).hexdigest()
        return self

    def pack(self, manifest: bytes | None = None, *, without: str = "") -> bytes:
        raw = self.text() if manifest is None else manifest
        files = [("manifest.json", raw), *self.files.items()]
        return b"".join([*(member(*file) for file in files if file[0] != without), END])


def member(
    name: str, content: bytes = b"", form: int = tarfile.USTAR_FORMAT, **fields: Any
) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(form) + content + bytes(-len(content) % 512)


def make_archive(base: Path) -> bytes:
    """An archive of two fingerprints, with a fork and several chunks."""
    with pytest.MonkeyPatch.context() as patch, open_store(base / "kv") as store:
        patch.setattr(chunk, "CHUNK_BYTES", 3000)
        fill(store, ids(1, 5), 1)
        fill(store, ids(1, 2) + ids(2, 2), 2)
        with open_store(base / "kv", "b") as other:
            fill(other, ids(1, 3), 3)
        store.export(base / "all.tar")
    return (base / "all.tar").read_bytes()


class Target:
    """A store with something in it, and a look at everything around it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.path = base / "in.tar"
        self.line = ""
        self.store = open_store(base / "kv")
        fill(self.store, ids(1, 2), 1)

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None:
                self.check()
        finally:
            self.store.close()

    def check(self) -> None:
        """The store is whole, and has right rows only, whatever was imported."""
        assert self.store.notice is None
        assert self.store.verify() == []
        for family, path, seeds in (
            ("a", ids(1, 5), [1] * 5),
            ("a", ids(1, 2) + ids(2, 2), [1, 1, 2, 2]),
            ("b", ids(1, 3), [3] * 3),
        ):
            with open_store(self.base / "kv", family) as store:
                match = store.match(path)
                found = {s.name: bytearray(match.blocks * s.block_bytes) for s in STREAMS}
                assert store.read(match, found) == match.blocks
                for stream in STREAMS:
                    parts = [rows(1, seed)[stream.name] for seed in seeds[: match.blocks]]
                    assert found[stream.name] == b"".join(parts)

    def tries(self, raw: bytes) -> None:
        """Import may refuse, and then everything is as it was, or takes what is right."""
        self.path.write_bytes(raw)
        before = self.listing(), self.store.stats()
        try:
            self.store.import_(self.path)
        except StoreError as error:
            self.line = str(error)
            assert (self.listing(), self.store.stats()) == before
        assert "\n" not in self.line
        self.check()

    def listing(self) -> dict[str, bytes | None]:
        # LMDB notes its readers in the lock file.
        return {
            str(path): path.read_bytes() if path.is_file() and path.name != "lock.mdb" else None
            for path in self.base.rglob("*")
            if path != self.path
        }

    def refuses(self, raw: bytes) -> str:
        """Import must refuse, in one line, and leave everything as it was."""
        self.path.write_bytes(raw)
        before = self.listing(), self.store.stats()
        with pytest.raises(StoreError) as caught:
            self.store.import_(self.path)
        assert (self.listing(), self.store.stats()) == before
        line = str(caught.value)
        assert "\n" not in line
        assert len(line) < 1000
        assert "nothing was imported" in line
        return line
