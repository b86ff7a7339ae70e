"""The prefix store alone, for rows of your own. Run: python examples/own_store.py

It needs no model and no torch: here the "rows" of a token are four bytes that we make up.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ced_kvstore import Anchor, Store, Stream

BLOCK = 128
ROW_BYTES = 4


def rows_of(ids: list[int]) -> bytes:
    return b"".join((token * token).to_bytes(ROW_BYTES, "little") for token in ids)


def main(folder: Path) -> None:
    streams = [Stream("squares", BLOCK * ROW_BYTES)]
    ids = [(13 * n) % 1000 for n in range(3 * BLOCK)]
    with Store.open(folder, fingerprint={"rows": "squares 1"}, streams=streams) as store:
        anchor = Anchor(block_hash=store.hashes(ids)[-1], label="example")
        done = store.commit(ids, first_block=0, rows={"squares": rows_of(ids)}, anchors=[anchor])
        print(f"stored {done.blocks} blocks")

    with Store.open(folder, fingerprint={"rows": "squares 1"}, streams=streams) as store:
        other = [*ids[: 2 * BLOCK], *reversed(ids[2 * BLOCK :])]
        match = store.match(other)
        buffer = bytearray(match.blocks * BLOCK * ROW_BYTES)
        good = store.read(match, {"squares": buffer})
        print(f"matched {match.blocks} blocks, {good} good, {match.reason}")
        print(f"rows as stored: {bytes(buffer) == rows_of(ids[: 2 * BLOCK])}")

    # Rows made in another way are never mixed up with these.
    with Store.open(folder, fingerprint={"rows": "squares 2"}, streams=streams) as store:
        print(store.match(ids).reason)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name) / "kv")
