"""The promise: live, from RAM, from disk in a new process, and cold agree bit for bit."""

import anchor_worker
import pytest
from conversation import hold, in_new_process

from cedagent.engine import Engine
from cedagent.model.tiny import write_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("int8"), vocab_size=331)


@pytest.fixture(scope="module")
def kv(tmp_path_factory):
    return tmp_path_factory.mktemp("kv")


@pytest.fixture(scope="module")
def engine(model, kv):
    with_store = Engine.load(model, kv=kv)
    yield with_store
    with_store.close()


@pytest.fixture(scope="module")
def conversation(engine):
    return engine.sequence()


@pytest.fixture(scope="module")
def anchors(engine, conversation):
    found = hold(conversation, engine)
    positions = {len(anchor.ids) for anchor in found}
    assert {127, 128, 129, 255, 256, 257} <= positions
    assert any(anchor.is_prefill_end for anchor in found)
    assert not all(anchor.is_prefill_end for anchor in found)
    return found


def expect_live(results, anchors):
    assert len(results) == len(anchors)
    for result, anchor in zip(results, anchors, strict=True):
        where = f"at {len(anchor.ids)} tokens, prefill end {anchor.prefill_end}"
        assert result["logits"] == anchor.live["logits"], where
        assert result["sampled"] == anchor.live["sampled"], where


def settled_tokens(anchor):
    return len(anchor.ids) // 128 * 128


def test_answers_at_different_anchors_differ(anchors):
    """So that equal digests below mean something."""
    distinct = {(tuple(anchor.ids), anchor.prefill_end) for anchor in anchors}
    assert len({anchor.live["logits"] for anchor in anchors}) == len(distinct) > 20
    assert len({tuple(anchor.live["sampled"]) for anchor in anchors}) > len(distinct) // 2


def test_cold_equals_live(model, anchors):
    cold = Engine.load(model)
    expect_live([anchor_worker.run(cold, anchor.cold) for anchor in anchors], anchors)


def test_resumed_from_ram_equals_live(model, anchors):
    engine = Engine.load(model)
    source = engine.sequence()
    source.prefill(anchors[-1].ids)
    results = [anchor_worker.run(engine, anchor.resumed) for anchor in anchors]
    expect_live(results, anchors)
    for result, anchor in zip(results, anchors, strict=True):
        assert result["usage"]["reused_ram"] == settled_tokens(anchor)
        assert result["usage"]["reencoded"] < 128


def test_a_fork_equals_live(engine, conversation, anchors):
    for anchor in anchors[::5]:
        fork = conversation.fork(len(anchor.ids))
        resumed = anchor.resumed
        usage = fork.prefill(resumed["append"] or [])
        assert usage.reused_ram == settled_tokens(anchor)
        assert anchor_worker.answer(fork)["logits"] == anchor.live["logits"]


def test_restored_from_disk_in_a_new_process_equals_live(model, kv, anchors):
    got = in_new_process(model, [anchor.resumed for anchor in anchors], kv=kv)
    expect_live(got["results"], anchors)
    for result, anchor in zip(got["results"], anchors, strict=True):
        assert result["usage"]["reused_disk"] == settled_tokens(anchor)
        assert result["usage"]["encoded"] <= 128 + 20
    # Beside another process that has it open, which is nothing to speak of.
    assert got["notices"] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["resumed", "cold"])
def test_one_thread_gives_the_same_bits(model, kv, anchors, kind):
    tasks = [getattr(anchor, kind) for anchor in anchors]
    where = kv if kind == "resumed" else None
    got = in_new_process(model, tasks, kv=where, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    assert got["info"]["threads"] == 1
    expect_live(got["results"], anchors)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["resumed", "cold"])
def test_the_fallback_without_vnni_gives_the_same_bits(model, kv, anchors, kind):
    tasks = [getattr(anchor, kind) for anchor in anchors]
    where = kv if kind == "resumed" else None
    got = in_new_process(model, tasks, kv=where, ONEDNN_MAX_CPU_ISA="AVX2")
    assert any("int8_fp32" in notice for notice in got["notices"]) == (
        got["info"]["impl"] == "int8_fp32"
    )
    expect_live(got["results"], anchors)
    if kind == "resumed":
        assert any(result["usage"]["reused_disk"] for result in got["results"])


def test_every_split_of_an_append_gives_the_same_prefill(model, anchors):
    ids = anchors[-1].ids[:400]
    engine = Engine.load(model)
    expected = anchor_worker.run(engine, {"known": [], "prefill": ids, "feed": [], "append": None})
    for cut in (1, 2, 126, 127, 128, 129, 131, 255, 256, 257, 399):
        split = Engine.load(model).sequence()
        split.prefill(ids[:cut])
        split.prefill(ids[cut:])
        assert anchor_worker.answer(split)["logits"] == expected["logits"]


def test_going_on_with_a_stopped_output_is_an_append_of_nothing(model, anchors):
    anchor = next(a for a in anchors if len(a.ids) > a.prefill_end + 3)
    live = Engine.load(model).sequence()
    live.prefill(anchor.ids[: anchor.prefill_end])
    for token in anchor.ids[anchor.prefill_end :]:
        live.feed(token)
    live.settle()
    live.prefill([])
    cold = Engine.load(model).sequence()
    cold.prefill(anchor.ids)
    assert anchor_worker.answer(live)["logits"] == anchor_worker.answer(cold)["logits"]
