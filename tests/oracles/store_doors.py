"""Every door of a store, called one after the other, whatever its files hold."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Anchor, Store, StoreError

MOST_BYTES = 512 << 20
MOST_SECONDS = 30


@contextlib.contextmanager
def modest() -> Iterator[None]:
    """Fail what hangs, and what asks for more memory than any small store is worth."""

    def hangs(*_: object) -> None:
        pytest.fail("it hangs")

    before = resource.getrlimit(resource.RLIMIT_AS)
    limit, told = before[0], Path("/proc/self/statm")
    if told.exists():
        limit = int(told.read_text().split()[0]) * resource.getpagesize() + MOST_BYTES
    handler = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(MOST_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def look_through(kit: Any, store: Store, ids: Sequence[int]) -> int:
    """Whatever only looks; rows must be right. Returns the good blocks."""
    good: int = kit.good_blocks(store, ids)
    keys = store.hashes(ids)
    assert store.read_snapshot(keys[-1]) in (None, b"w" * 4000)
    store.explain(ids)
    store.explain([*ids[:200], 7_000_000, *ids[201:]])
    store.anchors()
    store.stats()
    store.du()
    store.tree()
    assert store.notice is None or "\n" not in store.notice
    for key in keys:
        with contextlib.suppress(ValueError):
            store.show(key.hex())
    store.verify()
    return good


def change_all(
    kit: Any, store: Store, ids: Sequence[int], archive: Path, *, backwards: bool
) -> None:
    """Whatever changes the store, in one order or the other; rows must be right."""
    keys = store.hashes(ids)

    def commit() -> None:
        snapshots = {keys[-1]: b"w" * 4000}
        kit.commit(store, ids, anchors=[Anchor(keys[-1], "new")], snapshots=snapshots)
        kit.good_blocks(store, ids)

    def archives() -> None:
        with contextlib.suppress(StoreError):
            store.export(archive)
            store.import_(archive)

    acts: list[Callable[[], object]] = [
        archives,
        lambda: store.pin(keys[1]),
        lambda: store.quarantine(keys[2:3]),
        commit,
        lambda: kit.commit(store, kit.ids(9, seed=5)),
        store.compact,
        lambda: store.remove("session:a", purge=True),
        lambda: store.remove(keys[2]),
        lambda: store.verify(fix=True),
        store.gc,
        lambda: store.evict(200_000),
        lambda: store.match(ids),
    ]
    for act in reversed(acts) if backwards else acts:
        act()
    commit()
    store.verify(fix=True)
