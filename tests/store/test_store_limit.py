"""`limit`: a folder gets another budget while it is open, and is brought down to it."""

from __future__ import annotations

from typing import Any

import pytest

from ced_kvstore import evict


def test_a_limit_is_the_folders_from_then_on_and_holds_when_it_returns(kit: Any) -> None:
    store = kit.open()
    for seed in range(1, 20):
        kit.commit(store, kit.ids(20, seed=seed))
    assert store.stats().bytes_on_disk > 2 << 20
    store.limit(2 << 20)
    assert store.stats().bytes_on_disk <= store.stats().max_bytes == 2 << 20
    assert store.stats().blocks > 0
    store.close()
    with kit.open() as again:
        assert again.stats().max_bytes == 2 << 20


def test_a_limit_holds_however_much_has_to_go(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making room for a commit drops a bounded number of blocks; a limit drops them all."""
    monkeypatch.setattr(evict, "CALL_BLOCKS", 10)
    monkeypatch.setattr("ced_kvstore.drop.BATCH_BLOCKS", 10)
    store = kit.open()
    for seed in range(1, 6):
        kit.commit(store, kit.ids(20, seed=seed))
    store.limit(300_000)
    assert store.stats().bytes_on_disk <= 300_000


def test_a_limit_leaves_what_is_pinned(kit: Any) -> None:
    store = kit.open()
    kit.anchored(store, kit.ids(5), "warm", pinned=True)
    kit.commit(store, kit.ids(5, seed=2))
    store.limit(0)
    assert (store.stats().blocks, store.match(kit.ids(5)).blocks) == (5, 5)


@pytest.mark.parametrize("wrong", [-1, 1 << 62])
def test_a_limit_that_is_none_is_refused(kit: Any, wrong: int) -> None:
    store = kit.open(max_bytes=50_000_000)
    with pytest.raises(ValueError, match="max_bytes: expected a number in"):
        store.limit(wrong)
    assert store.stats().max_bytes == 50_000_000
