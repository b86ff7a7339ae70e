"""Measure match, commit and restore against plain files holding the same bytes.

Run as a script: it finds ced_kvstore beside itself. What is compared runs in turns (ours, plain,
ours, plain, ...), so that a busy machine slows both; judge by the ratio, above 1 the store is the
faster one. Refuses to print when what was read back is not what was written.
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
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ced_kvstore import Anchor, Store, Stream, drop
from ced_kvstore.hashing import BLOCK_TOKENS
from ced_kvstore.restore import idle_processors
from ced_kvstore.rows import Tables
from ced_kvstore.tree import Node

Action = Callable[[int], object]


PAUSE_S = 0.01
"""Before whatever is measured: on a busy machine it then begins with a whole slice of a processor,
and what takes twice as long is not also interrupted twice as often."""


def in_turns(repeats: int, *actions: Action, before: Action = lambda _: None) -> list[list[float]]:
    """Return the seconds of each action's calls: `action(i)` for every i, one action after the
    other. `before(i)` is called before each and not measured."""
    times: list[list[float]] = [[] for _ in actions]
    for i in range(repeats):
        for action, seconds in zip(actions, times, strict=True):
            before(i)
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            action(i)
            seconds.append(time.perf_counter() - start)
    return times


def spread(seconds: list[float]) -> str:
    """Say the least, the most and the median in milliseconds."""
    least, most = min(seconds) * 1e3, max(seconds) * 1e3
    return f"{least:.1f} to {most:.1f}, median {statistics.median(seconds) * 1e3:.1f} ms"


def compared(n_bytes: int, ours: list[float], plain: list[float], name: str) -> str:
    """Say both and their ratio: of the pairs the least and the most, of the shortest times (the
    machine was least busy), of the medians."""
    pairs = [other / own for own, other in zip(ours, plain, strict=True)]
    middle = statistics.median(ours)
    return (
        f"{spread(ours)}, {n_bytes / middle / 1e9:.2f} GB/s; plain {name} {spread(plain)}; "
        f"pairs {min(pairs):.2f} to {max(pairs):.2f}, shortest {min(plain) / min(ours):.2f}, "
        f"ratio {statistics.median(plain) / middle:.2f}"
    )


def streams_of(block_bytes: int, n_streams: int) -> list[Stream]:
    """Return streams that add up to `block_bytes`: small ones, and a last one that is larger."""
    small = max(1, block_bytes // (n_streams + 5))
    last = Stream("e_out", block_bytes - (n_streams - 1) * small)
    return [*(Stream(f"global{i}", small) for i in range(n_streams - 1)), last]


def bench_match(folder: Path, n_tokens: int, repeats: int) -> str:
    """Match `n_tokens` stored tokens, all there is."""
    ids = list(range(n_tokens // BLOCK_TOKENS * BLOCK_TOKENS))
    blocks = len(ids) // BLOCK_TOKENS
    with Store.open(folder, fingerprint={}, streams=[Stream("k", 16)]) as store:
        store.commit(ids, first_block=0, rows={"k": bytes(16 * blocks)})
        assert store.match(ids).blocks == blocks
        return spread(in_turns(repeats, lambda _: store.match(ids))[0])


def bench_commit(folder: Path, streams: list[Stream], blocks: int, repeats: int) -> str:
    """Commit blocks, and write and sync a plain file of as many bytes."""
    rows = {s.name: os.urandom(blocks * s.block_bytes) for s in streams}
    whole = b"".join(rows.values())

    def ours(i: int) -> None:
        ids = [(i + 1) << 20 | j for j in range(blocks * BLOCK_TOKENS)]
        done = store.commit(ids, first_block=0, rows=rows)
        assert done.blocks == blocks, done

    def plain(i: int) -> None:
        fd = os.open(folder / f"plain{i}", os.O_RDWR | os.O_CREAT)
        os.pwritev(fd, [whole], 0)
        os.fsync(fd)
        os.close(fd)

    with Store.open(folder / "kv", fingerprint={}, streams=streams, max_bytes=10**12) as store:
        return compared(len(whole), *in_turns(repeats, ours, plain), "write and fsync")


def bench_restore(
    folder: Path, streams: list[Stream], blocks: int, repeats: int, *, cold: bool
) -> str:
    """Restore blocks, and read a plain file of as many bytes into the same buffers."""
    rows = {s.name: os.urandom(blocks * s.block_bytes) for s in streams}
    buffers = {s.name: bytearray(blocks * s.block_bytes) for s in streams}
    views = [memoryview(buffer) for buffer in buffers.values()]
    path = folder / "plain"
    path.write_bytes(b"".join(rows.values()))
    ids = list(range(blocks * BLOCK_TOKENS))

    def plain(_: int) -> None:
        fd = os.open(path, os.O_RDONLY)
        offset = 0
        for view in views:
            done = 0
            while done < len(view):
                done += os.preadv(fd, [view[done:]], offset + done)
            offset += len(view)
        os.close(fd)

    def ours(_: int) -> None:
        assert store.read(match, buffers) == blocks

    def forget(_: int) -> None:
        for each in (path, *(folder / "kv" / "seg").iterdir()) if cold else ():
            fd = os.open(each, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    with Store.open(folder / "kv", fingerprint={}, streams=streams, max_bytes=10**12) as store:
        store.commit(ids, first_block=0, rows=rows)
        match = store.match(ids)
        ours(0)
        assert buffers == rows, "what was read is not what was written"
        times = in_turns(repeats, ours, plain, before=forget)
    return compared(path.stat().st_size, *times, "preadv")


def bench_room(folder: Path, rounds: int = 50, blocks: int = 8) -> str:
    """Let sessions grow in turn, block by block, and then others, in a budget for less than half of
    all; count how often the whole tree is read once it is full."""
    streams, looks, counts = [Stream("k", 3500)], [0], []
    plain = drop.load

    def counted(tables: Tables) -> dict[bytes, Node]:
        looks[0] += 1
        return plain(tables)

    drop.load = counted
    try:
        with Store.open(folder, fingerprint={}, streams=streams, max_bytes=2 << 20) as store:
            for start, n in product(range(rounds), range(1, blocks + 1)):
                session, before = start + blocks - n, looks[0]
                ids = [session << 20 | i for i in range(n * BLOCK_TOKENS)]
                have = min(store.match(ids).blocks, n)
                rows = {"k": bytes(3500 * (n - have))}
                anchor = Anchor(store.hashes(ids)[-1], f"session:{session}")
                done = store.commit(ids, first_block=have, rows=rows, anchors=[anchor])
                assert done.reason is None, done
                counts.append(looks[0] - before)
    finally:
        drop.load = plain
    full = counts[counts.index(1) :]
    return f"{sum(full)} looks at the whole tree in {len(full)} commits to a full store"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=131_072, help="tokens to match")
    parser.add_argument("--blocks", type=int, default=32, help="blocks to commit and restore")
    parser.add_argument("--block-bytes", type=int, nargs="+", default=[300_000, 1_200_000])
    parser.add_argument("--streams", type=int, nargs="+", default=[11, 40])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--cold", action="store_true", help="restore from disk, not from memory")
    parser.add_argument("--million", action="store_true", help="only this: a million blocks")
    parser.add_argument("--room", action="store_true", help="only this: a store that stays full")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ced-kv-bench-", dir=args.folder))
    load = os.getloadavg()[0]
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}; "
        f"load {load:.1f}, {idle_processors()} idle at this moment"
    )
    try:
        if args.million:
            from bench_million import bench_million

            for line in bench_million(folder, args.tokens, args.repeats):
                print(line, flush=True)
            return
        if args.room:
            print(f"room     {bench_room(folder / 'kv')}", flush=True)
            return
        found = bench_match(folder / "kv", args.tokens, args.repeats)
        print(f"match    {args.tokens} tokens: {found}", flush=True)

        for block_bytes, n_streams in product(args.block_bytes, args.streams):
            streams = streams_of(block_bytes, n_streams)
            what = f"{args.blocks} blocks of {block_bytes} bytes, {n_streams} streams"
            for name in ("commit", "restore"):
                shutil.rmtree(folder)
                folder.mkdir()
                if name == "commit":
                    found = bench_commit(folder, streams, args.blocks, args.repeats)
                else:
                    found = bench_restore(
                        folder, streams, args.blocks, args.repeats, cold=args.cold
                    )
                print(f"{name:8} {what}: {found}", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
