"""The bytes on disk are those that kvstore/README.md shows and describes."""

from __future__ import annotations

import hashlib
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import msgpack
import xxhash

from ced_kvstore import Stream

KVSTORE = Path(__file__).resolve().parents[2] / "kvstore"
IDS = list(range(128))
ROWS = b"twenty bytes of rows"


def example(kit: Any) -> bytes:
    with kit.open(fingerprint={}, streams=[Stream("k", 20)]) as store:
        store.commit(IDS, first_block=0, rows={"k": ROWS})
    return bytes(kit.segments()[0].read_bytes())


def test_the_readme_shows_the_bytes_on_disk(kit: Any) -> None:
    raw = example(kit)
    readme = (KVSTORE / "README.md").read_text()
    lines = re.findall(r"^([0-9a-f]{8}): ((?:[0-9a-f]{4} ?)+) ", readme, re.MULTILINE)
    assert len(lines) > 20
    for offset, words in lines:
        start, shown = int(offset, 16), bytes.fromhex(words)
        assert raw[start : start + 16] == shown, offset


def test_a_record_can_be_read_from_the_description_alone(kit: Any) -> None:
    raw = example(kit)
    fields = {"store_format": 1, "stream_bytes.k": 20, "stream_order": "k"}
    digest = hashlib.sha256(msgpack.packb(fields)).digest()
    root = hashlib.sha256(b"ced-kv" + struct.pack("<I", 1) + digest).digest()
    ids = struct.pack("<128I", *IDS)
    block = raw[4096:8192]
    assert len(raw) == 8192
    assert raw[128 : 128 + struct.unpack_from("<I", raw, 8)[0]] == msgpack.packb(fields)
    assert struct.unpack_from("<4sHHIIQ", block) == (b"CEDK", 1, 1, 532, 0, 1)
    assert block[24:56] == hashlib.sha256(root + ids).digest()
    assert block[56:88] == root
    assert block[88:104] == digest[:16]
    assert block[104:120] == xxhash.xxh3_128_digest(ids + ROWS)
    assert block[120:128] == bytes(4) + struct.pack("<I", zlib.crc32(block[:124]))
    assert block[128:660] == ids + ROWS
    assert not any(block[660:])


def test_bench_runs_as_a_script(tmp_path: Path) -> None:
    options = ["--tokens", "1024", "--blocks", "3", "--block-bytes", "5000", "--repeats", "2"]
    done = subprocess.run(
        [sys.executable, KVSTORE / "bench.py", *options, "--folder", tmp_path],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert re.search(r"match .* ms\ncommit .* ratio [\d.]+\nrestore .* ratio [\d.]+\n", done.stdout)
    assert list(tmp_path.iterdir()) == []


def test_the_store_imports_nothing_heavy() -> None:
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import ced_kvstore
assert all(hasattr(ced_kvstore, name) for name in ced_kvstore.__all__)
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"torch", "numpy", "cedagent", "ced_kernels"}, loaded
"""
    subprocess.run([sys.executable, "-c", program, KVSTORE], check=True)
