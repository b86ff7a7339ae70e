"""V4.1's Engram looks back over ends of tiles, prefills, outputs and restores, by the ids alone.

What is hashed for a token is compared with one pass over the whole text, wherever the token was
run: in a tile, in a re-run, or as a decoded row.
"""

import pytest
from v41_runs import (
    alone,
    answer,
    cold,
    publish,
    slow,
    some_ids,
    tensor_bytes,
    with_store,
    write_small,
)

from cedagent.model.encoder import Encoder
from cedagent.model.engram import hash_ids
from cedagent.model.engram_map import load_token_map

LONGEST = 4
"""Tokens in the longest n-gram."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("engram") / "model")


@pytest.fixture
def hashed(monkeypatch):
    """(first position, hashes of tokens, was it a re-run) of every forward through the encoder."""
    found = []
    tile, row = Encoder.tile, Encoder.row

    def spy_tile(self, x, hashes, rows, kept, **options):
        found.append((rows.start, hashes[rows.routed], options.get("compare") is not None))
        return tile(self, x, hashes, rows, kept, **options)

    def spy_row(self, x, hashes, rows, kept):
        found.append((rows.start, hashes.clone(), False))
        return row(self, x, hashes, rows, kept)

    monkeypatch.setattr(Encoder, "tile", spy_tile)
    monkeypatch.setattr(Encoder, "row", spy_row)
    return found


def expect_as_in_one_pass(engine, ids, hashed):
    config = engine.family.config
    assert config.engram_max_ngram_size == LONGEST
    expected = hash_ids(config, load_token_map(engine.model_dir, config), ids)
    for start, hashes, _ in hashed:
        assert hashes.equal(expected[start : start + len(hashes)]), f"from {start} on"


@pytest.mark.parametrize(
    "cuts", [(126, 127, 128, 129, 130), *map(slow, ((), (1, 2, 3), (254, 257)))]
)
def test_over_every_cut_of_a_prefill(model, hashed, cuts):
    engine, ids = alone(model), some_ids(300)
    sequence = engine.sequence()
    for a, b in zip((0, *cuts), (*cuts, 300), strict=True):
        sequence.prefill(ids[a:b])
    assert {start for start, _, _ in hashed} == {0, 128, 256}
    expect_as_in_one_pass(engine, ids, hashed)


@pytest.mark.parametrize("prefill", [125, *map(slow, (1, 2, 127, 128, 129))])
def test_over_decoded_tokens_and_their_settling(model, hashed, prefill):
    engine, ids = alone(model), some_ids(prefill + 12)
    sequence = engine.sequence()
    sequence.prefill(ids[:prefill])
    for token in ids[prefill:-2]:
        sequence.feed(token)
    sequence.append_unseen(ids[-2:])
    sequence.settle()
    sequence.prefill([])
    assert {start for start, _, _ in hashed} >= set(range(prefill, prefill + 10))
    expect_as_in_one_pass(engine, ids, hashed)


@pytest.mark.parametrize("known", [257, slow(256), slow(300)])
def test_over_a_restore_and_its_rerun(model, tmp_path, hashed, known):
    ids = some_ids(known + 9)
    publish(model, tmp_path / "kv", ids[:known])
    engine = with_store(model, tmp_path / "kv")
    hashed.clear()
    got, usage = answer(engine, ids[:known], ids[known:])
    assert [(start, rerun) for start, _, rerun in hashed] == [(128, True), (256, False)]
    expect_as_in_one_pass(engine, ids, hashed)
    assert (got, usage.reused_disk) == (cold(model, ids), 256)
    engine.close()


@pytest.mark.parametrize("back", [3, slow(1), slow(2)])
def test_a_lost_id_before_the_anchor_would_show(model, tmp_path, monkeypatch, back):
    """The ids before a restore's first tile come from the text, so a hit without them differs."""
    ids = some_ids(300)
    publish(model, tmp_path / "kv", ids)
    expected = cold(model, [*ids, 5])
    engine = with_store(model, tmp_path / "kv")
    hashes = engine.family.model.hashes

    def short_of_memory(known, start, stop):
        if start:
            known = [*known[: start - back], 11, *known[start - back + 1 :]]
        return hashes(known, start, stop)

    monkeypatch.setattr(engine.family.model, "hashes", short_of_memory)
    sequence = engine.sequence(ids)
    sequence.prefill([5])
    assert tensor_bytes(sequence.logits) != expected
    engine.close()
