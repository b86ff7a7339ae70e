"""A miss says why: the field, the first differing token, or what happened to the block."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ced_kvstore import Anchor, Stream


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("family", "other"),
        ("weights.layers.3", "cd" * 32),
        ("torch", "2.14.0"),
        ("rope", "0x1p+1"),
        ("a_new_field", 1),
    ],
)
def test_every_fingerprint_field_changed_alone_is_a_miss_that_names_it(
    kit: Any, field: str, value: str
) -> None:
    kit.commit(kit.open(), kit.ids(3))
    store = kit.open(fingerprint={**kit.fingerprint, field: value})
    match = store.match(kit.ids(3))
    assert (match.blocks, match.reason) == (0, f"fingerprint:{field}")
    told = store.explain(kit.ids(3))
    assert (told.reason, told.field) == (f"fingerprint:{field}", field)
    assert (told.stored, told.ours) == (kit.fingerprint.get(field), value)


def test_a_field_that_went_away_is_named(kit: Any) -> None:
    kit.commit(kit.open(), kit.ids(3))
    fewer = {name: value for name, value in kit.fingerprint.items() if name != "rope"}
    told = kit.open(fingerprint=fewer).explain(kit.ids(3))
    # A field that is None and one that is absent make different hashes.
    assert told.reason == "fingerprint:rope"


@pytest.mark.parametrize(
    ("streams", "field"),
    [
        ((Stream("k", 1004), Stream("v", 517), Stream("e_out", 2049)), "stream_bytes.k"),
        ((Stream("v", 517), Stream("k", 1003), Stream("e_out", 2049)), "stream_order"),
    ],
)
def test_other_streams_are_another_fingerprint(kit: Any, streams: Any, field: str) -> None:
    kit.commit(kit.open(), kit.ids(3))
    assert kit.open(streams=streams).explain(kit.ids(3)).field == field


def test_fields_that_hash_differently_are_a_miss_that_names_the_field(kit: Any) -> None:
    values = [True, False, 1, 0, "1", "True", "", None]
    stores = [kit.open(fingerprint={"a": 1, "flag": value, "z": True}) for value in values]
    for seed, store in enumerate(stores):
        kit.commit(store, kit.ids(1, seed=seed))
    for (seed, stored), (at, ours) in itertools.permutations(enumerate(values), 2):
        ids = kit.ids(1, seed=seed)
        assert stores[at].match(ids).reason == "fingerprint:flag", (stored, ours)
        told = stores[at].explain(ids)
        assert (told.field, repr(told.stored), told.ours) == ("flag", repr(stored), ours)


def test_a_field_of_another_type_makes_a_fingerprint_less_near(kit: Any) -> None:
    # Several, as of two that are as near as each other either may be taken.
    for seed in range(8):
        ids = kit.ids(1, seed=seed)
        kit.commit(kit.open(fingerprint={"a": True, "b": f"far {seed}"}), ids)
        kit.commit(kit.open(fingerprint={"a": 1, "b": f"near {seed}"}), ids)
        assert kit.open(fingerprint={"a": 1, "b": "z"}).explain(ids).stored == f"near {seed}"


def test_the_nearest_of_several_fingerprints_is_named(kit: Any) -> None:
    far = {**kit.fingerprint, "family": "x", "rope": "y"}
    kit.commit(kit.open(fingerprint=far), kit.ids(3))
    kit.commit(kit.open(), kit.ids(3))
    store = kit.open(fingerprint={**kit.fingerprint, "torch": "9"})
    assert store.explain(kit.ids(3)).field == "torch"


def test_a_fingerprint_that_never_stored_these_ids_is_not_blamed(kit: Any) -> None:
    kit.commit(kit.open(), kit.ids(3))
    store = kit.open(fingerprint={**kit.fingerprint, "torch": "9"})
    assert store.explain(kit.ids(3, seed=1)).reason == "never_stored"


@pytest.mark.parametrize("at", [0, 1, 127, 128, 129, 383, 639])
def test_the_first_differing_token_is_named(kit: Any, at: int) -> None:
    store = kit.open()
    ids = kit.ids(5)
    kit.commit(store, ids)
    kit.commit(store, kit.ids(1, seed=3))
    given = [*ids[:at], 7_000_000, *ids[at + 1 :]]
    told = store.explain(given)
    assert (told.reason, told.position, told.blocks) == ("diverged", at, at // 128)
    assert (told.stored_id, told.given_id) == (ids[at], 7_000_000)
    assert told.block_position == at // 128 * 128
    assert told.stored_ids == tuple(ids[told.block_position : told.block_position + 128])


def test_among_several_branches_the_nearest_is_named(kit: Any) -> None:
    store = kit.open()
    base = kit.ids(2)
    for at in (10, 90, 50):
        block = [*range(128)]
        block[at:] = [1_000_000 + at] * (128 - at)
        kit.commit(store, base + block)
    told = store.explain(base + list(range(128)))
    assert (told.position, told.stored_id, told.given_id) == (256 + 90, 1_000_090, 90)


def test_a_tail_of_less_than_a_block_is_compared_too(kit: Any) -> None:
    store = kit.open()
    ids = kit.ids(2)
    kit.commit(store, ids)
    assert store.explain(ids[:50]).reason == "short"
    told = store.explain([*ids[:50], 9, *ids[51:60]])
    assert (told.reason, told.position, told.stored_id) == ("diverged", 50, 50)
    told = store.explain([*ids[:200], 9])
    assert (told.reason, told.blocks, told.position) == ("hit", 1, 200)
    assert (told.stored_id, told.given_id) == (200, 9)


def test_plain_hits_and_misses(kit: Any) -> None:
    store = kit.open()
    assert store.explain(kit.ids(2)).reason == "never_stored"
    kit.commit(store, kit.ids(2))
    told = store.explain(kit.ids(2))
    assert (told.reason, told.position, told.stored_id) == ("hit", 256, None)
    told = store.explain(kit.ids(3))
    assert (told.reason, told.position, told.blocks) == ("never_stored", 256, 2)


def test_evicted_says_when_and_why(kit: Any) -> None:
    store = kit.open()
    ids = kit.ids(3)
    kit.anchored(store, ids, "session:x")
    store.remove("session:x")
    told = store.explain(ids)
    assert (told.reason, told.stored) == ("evicted", "removed")
    assert told.when is not None
    assert store.match(ids).reason == "evicted"
    kit.commit(store, ids)
    assert store.explain(ids).reason == "hit"


def test_explaining_changes_nothing(kit: Any) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(2), anchors=[Anchor(store.root, "x")])
    before = {p: p.read_bytes() for p in kit.directory.rglob("*") if p.is_file()}
    lookups = store.stats().lookups
    store.explain(kit.ids(2))
    store.explain(kit.ids(2, seed=4))
    assert store.stats().lookups == lookups
    after = {p: p.read_bytes() for p in kit.directory.rglob("*") if p.is_file()}
    del before[kit.directory / "index" / "lock.mdb"], after[kit.directory / "index" / "lock.mdb"]
    assert after == before
