"""The promises of the replay and of a hit, on the model that people run."""

import random

import anchor_worker
import pytest
import torch
from conversation import hold, in_new_process

from cedagent.engine import Engine
from cedagent.upcycle.pull import pull

pytestmark = pytest.mark.slow

TURNS = ((300, 6, 2), (5, 6, 2), (700, 6, 2), (124, 2, 0))
"""Prefill ends: 313 after a 5-token result, 1,021 after a 700-token one, 1,153 = 9 * 128 + 1."""

ENDS = (313, 1021, 1153)


@pytest.fixture(scope="module")
def model():
    return pull()


@pytest.fixture(scope="module")
def kv(tmp_path_factory):
    return tmp_path_factory.mktemp("kv")


@pytest.fixture(scope="module")
def anchors(model, kv):
    engine = Engine.load(model, kv=kv)
    found = hold(engine.sequence(), engine, TURNS, vocab=40_000)
    engine.close()
    chosen = [anchor for anchor in found if anchor.is_prefill_end and len(anchor.ids) in ENDS]
    assert [len(anchor.ids) for anchor in chosen] == list(ENDS)
    return chosen


def expect_live(results, anchors):
    for result, anchor in zip(results, anchors, strict=True):
        assert result["logits"] == anchor.live["logits"], f"at {len(anchor.ids)} tokens"
        assert result["sampled"] == anchor.live["sampled"], f"at {len(anchor.ids)} tokens"


@pytest.mark.parametrize("precision", ["int8", "float32"])
def test_exact_equals_full_at_1500_tokens(model, precision):
    ids = random.Random(1).choices(range(40_000), k=1500)
    answers = []
    for mode in ("full", "exact"):
        sequence = Engine.load(model, precision=precision, mode=mode).sequence()
        usage = sequence.prefill(ids)
        windows = [cache.rows(1500 - 128, 1500) for cache in sequence._state.windows]
        answers.append((sequence.logits, windows, usage.replayed))
    (full, full_windows, _), (exact, exact_windows, replayed) = answers
    assert torch.equal(full, exact)
    assert replayed == 128 + 9 * 127
    assert len(full_windows) == 10
    for a, b in zip(full_windows, exact_windows, strict=True):
        assert torch.equal(a.codes, b.codes)


def test_live_ram_disk_and_cold_agree(model, kv, anchors):
    cold = Engine.load(model)
    expect_live([anchor_worker.run(cold, anchor.cold) for anchor in anchors], anchors)
    holder = cold.sequence()
    holder.prefill(anchors[-1].ids)
    from_ram = [anchor_worker.run(cold, anchor.resumed) for anchor in anchors]
    assert [result["usage"]["reused_ram"] for result in from_ram] == [256, 896, 1152]
    expect_live(from_ram, anchors)
    got = in_new_process(model, [anchor.resumed for anchor in anchors], kv=kv)
    assert [result["usage"]["reused_disk"] for result in got["results"]] == [256, 896, 1152]
    expect_live(got["results"], anchors)


@pytest.mark.parametrize(
    "environment",
    [{"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}, {"ONEDNN_MAX_CPU_ISA": "AVX2"}],
    ids=["one thread", "without VNNI"],
)
def test_one_thread_and_the_fallback_agree(model, kv, anchors, environment):
    anchor = anchors[1]
    got = in_new_process(model, [anchor.resumed, anchor.cold], kv=kv, **environment)
    expect_live(got["results"], [anchor, anchor])
    assert got["results"][0]["usage"]["reused_disk"] == 896
    if "OMP_NUM_THREADS" in environment:
        assert got["info"]["threads"] == 1
