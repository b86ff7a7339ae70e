"""V4.1: whatever a session went through, the logits after its next append are a cold run's.

Appends, outputs, forks behind and at the end, restarts with other settings, stops at any poll and
lost snapshots, in any order; after every append that was not stopped the bits are compared.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from v41_runs import cold, some_ids, tensor_bytes, with_store, write_wide

LONGEST = 800
OPTIONS = ({}, {"replay_windows": 2}, {"mode": "exact"}, {"mode": "full"})
STEPS = ("append", "append", "output", "fork", "restart", "stopped append", "lose snapshots")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_wide(tmp_path_factory.mktemp("w100") / "model")


class Session:
    """One sequence on one store, and what it should hold."""

    def __init__(self, model, kv):
        self.model, self.kv, self.options = model, kv, {}
        self.engine = with_store(model, kv)
        self.sequence = self.engine.sequence()
        self.n_steps = 0

    def fresh(self, n):
        """Ids that no other step has appended."""
        self.n_steps += 1
        room = LONGEST - len(self.sequence.ids)
        return some_ids(min(n, room), seed=self.n_steps)

    def append(self, n):
        new = self.fresh(n)
        if not self.sequence.ids and not new:
            new = [7]
        usage = self.sequence.prefill(new)
        ids = self.sequence.ids
        assert tensor_bytes(self.sequence.logits) == cold(self.model, ids, **self.options)
        assert usage.reused_ram + usage.reused_disk + usage.encoded == len(ids)

    def stopped_append(self, n, poll):
        polls = iter([*[False] * poll, True])
        if self.sequence.ids or n:
            self.sequence.prefill(self.fresh(n) or [9], cancelled=lambda: next(polls, False))

    def output(self, n, n_closing, settled):
        self.append(1)
        for token in self.fresh(n):
            self.sequence.feed(token)
        self.sequence.append_unseen(self.fresh(n_closing))
        if settled:
            self.sequence.settle()

    def fork(self, part, closed):
        old = self.sequence
        self.sequence = old.fork(int(part * len(old.ids)))
        if closed:
            old.close()

    def restart(self, options):
        ids = self.sequence.ids
        self.close()
        self.options, self.engine = options, with_store(self.model, self.kv, **options)
        self.sequence = self.engine.sequence(ids)

    def lose_snapshots(self):
        self.engine.store.read_snapshot = lambda block_hash: None

    def close(self):
        # Nothing was wrong, so there was nothing to say.
        assert self.engine.notices == []
        self.engine.close()


def take_steps(model, kv, data, most):
    session = Session(model, kv)
    lengths = st.sampled_from((0, 1, 5, 99, 100, 101, 127, 128, 129, 255, 256, 257, 300))
    for _ in range(data.draw(st.integers(2, most), label="steps")):
        match data.draw(st.sampled_from(STEPS)):
            case "append":
                session.append(data.draw(lengths))
            case "output":
                closing = data.draw(st.integers(0, 2))
                session.output(data.draw(st.integers(1, 9)), closing, data.draw(st.booleans()))
            case "fork":
                session.fork(data.draw(st.floats(0, 1)), data.draw(st.booleans()))
            case "restart":
                session.restart(data.draw(st.sampled_from(OPTIONS)))
            case "stopped append":
                session.stopped_append(data.draw(lengths), data.draw(st.integers(0, 6)))
            case "lose snapshots":
                session.lose_snapshots()
    session.append(3)
    session.close()


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_few_steps(model, tmp_path_factory, data):
    take_steps(model, tmp_path_factory.mktemp("kv") / "kv", data, 3)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_many_steps(model, tmp_path_factory, data):
    take_steps(model, tmp_path_factory.mktemp("kv") / "kv", data, 9)
