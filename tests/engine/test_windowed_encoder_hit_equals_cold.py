"""Windowed encoder layers: live, from RAM, a fork, disk and cold agree bit for bit all through.

From disk with the snapshots that a conversation leaves, and from a store that has none of them.
"""

import anchor_worker
import pytest
from conversation import TURNS, hold
from v41_worker import in_new_process
from windowed_runs import (
    PATHS,
    VOCAB,
    WINDOWED,
    alone,
    empty_rerun,
    slow,
    with_store,
    write_windowed,
)

from ced_kvstore import Commit
from cedagent.engine import Engine
from cedagent.engine.llama.windows import LlamaWindows

SHORT = ((127, 1, 1), (126, 1, 1), (9, 140, 2), (257, 3, 1))
"""Ends on both sides of 128 and of 256, an output longer than a tile, a closing id not fed."""
SCENARIOS = {
    "W = 100": (100, "native", SHORT, {}),
    "ten turns, W = 128": (128, "native", TURNS, {}),
    "W = 16, int8 reference": (16, "reference", SHORT, {}),
    "W = 100, R = 2, float32": (100, "float32", SHORT, {"replay_windows": 2}),
}


class Held:
    """A model, stores with and without snapshots, and the anchors of a conversation."""

    def __init__(self, folder, window, path, turns, options):
        self.window, self.path, self.options = window, path, options
        self.settings = {**PATHS[path], **options}
        self.model, self.kv = write_windowed(folder / "model", window=window), folder / "kv"
        alone(self.model, path)
        self.engine = Engine.load(self.model, kv=self.kv, **self.settings)
        self.conversation = self.engine.sequence()
        self.anchors = hold(self.conversation, self.engine, turns, vocab=VOCAB)
        self.bare = folder / "bare"
        # Its store stays open, so that other processes, which read it, add no snapshot.
        self.writer = with_store(self.model, self.bare, path, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LlamaWindows, "snapshot", lambda self, state: None)
            self.writer.sequence().prefill(self.anchors[-1].ids)

    def alone(self):
        return Engine(self.engine.family, self.model)

    def rerun_with(self, settled):
        """Rows that may be run again: the newest two snapshots of a path stay."""
        if settled == settled_tokens(self.anchors[-1]):
            return {0}
        return set(range(0, self.rerun_without(settled).pop() + 1, 128))

    def rerun_without(self, settled):
        return {empty_rerun(self.window, len(WINDOWED), settled)}

    def store(self, kind):
        """A store's folder, and the rows that are run again for a settled end."""
        if kind == "with":
            return self.kv, self.rerun_with
        return self.bare, self.rerun_without


@pytest.fixture(scope="module", params=["W = 100", *map(slow, list(SCENARIOS)[1:])])
def held(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchor_worker, "N_SAMPLED", 3)
        made = Held(tmp_path_factory.mktemp("held"), *SCENARIOS[request.param])
        yield made
        made.engine.close()
        made.writer.close()


def expect_live(results, anchors):
    for result, anchor in zip(results, anchors, strict=True):
        where = f"at {len(anchor.ids)} tokens, prefill end {anchor.prefill_end}"
        assert result["logits"] == anchor.live["logits"], where
        assert result["sampled"] == anchor.live["sampled"], where


def settled_tokens(anchor):
    return len(anchor.ids) // 128 * 128


def test_answers_at_different_anchors_differ(held):
    """So that equal digests below mean something."""
    positions = {len(anchor.ids) for anchor in held.anchors}
    assert positions >= {127, 128, 129, 255, 256, 257}
    distinct = {(tuple(anchor.ids), anchor.prefill_end) for anchor in held.anchors}
    assert len({anchor.live["logits"] for anchor in held.anchors}) == len(distinct) > 10
    assert not held.engine.notices


def test_cold_equals_live(held):
    engine = held.alone()
    expect_live([anchor_worker.run(engine, a.cold) for a in held.anchors], held.anchors)


def test_resumed_from_ram_equals_live(held):
    engine = held.alone()
    source = engine.sequence()
    source.prefill(held.anchors[-1].ids)
    results = [anchor_worker.run(engine, anchor.resumed) for anchor in held.anchors]
    expect_live(results, held.anchors)
    for result, anchor in zip(results, held.anchors, strict=True):
        assert result["usage"]["reused_ram"] == settled_tokens(anchor)
        assert result["usage"]["reencoded"] < 128
    source.close()


def test_a_fork_equals_live(held):
    for anchor in held.anchors:
        fork = held.conversation.fork(len(anchor.ids))
        usage = fork.prefill(anchor.resumed["append"] or [])
        assert usage.reused_ram == settled_tokens(anchor)
        assert anchor_worker.answer(fork)["logits"] == anchor.live["logits"]
        fork.close()


def expect_restored(results, anchors, rerun):
    expect_live(results, anchors)
    for result, anchor in zip(results, anchors, strict=True):
        usage = result["usage"]
        assert usage["reused_disk"] == settled_tokens(anchor)
        assert usage["rerun"] in rerun(settled_tokens(anchor))
        assert usage["encoded"] <= 128 + 20


@pytest.mark.parametrize("kind", ["with", "without"])
def test_restored_from_disk_equals_live(held, monkeypatch, kind):
    kv, rerun = held.store(kind)
    engine = with_store(held.model, kv, held.path, **held.options)
    # Within one process a second writer is let in.
    monkeypatch.setattr(engine.store, "commit", lambda *args, **options: Commit(0, 0, None))
    results = [anchor_worker.run(engine, anchor.resumed) for anchor in held.anchors]
    expect_restored(results, held.anchors, rerun)
    assert not engine.notices
    engine.close()


ELSEWHERE = {
    "reference": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "float32": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
    "native": {"OMP_NUM_THREADS": "2"},
}
"""Another number of threads; and no VNNI, where that is another int8 product."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["with", "without"])
def test_restored_in_a_new_process_equals_live(held, kind):
    kv, rerun = held.store(kind)
    tasks = [anchor.resumed for anchor in held.anchors]
    environment = ELSEWHERE[held.path] if kind == "without" else {"OMP_NUM_THREADS": "1"}
    got = in_new_process(
        held.model, tasks, kv=kv, n_sampled=3, environment=environment, **held.settings
    )
    expect_restored(got["results"], held.anchors, rerun)
    assert not [notice for notice in got["notices"] if "no VNNI" not in notice]
