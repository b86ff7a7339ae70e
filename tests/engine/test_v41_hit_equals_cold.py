"""V4.1: live, from RAM, from disk and cold agree bit for bit all through a conversation."""

import anchor_worker
import pytest
from conversation import TURNS, hold
from v41_runs import (
    VOCAB,
    alone,
    answer,
    cold,
    slow,
    some_ids,
    tensor_bytes,
    with_store,
    write_small,
    write_wide,
)
from v41_worker import in_new_process

from cedagent.engine import Engine

EDGES = {127, 128, 129, 255, 256, 257}
EOS = 1
N_SAMPLED = 1
SHORT = ((127, 1, 1), (126, 1, 1))
"""Prefills end at 127 and 255, outputs at 129 and 257, with a closing id that was not fed."""
SCENARIOS = {
    "short": (write_small, SHORT, {}),
    "ten turns": (write_small, TURNS, {}),
    "ten turns, W = 100": (write_wide, TURNS, {}),
    "six turns, W = 100, R = 2": (write_wide, TURNS[:6], {"replay_windows": 2}),
    "six turns, exact": (write_small, TURNS[:6], {"mode": "exact"}),
    "six turns, full": (write_small, TURNS[:6], {"mode": "full"}),
}


class Held:
    """A model, a store, and the anchors of a conversation that was held with both."""

    def __init__(self, folder, write, turns, options):
        self.model, self.kv, self.options = write(folder / "model"), folder / "kv", options
        self.engine = Engine.load(self.model, kv=self.kv, **options)
        self.conversation = self.engine.sequence()
        self.anchors = hold(self.conversation, self.engine, turns, vocab=VOCAB)


@pytest.fixture(scope="module", params=["short", *map(slow, list(SCENARIOS)[1:])])
def held(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchor_worker, "N_SAMPLED", N_SAMPLED)
        made = Held(tmp_path_factory.mktemp("held"), *SCENARIOS[request.param])
        yield made
        made.engine.close()


def expect_live(results, anchors):
    for result, anchor in zip(results, anchors, strict=True):
        where = f"at {len(anchor.ids)} tokens, prefill end {anchor.prefill_end}"
        assert result["logits"] == anchor.live["logits"], where
        assert result["sampled"] == anchor.live["sampled"], where


def settled_tokens(anchor):
    return len(anchor.ids) // 128 * 128


@pytest.mark.slow
def test_answers_at_different_anchors_differ(held):
    """So that equal digests below mean something."""
    positions = {len(anchor.ids) for anchor in held.anchors}
    assert positions >= EDGES
    distinct = {(tuple(anchor.ids), anchor.prefill_end) for anchor in held.anchors}
    assert len({anchor.live["logits"] for anchor in held.anchors}) == len(distinct) > 5
    assert not all(anchor.is_prefill_end for anchor in held.anchors)
    assert not held.engine.notices


def test_cold_equals_live(held):
    engine = alone(held.model, **held.options)
    expect_live([anchor_worker.run(engine, a.cold) for a in held.anchors], held.anchors)


@pytest.mark.slow
def test_resumed_from_ram_equals_live(held):
    engine = alone(held.model, **held.options)
    source = engine.sequence()
    source.prefill(held.anchors[-1].ids)
    results = [anchor_worker.run(engine, anchor.resumed) for anchor in held.anchors]
    expect_live(results, held.anchors)
    for result, anchor in zip(results, held.anchors, strict=True):
        assert result["usage"]["reused_ram"] == settled_tokens(anchor)
        assert result["usage"]["reencoded"] < 128
    source.close()


@pytest.mark.slow
def test_a_fork_equals_live(held):
    for anchor in held.anchors:
        fork = held.conversation.fork(len(anchor.ids))
        usage = fork.prefill(anchor.resumed["append"] or [])
        assert usage.reused_ram == settled_tokens(anchor)
        assert anchor_worker.answer(fork)["logits"] == anchor.live["logits"]
        fork.close()


def expect_restored(results, anchors):
    expect_live(results, anchors)
    for result, anchor in zip(results, anchors, strict=True):
        usage = result["usage"]
        assert usage["reused_disk"] == settled_tokens(anchor)
        assert (usage["rerun"] > 0) is (settled_tokens(anchor) > 0)
        assert usage["encoded"] <= 128 + 20


def test_restored_from_disk_equals_live(held):
    engine = with_store(held.model, held.kv, **held.options)
    results = [anchor_worker.run(engine, anchor.resumed) for anchor in held.anchors]
    expect_restored(results, held.anchors)
    assert not engine.notices
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{}, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}])
def test_restored_in_a_new_process_equals_live(held, environment):
    tasks = [anchor.resumed for anchor in held.anchors]
    got = in_new_process(
        held.model,
        tasks,
        kv=held.kv,
        n_sampled=N_SAMPLED,
        environment=environment,
        **held.options,
    )
    expect_restored(got["results"], held.anchors)
    assert not got["notices"]


@pytest.mark.parametrize("is_fed", [True, slow(False)], ids=["fed", "not fed"])
def test_an_output_may_end_with_its_last_token_fed_or_not(tmp_path, is_fed):
    model = write_small(tmp_path / "model")
    engine = with_store(model, tmp_path / "kv")
    live = engine.sequence()
    live.prefill(some_ids(253))
    for token in some_ids(3, seed=1):
        live.feed(token)
    if is_fed:
        live.feed(EOS)
    else:
        live.append_unseen([EOS])
    live.settle()
    ids, suffix = list(live.ids), some_ids(9, seed=2)
    assert ids[-1] == EOS
    live.prefill(suffix)
    expected = cold(model, ids + suffix)
    assert tensor_bytes(live.logits) == expected
    live.close()
    engine.close()
    restarted = with_store(model, tmp_path / "kv")
    got, usage = answer(restarted, ids, suffix)
    assert (got, usage.reused_disk, usage.encoded) == (expected, 256, 10)
    restarted.close()
