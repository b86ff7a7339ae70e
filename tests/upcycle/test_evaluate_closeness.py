"""KL and perplexity by position: exact where student and parent are the same, right where not."""

import math
from itertools import pairwise

import pytest
import torch

from cedagent.engine import Engine
from cedagent.model.tiny import write_tiny
from cedagent.upcycle.evaluation.closeness import (
    FED,
    closeness,
    compare,
    ends_within,
    score_after_prefill,
    score_positions,
)
from cedagent.upcycle.evaluation.parent import find_parent
from cedagent.upcycle.evaluation.rows import parent_rows
from cedagent.upcycle.source import silent

TEXTS = [[(5 * i * i + k * i + 3) % 300 for i in range(720)] for k in (1, 7)]


def rows_of(model, folder, texts=TEXTS):
    return parent_rows(find_parent(model), [text[:-1] for text in texts], folder=folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A decoder-only model in float32 and its rows as its own parent."""
    folder = tmp_path_factory.mktemp("plain")
    model = write_tiny(folder / "m", n_layers=3, n_encoder_layers=3, int8=False)
    return Engine.load(model, precision="float32"), rows_of(model, folder / "rows")


@pytest.fixture(scope="module")
def ced(tmp_path_factory):
    """A float32 model with window 128 and the rows of the same weights without the split."""
    folder = tmp_path_factory.mktemp("ced")
    model = write_tiny(folder / "m", n_layers=4, n_encoder_layers=2, window=128, int8=False)
    return Engine.load(model, precision="float32"), rows_of(model, folder / "rows")


def test_kl_and_log_probabilities_are_their_formulas():
    random = torch.Generator().manual_seed(1)
    parent, student = torch.randn(2, 5, 11, generator=random)
    following = [3, 0, 10, 7, 2]
    found = compare(parent, student, following)
    for row, token in enumerate(following):
        p, q = (
            [math.exp(x) / sum(map(math.exp, values)) for x in values]
            for values in (parent[row].tolist(), student[row].tolist())
        )
        kl = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        expected = [kl, -math.log(p[token]), -math.log(q[token])]
        assert found[row].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_model_has_no_distance_from_itself(plain):
    engine, rows = plain
    positions = score_positions(engine, rows, TEXTS, progress=silent)
    assert positions.shape == (2, 719, 3)
    assert positions[:, :, 0].abs().max() == 0
    assert torch.equal(positions[:, :, 1], positions[:, :, 2])
    ends = ends_within(720)
    fed = score_after_prefill(engine, rows, TEXTS, ends=ends, progress=silent)
    # Decoding runs one row, whose products may round otherwise than a tile's.
    assert fed[..., 0].abs().max() < 1e-6
    found = closeness(positions, fed, ends=ends, digest="")
    assert found.after_prefill.value < 1e-6
    assert [part.kl.value for part in found.buckets] == [0, 0, 0]
    assert all(part.perplexity == part.parent_perplexity for part in found.buckets)


def test_within_the_window_a_float32_conversion_is_its_parent(ced):
    engine, rows = ced
    scores = score_positions(engine, rows, TEXTS, progress=silent)
    assert scores[:, :128, 0].abs().max() < 1e-6
    assert scores[:, 128:, 0].mean() > 1e-3
    # Each position is scored on the token after it.
    following = engine.logits(TEXTS[0][:-1]).log_softmax(-1)
    nats = [-float(row[token]) for row, token in zip(following, TEXTS[0][1:], strict=True)]
    assert scores[0, :, 2].tolist() == pytest.approx(nats, abs=1e-5)
    found = closeness(scores, None, ends=(), digest="d")
    assert [(part.start, part.stop) for part in found.buckets] == [(0, 128), (128, 512), (512, 719)]
    assert (found.after_prefill, found.first_token, found.by_end) == (None, None, ())


def test_after_each_prefill_the_figures_are_those_of_a_cold_session(ced):
    engine, rows = ced
    ends = ends_within(720)
    assert ends == (512, 640)
    fed = score_after_prefill(engine, rows, TEXTS, ends=ends, progress=silent)
    assert fed.shape == (2, 2, FED + 1, 3)
    for i, end in enumerate(ends):
        text, cold = TEXTS[1], engine.sequence()
        cold.prefill(text[:end])
        for step in range(FED + 1):
            position = end - 1 + step
            logits = rows.logits(1, position, position + 1)
            expected = compare(logits, cold.logits[None], [text[position + 1]])[0]
            # The parent's head rounds otherwise for another number of rows.
            assert fed[1, i, step].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
            cold.feed(text[end + step])
    # A bounded replay is not a full one, or this test would prove little.
    whole = score_positions(engine, rows, TEXTS, progress=silent)
    assert (whole[1, ends[1], 2] - fed[1, 1, 1, 2]).abs() > 1e-4


@pytest.mark.parametrize(
    ("length", "ends"),
    [(544, ()), (545, (512,)), (2080, tuple(range(512, 2048, 128))), (2081, range(512, 2049, 128))],
)
def test_ends_have_all_their_tokens_and_the_one_after(length, ends):
    assert ends_within(length) == tuple(ends)


@pytest.mark.parametrize("n_positions", [100, 128, 600, 2048, 4096, 4300])
def test_every_position_is_in_the_bucket_of_its_name(n_positions):
    kl = torch.arange(n_positions, dtype=torch.float64).expand(2, -1)
    scores = torch.stack([kl, kl * 0 + math.log(3), kl * 0 + math.log(5)], -1)
    found = closeness(scores, None, ends=(), digest="")
    assert found.tokens_each == n_positions + 1
    edges = [0, 128, 512, 2048, 4096]
    expected = [(a, min(b, n_positions)) for a, b in pairwise(edges) if a < n_positions]
    assert [(part.start, part.stop) for part in found.buckets] == expected
    for part in (*found.buckets, *found.by_position):
        assert part.kl.value == pytest.approx((part.start + part.stop - 1) / 2)
        assert part.kl.n == 2 * (part.stop - part.start)
        assert (part.perplexity, part.parent_perplexity) == pytest.approx((5, 3))
    assert found.by_position[-1].stop == n_positions
    assert all(part.stop - part.start <= 128 for part in found.by_position)


def test_the_first_token_and_those_fed_after_it_are_told_apart():
    fed = torch.zeros(3, 2, FED + 1, 3, dtype=torch.float64)
    fed[:, :, 0, 0] = 7
    fed[:, 0, 1:, 0] = 1
    fed[:, 1, 1:, 0] = 2
    positions = torch.zeros(3, 700, 3, dtype=torch.float64)
    found = closeness(positions, fed, ends=(512, 640), digest="")
    assert (found.first_token.value, found.first_token.n) == (7, 6)
    assert (found.after_prefill.value, found.after_prefill.n) == (1.5, 6 * FED)
    assert [(part.start, part.kl.value) for part in found.by_end] == [(512, 1), (640, 2)]
    # Six stretches: three of mean 1, three of mean 2.
    assert found.after_prefill.error == pytest.approx(math.sqrt(0.3) / math.sqrt(6))
