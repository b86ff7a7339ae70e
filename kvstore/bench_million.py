"""Open, and match in, a store of a million blocks. Part of bench.py (`--million`).

The index is real and built directly, with the same rows that commits would put there; the segments
are sparse files of the right size without a record in them. So opening and matching see what they
would see, and nothing can be read.
"""

from __future__ import annotations

import os
import statistics
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ced_kvstore import Store, Stream
from ced_kvstore.entry import Entry
from ced_kvstore.hashing import BLOCK_TOKENS, IDS_BYTES, chain
from ced_kvstore.record import Place, span
from ced_kvstore.rows import Tables

BLOCKS = 1_000_000
ROW_BYTES = 300_000
SEGMENT_BYTES = 256 << 20
MATCH_S, OPEN_S = 0.010, 1.0
PATHS_AT_A_TIME = 16
OPENINGS = 5
PAUSE_S = 0.01
"""As in bench.py."""


def bench_million(folder: Path, n_tokens: int, repeats: int) -> Iterator[str]:
    """Yield what was built and how long it took to open and to match in."""
    path_blocks = n_tokens // BLOCK_TOKENS
    n_paths = -(-BLOCKS // path_blocks)
    start = time.perf_counter()
    with _open(folder) as store:
        for first in range(0, n_paths, PATHS_AT_A_TIME):
            _put(store, range(first, min(n_paths, first + PATHS_AT_A_TIME)), path_blocks)
        _make_segments(store, folder)
    seconds = time.perf_counter() - start
    index = (folder / "index" / "data.mdb").stat().st_size
    yield (
        f"built    {n_paths * path_blocks} blocks as {n_paths} paths in {seconds:.0f} s: index "
        f"{index / 1e6:.0f} MB, put there directly; segments are sparse files without records"
    )
    for name, is_clean in (("a clean close", True), ("a kill", False)):
        opened = []
        for _ in range(OPENINGS):
            if not is_clean:
                # A process that is killed leaves no sum of the index.
                (folder / "index" / "CHECK").unlink()
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            store = _open(folder)
            opened.append(time.perf_counter() - start)
            assert store.notice is None, store.notice
            store.close()
        yield f"open     after {name}: {_judged(opened, OPEN_S)}"
    ids = list(range(path_blocks * BLOCK_TOKENS))
    with _open(folder) as store:
        assert store.stats().blocks == n_paths * path_blocks
        matched = []
        for _ in range(repeats):
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            match = store.match(ids)
            matched.append(time.perf_counter() - start)
            assert match.blocks == path_blocks, match.reason
    yield f"match    {len(ids)} tokens in it: {_judged(matched, MATCH_S)}"


def _judged(seconds: list[float], limit: float) -> str:
    middle = statistics.median(seconds)
    return (
        f"{min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f}, median {middle * 1e3:.1f} ms; "
        f"at most {limit * 1e3:.0f} ms: {'met' if middle < limit else 'MISSED'}"
    )


def _open(folder: Path) -> Store:
    return Store.open(folder, fingerprint={}, streams=[Stream("k", ROW_BYTES)], max_bytes=1 << 60)


def _put(store: Store, paths: range, path_blocks: int) -> None:
    length = IDS_BYTES + ROW_BYTES
    in_segment = SEGMENT_BYTES // span(length)
    n_ids = path_blocks * BLOCK_TOKENS

    def put(tables: Tables) -> None:
        for path in paths:
            raw_ids = array("I", range(path * n_ids, (path + 1) * n_ids)).tobytes()
            parent = store.root
            for i, key in enumerate(chain(store.root, raw_ids)):
                segment, slot = divmod(path * path_blocks + i, in_segment)
                place = Place(segment + 1, slot * span(length), length)
                short = store._fingerprint.short
                tables.put_block(key, Entry(place, i * BLOCK_TOKENS, False, short, parent))
                parent = key

    done: Any = store._core.change(lambda _, index: index.write(put), str)
    assert done is None, done


def _make_segments(store: Store, folder: Path) -> None:
    with store._core.read() as tables:
        ends = {number: end for number, (end, _live) in tables.segments().items()}
    for number, end in ends.items():
        path = folder / "seg" / f"{number:06d}.kvs"
        path.touch(mode=0o600)
        os.truncate(path, end)
