"""Windowed encoder layers: whatever a session went through, it holds what a cold run leaves.

Models of any shape; appends, outputs, forks, a second sequence, restarts, stops at any poll and
lost snapshots, in any order. After every append all rows are compared, not the logits alone.
"""

import functools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from windowed_runs import PATHS, alone, some_ids, taken, with_store, write_windowed

from cedagent.engine import Engine

LONGEST = 620
SHAPES = (
    # (W, encoder layers, global ones, layers)
    (100, 5, (1, 4), 7),
    (128, 4, (3,), 5),
    (1, 3, (1,), 4),
    (17, 3, (0, 2), 4),
    (130, 2, (), 3),
    (300, 3, (0,), 4),
    (64, 4, (0, 2), 4),
    (129, 1, (), 1),
)
"""The last encoder layer windowed or global, none global, no decoder, W beyond a tile and tiny."""
MODES = ({}, {"replay_windows": 2}, {"mode": "exact"}, {"mode": "full"})
LENGTHS = (0, 1, 2, 63, 99, 100, 101, 126, 127, 128, 129, 255, 257, 300)
STEPS = ("append", "append", "append", "output", "fork", "warm", "restart", "stop", "lose")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def of(shape):
        window, n_encoder, global_layers, n_layers = shape
        return write_windowed(
            folder / f"{SHAPES.index(shape)}",
            window=window,
            n_encoder_layers=n_encoder,
            global_layers=global_layers,
            n_layers=n_layers,
            n_heads=4,
            n_kv_heads=2,
            vocab_size=336,
        )

    return of


class Session:
    """One sequence on one store, perhaps another beside it, and what it should hold."""

    def __init__(self, model, kv, path, seed):
        self.model, self.kv, self.path, self.options = model, kv, path, {}
        self.random = random.Random(seed)
        self.text = some_ids(LONGEST + 40, seed=9)
        self.engine = with_store(model, kv, path)
        self.sequence = self.engine.sequence()

    def fresh(self, n):
        """The next ids of the common text, or now and then others."""
        start = len(self.sequence.ids)
        new = self.text[start : min(start + n, LONGEST)]
        return new if self.random.random() < 0.7 else self.random.choices(range(3, 331), k=len(new))

    def held(self, sequence):
        return taken(sequence, self.engine.family.config.decoder_window)

    def expect_cold(self):
        """That the sequence holds what one prefill and decoded tokens leave, where nothing is."""
        ids, end = self.sequence.ids, self.sequence._prefill_end
        family = alone(self.model, self.path, **self.options).family
        other = Engine(family, self.model).sequence()
        other.prefill(ids[:end])
        for token in ids[end:]:
            other.feed(token)
        assert self.held(self.sequence) == self.held(other)

    def append(self, n):
        new = self.fresh(n)
        self.sequence.prefill(new if new or self.sequence.ids else [7])
        self.expect_cold()

    def output(self, n):
        self.append(1)
        for token in self.random.choices(range(3, 331), k=n):
            self.sequence.feed(token)
        self.expect_cold()
        if self.random.random() < 0.7:
            self.sequence.append_unseen([5] * self.random.randrange(3))
            self.sequence.settle()

    def fork(self, part):
        old = self.sequence
        self.sequence = old.fork(int(part * len(old.ids)))
        if self.random.random() < 0.3:
            old.close()

    def restart(self, options):
        ids = self.sequence.ids
        self.close()
        self.options = options
        self.engine = with_store(self.model, self.kv, self.path, **options)
        self.sequence = self.engine.sequence(ids)

    def stop(self, n, poll):
        polls = iter([*[False] * poll, True])
        self.sequence.prefill(self.fresh(n) or [9], cancelled=lambda: next(polls, False))

    def lose(self):
        self.engine.store.read_snapshot = lambda block_hash: None

    def close(self):
        # Nothing was wrong, so there was nothing to say.
        assert self.engine.notices == []
        self.engine.close()


def take_steps(models, kv, data, most):
    model = models(data.draw(st.sampled_from(SHAPES), label="shape"))
    path = data.draw(st.sampled_from(list(PATHS)), label="path")
    session = Session(model, kv, path, data.draw(st.integers(0, 99), label="seed"))
    lengths = st.sampled_from(LENGTHS)
    for _ in range(data.draw(st.integers(2, most), label="steps")):
        match data.draw(st.sampled_from(STEPS)):
            case "append":
                session.append(data.draw(lengths))
            case "output":
                session.output(data.draw(st.sampled_from((1, 9, 140))))
            case "fork":
                session.fork(data.draw(st.floats(0, 1)))
            case "warm":
                session.engine.warm(session.text[: data.draw(st.integers(1, LONGEST))])
            case "restart":
                session.restart(data.draw(st.sampled_from(MODES)))
            case "stop":
                session.stop(data.draw(lengths), data.draw(st.integers(0, 5)))
            case "lose":
                session.lose()
    session.append(3)
    session.close()


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_few_steps(models, tmp_path_factory, data):
    take_steps(models, tmp_path_factory.mktemp("kv") / "kv", data, 3)


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_many_steps(models, tmp_path_factory, data):
    take_steps(models, tmp_path_factory.mktemp("kv") / "kv", data, 9)
