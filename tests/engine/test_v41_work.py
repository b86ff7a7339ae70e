"""V4.1's work is counted: valid rows per layer are the formula's, others have their own counters.

N tokens: N rows in each encoder layer, N projected at layer E, and in decoder layers min(N, R W)
when bounded, a trapezoid when exact, N when full.
"""

import random

import pytest
from v41_runs import (
    alone,
    answer,
    publish,
    slow,
    some_ids,
    with_store,
    write_small,
    write_wide,
)

from cedagent.model.block import Block
from cedagent.model.source import Source

W, E, D = 16, 4, 3
LENGTHS = [129, *map(slow, (1, 15, 16, 17, 127, 128, 300))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("w16") / "model")


def work_of(engine, ids):
    sequence = engine.sequence()
    usage = sequence.prefill(ids)
    work = sequence._state.work
    sequence.close()
    return work, usage


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("windows", [1, slow(2), slow(3)])
def test_a_bounded_cold_prefill(model, n, windows):
    work, usage = work_of(alone(model, replay_windows=windows), some_ids(n))
    replayed = min(n, windows * W)
    assert work.valid == [n] * E + [replayed] * D
    assert work.projected == n
    assert work.padded == [-n % 128] * E + [0] * D
    assert work.rerun == [0] * (E + D)
    assert (usage.encoded, usage.replayed, usage.padded) == (n, replayed, -n % 128)
    assert (usage.rerun, usage.reused_ram, usage.reused_disk, usage.reencoded) == (0, 0, 0, 0)


@pytest.mark.parametrize("n", LENGTHS)
def test_an_exact_cold_prefill_is_a_trapezoid(model, n):
    work, usage = work_of(alone(model, mode="exact"), some_ids(n))
    rows = [min(n, W + (left - 1) * (W - 1)) for left in (3, 2, 1)]
    assert work.valid == [n] * E + rows
    assert usage.replayed == rows[0]
    # Whole tiles from the one that a layer's first row is in to the one of the last token.
    whole = [(-(-n // 128) - (n - r) // 128) * 128 for r in rows]
    assert work.padded == [-n % 128] * E + [all_ - r for all_, r in zip(whole, rows, strict=True)]


@pytest.mark.parametrize("n", LENGTHS)
def test_a_full_cold_prefill_runs_every_row(model, n):
    work, usage = work_of(alone(model, mode="full"), some_ids(n))
    assert work.valid == [n] * (E + D)
    assert work.padded == [-n % 128] * (E + D)
    assert (work.projected, usage.replayed) == (n, n)


@pytest.mark.parametrize("mode", ["bounded", "exact", "full"])
def test_counters_say_what_the_layers_ran(model, monkeypatch, mode):
    """Counted at the layers: rows that are tokens, not padding and not before a layer's start."""
    ran, projected = [0] * (E + D), []
    run_block, run_tile = Block.run, Source.tile

    def spy_run(self, streams, x, rows, *others):
        ran[self.layer] += int(rows.routed.sum())
        return run_block(self, streams, x, rows, *others)

    def spy_tile(self, x, rows, stored, *, n_tokens):
        if self.layer == E:
            projected.append(min(128, n_tokens - rows.start))
        run_tile(self, x, rows, stored, n_tokens=n_tokens)

    monkeypatch.setattr(Block, "run", spy_run)
    monkeypatch.setattr(Source, "tile", spy_tile)
    work, _ = work_of(alone(model, mode=mode), some_ids(301))
    assert ran == work.valid
    assert projected == [128, 128, 45]
    assert sum(projected) == work.projected


def test_an_append_runs_its_tokens_and_the_unfinished_tile(model):
    engine = alone(model)
    sequence = engine.sequence()
    sequence.prefill(some_ids(200))
    work = sequence._state.work
    before, projected = list(work.valid), work.projected
    usage = sequence.prefill(some_ids(20, seed=1))
    assert [a - b for a, b in zip(work.valid, before, strict=True)] == [92] * E + [W] * D
    assert work.projected - projected == 92
    assert (usage.encoded, usage.reencoded, usage.reused_ram) == (92, 72, 128)


def test_decoded_tokens_run_one_row_in_every_layer(model):
    sequence = alone(model).sequence()
    sequence.prefill(some_ids(125))
    work = sequence._state.work
    before = list(work.valid)
    for token in some_ids(7, seed=1):
        sequence.feed(token)
    assert [a - b for a, b in zip(work.valid, before, strict=True)] == [7] * (E + D)
    # 125 tokens of the prefill and 3 that were decoded are encoded on the grid.
    assert sequence.settle() == 3
    assert [a - b for a, b in zip(work.valid, before, strict=True)] == [7 + 128] * E + [7] * D
    assert work.rerun == [0] * (E + D)


def test_a_rerun_has_its_own_counter(tmp_path):
    model = write_wide(tmp_path / "model")
    ids = some_ids(650)
    publish(model, tmp_path / "kv", ids)
    engine = with_store(model, tmp_path / "kv")
    sequence = engine.sequence(ids)
    usage = sequence.prefill(some_ids(3, seed=1))
    work = sequence._state.work
    assert work.rerun == [128] * 3 + [0] * 2
    assert work.valid == [13] * 3 + [100] * 2
    assert (work.projected, work.padded) == (13, [115] * 3 + [0] * 2)
    assert (usage.rerun, usage.encoded, usage.reencoded, usage.padded) == (128, 13, 10, 115)
    assert usage.reused_disk == 640
    engine.close()


def expect_sums(usage, n_tokens):
    assert usage.reused_ram + usage.reused_disk + usage.encoded == n_tokens
    assert 0 <= usage.reencoded < 128
    assert usage.reencoded <= usage.encoded
    assert usage.padded == -n_tokens % 128
    assert usage.replayed == min(n_tokens, W)
    assert usage.rerun % 128 == 0


@pytest.mark.slow
def test_usage_sums_to_the_prompt_in_every_situation(model, tmp_path):
    rng = random.Random(3)
    engine = with_store(model, tmp_path / "kv")
    sequence, known = engine.sequence(), 0
    for n in (1, 126, 1, 127, 50, 0, 5):
        usage = sequence.prefill(some_ids(n, seed=n))
        expect_sums(usage, known + n)
        assert (usage.reused_disk, usage.rerun) == (0, 0)
        for _ in range(rng.randrange(9)):
            sequence.feed(rng.randrange(300))
        before, known = known + n, len(sequence.ids)
        assert sequence.settle() == max(0, known // 128 * 128 - before)
    ids = list(sequence.ids)
    fork = sequence.fork(290)
    usage = fork.prefill([5])
    expect_sums(usage, 291)
    assert usage.reused_ram == 256
    sequence.close()
    fork.close()
    _, usage = answer(engine, ids, [7])
    expect_sums(usage, len(ids) + 1)
    assert usage.reused_disk == len(ids) // 128 * 128
    engine.close()


def test_warming_counts_what_it_encodes(model, tmp_path):
    engine = with_store(model, tmp_path / "kv")
    ids = some_ids(300)
    assert (engine.warm(ids).encoded, engine.warm(ids).reused_disk) == (256, 256)
    longer = engine.warm(ids[:256] + some_ids(128, seed=1))
    assert (longer.encoded, longer.reused_disk, longer.rerun) == (128, 256, 128)
    engine.close()
