"""Measure match, commit and restore against plain files holding the same bytes.

Run as a script: it finds ced_kvstore beside itself. Prints medians and ratios; refuses to print
when what was read back is not what was written.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ced_kvstore import Store, Stream

BLOCK = 128


def median(action: Callable[[int], object], repeats: int) -> float:
    """Return the median seconds of `action(i)`."""
    times = []
    for i in range(repeats):
        start = time.perf_counter()
        action(i)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def streams_of(block_bytes: int) -> list[Stream]:
    """Eleven streams that add up to about `block_bytes`, as a model with five global layers has."""
    small = block_bytes // 16
    return [
        *(Stream(f"layer{i // 2}.{'kv'[i % 2]}", small) for i in range(10)),
        Stream("e_out", block_bytes - 10 * small),
    ]


def bench_match(folder: Path, n_tokens: int, repeats: int) -> float:
    """Median seconds to match `n_tokens` stored tokens."""
    ids = list(range(n_tokens // BLOCK * BLOCK))
    blocks = len(ids) // BLOCK
    with Store.open(folder, fingerprint={}, streams=[Stream("k", 16)]) as store:
        store.commit(ids, first_block=0, rows={"k": bytes(16 * blocks)})
        assert store.match(ids).blocks == blocks
        return median(lambda _: store.match(ids), repeats)


def bench_commit(
    folder: Path, streams: list[Stream], blocks: int, repeats: int
) -> tuple[float, float]:
    """Median seconds to commit `blocks` blocks, and to write and sync a plain file of as much."""
    rows = {s.name: os.urandom(blocks * s.block_bytes) for s in streams}
    whole = b"".join(rows.values())
    plain, store_times = [], []
    with Store.open(folder / "kv", fingerprint={}, streams=streams, max_bytes=10**10) as store:
        for i in range(repeats):
            path = folder / f"plain{i}"
            start = time.perf_counter()
            fd = os.open(path, os.O_RDWR | os.O_CREAT)
            os.pwritev(fd, [whole], 0)
            os.fsync(fd)
            os.close(fd)
            plain.append(time.perf_counter() - start)
            path.unlink()
            ids = [(i + 1) << 20 | j for j in range(blocks * BLOCK)]
            start = time.perf_counter()
            done = store.commit(ids, first_block=0, rows=rows)
            store_times.append(time.perf_counter() - start)
            assert done.blocks == blocks, done
    return statistics.median(store_times), statistics.median(plain)


def bench_restore(
    folder: Path, streams: list[Stream], blocks: int, repeats: int
) -> tuple[float, float]:
    """Median seconds to restore `blocks` blocks, and for preadv of a file of as many bytes."""
    rows = {s.name: os.urandom(blocks * s.block_bytes) for s in streams}
    buffers = {s.name: bytearray(blocks * s.block_bytes) for s in streams}
    ids = list(range(blocks * BLOCK))
    with Store.open(folder / "kv", fingerprint={}, streams=streams, max_bytes=10**10) as store:
        store.commit(ids, first_block=0, rows=rows)
        match = store.match(ids)
        assert store.read(match, buffers) == blocks
        assert buffers == rows, "what was read is not what was written"
        ours = median(lambda _: store.read(match, buffers), repeats)
    path = folder / "plain"
    path.write_bytes(b"".join(rows.values()))
    views = [memoryview(buffer) for buffer in buffers.values()]

    def plain(_: int) -> None:
        fd = os.open(path, os.O_RDONLY)
        offset = 0
        for view in views:
            done = 0
            while done < len(view):
                done += os.preadv(fd, [view[done:]], offset + done)
            offset += len(view)
        os.close(fd)

    return ours, median(plain, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=131_072, help="tokens to match")
    parser.add_argument("--blocks", type=int, default=32, help="blocks to commit and restore")
    parser.add_argument("--block-bytes", type=int, default=1_200_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ced-kv-bench-", dir=args.folder))
    streams = streams_of(args.block_bytes)
    megabytes = args.blocks * args.block_bytes / 1e6
    try:
        matched = bench_match(folder / "match", args.tokens, args.repeats)
        commit, written = bench_commit(folder, streams, args.blocks, args.repeats)
        shutil.rmtree(folder / "kv")
        restore, read = bench_restore(folder, streams, args.blocks, args.repeats)
    finally:
        shutil.rmtree(folder)
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    print(f"match    {args.tokens} tokens: {matched * 1e3:.1f} ms")
    print(
        f"commit   {args.blocks} blocks, {megabytes:.0f} MB: {commit * 1e3:.1f} ms "
        f"({megabytes / commit / 1e3:.2f} GB/s); plain write and fsync {written * 1e3:.1f} ms; "
        f"ratio {commit / written:.2f}"
    )
    print(
        f"restore  {args.blocks} blocks, {megabytes:.0f} MB: {restore * 1e3:.1f} ms "
        f"({megabytes / restore / 1e3:.2f} GB/s); plain preadv {read * 1e3:.1f} ms; "
        f"ratio {restore / read:.2f}"
    )


if __name__ == "__main__":
    main()
