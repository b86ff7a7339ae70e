"""Makers for the store's tests: small streams of odd sizes, rows that are a function of ids."""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb
import pytest

from ced_kvstore import Anchor, Match, Store, Stream

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(ROOT / part) for part in ("kvstore", "tests/store", "tests/oracles"))
"""Where a new process finds the store and what its tests share."""
STREAMS = (Stream("k", 1003), Stream("v", 517), Stream("e_out", 2049))
FINGERPRINT = {
    "family": "ced_llama",
    "weights.layers.3": "ab" * 32,
    "torch": "2.13",
    "rope": None,
}


class Kit:
    """Opens stores below one folder and knows what every block must hold."""

    streams = STREAMS
    fingerprint = FINGERPRINT

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: list[Store] = []

    def open(self, **options: Any) -> Store:
        fingerprint = options.pop("fingerprint", FINGERPRINT)
        streams = options.pop("streams", STREAMS)
        directory = options.pop("directory", self.directory)
        store = Store.open(directory, fingerprint=fingerprint, streams=streams, **options)
        self._open.append(store)
        return store

    def close(self) -> None:
        for store in self._open:
            store.close()

    @staticmethod
    def ids(n_blocks: int, seed: int = 0) -> list[int]:
        return [(seed << 20) + i for i in range(n_blocks * 128)]

    def rows(self, ids: Sequence[int], first_block: int = 0) -> dict[str, bytes]:
        """The rows of the blocks from `first_block` on: any change of the prefix changes them."""
        seed, parts = b"", []
        for start in range(0, len(ids) - 127, 128):
            seed = hashlib.sha256(seed + repr(list(ids[start : start + 128])).encode()).digest()
            if start >= first_block * 128:
                parts.append(seed)
        return {
            s.name: b"".join(
                hashlib.shake_128(part + s.name.encode()).digest(s.block_bytes) for part in parts
            )
            for s in STREAMS
        }

    def commit(self, store: Store, ids: Sequence[int], first_block: int = 0, **options: Any) -> Any:
        rows = self.rows(ids, first_block)
        return store.commit(ids, first_block=first_block, rows=rows, **options)

    def anchored(self, store: Store, ids: Sequence[int], label: str, **options: Any) -> Any:
        anchor = Anchor(store.hashes(ids)[-1], label, **options)
        return self.commit(store, ids, anchors=[anchor])

    def good_blocks(self, store: Store, ids: Sequence[int], match: Match | None = None) -> int:
        """Match and read `ids`; every block that counts as good must hold the right bytes."""
        match = store.match(ids) if match is None else match
        buffers = {s.name: bytearray(match.blocks * s.block_bytes) for s in STREAMS}
        good = store.read(match, buffers)
        assert 0 <= good <= match.blocks
        expected = self.rows(ids[: good * 128])
        for stream in STREAMS:
            assert buffers[stream.name][: good * stream.block_bytes] == expected[stream.name]
        return good

    def fill(self, n_blocks: int = 4) -> None:
        """A closed store with one path, two anchors and a snapshot."""
        store = self.open()
        ids = self.ids(n_blocks)
        hashes = store.hashes(ids)
        anchors = [Anchor(hashes[-1], "session:a"), Anchor(hashes[0], "warm", pinned=True)]
        self.commit(store, ids, anchors=anchors, snapshots={hashes[-1]: b"w" * 4000})
        store.close()

    @staticmethod
    def flip(path: Path, offset: int, bit: int = 0) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ (1 << bit)]))

    @staticmethod
    def block_offset(path: Path, number: int) -> int:
        """Offset of the record of the block at `number` blocks from the root."""
        raw = path.read_bytes()
        for offset in range(0, len(raw), 4096):
            kind, _, position = struct.unpack_from("<HII", raw, offset + 6)
            if raw[offset : offset + 4] == b"CEDK" and (kind, position) == (1, number * 128):
                return offset
        raise AssertionError("no such block")

    def segments(self) -> list[Path]:
        return sorted((self.directory / "seg").iterdir())

    def bytes_on_disk(self) -> int:
        return sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())


def spare_syncs(patch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, a killed process neither: so nothing waits for a disk."""
    patch.setattr(os, "fsync", lambda fd: None)
    patch.setattr(os, "fdatasync", lambda fd: None, raising=False)
    patch.setattr(lmdb, "open", functools.partial(lmdb.open, sync=False))


@pytest.fixture(scope="module", autouse=True)
def swift_disk() -> Iterator[None]:
    """New processes sync as always, unless they ask for `spare_syncs` themselves."""
    with pytest.MonkeyPatch.context() as patch:
        spare_syncs(patch)
        yield


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(tmp_path / "kv")
    yield made
    made.close()


@pytest.fixture
def other(kit: Kit) -> Iterator[Kit]:
    """A second, empty folder for a store."""
    made = Kit(kit.directory.with_name("other"))
    yield made
    made.close()


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_python() -> Run:
    """Run a program in a new process that can import the store; the arguments follow as argv."""

    def run(program: str, *argv: object, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", program, *map(str, argv)],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, "PYTHONPATH": PATHS},
            **options,
        )

    return run


class Peer:
    """Another process: `peer("kit.ids(2)")` runs a line there and returns what it gives."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", ROOT / "tests" / "store" / "peer.py", directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PATHS},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def __call__(self, line: str) -> Any:
        self._stdin.write(line + "\n")
        self._stdin.flush()
        answer = self._stdout.readline()
        assert answer, f"the other process died of {line!r}"
        return ast.literal_eval(answer)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End it with kill -9."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Let it end by itself, stores still open, as a program that was not written well."""
        self._stdin.close()
        self._process.wait(timeout=60)
        self._stdout.close()


@pytest.fixture
def peer(kit: Kit) -> Iterator[Callable[[], Peer]]:
    """Start other processes on the kit's directory."""
    started: list[Peer] = []

    def start() -> Peer:
        started.append(Peer(kit.directory))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def standing_peer(tmp_path: Path) -> Iterator[Callable[[], Peer]]:
    """One other process for many examples, started anew when it has died of one."""
    started: list[Peer] = []

    def get() -> Peer:
        if not started or not started[-1].is_alive:
            started.append(Peer(tmp_path))
        return started[-1]

    yield get
    for each in started:
        each.close()
