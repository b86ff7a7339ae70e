"""Replay: exact equals full bit for bit, bounded is its definition, YOCO needs one row."""

import random

import pytest
import torch
from naive_ced import NaiveCed

from cedagent.engine import Engine
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.tiny import write_tiny

LENGTHS = (1, 2, 19, 20, 21, 77, 78, 127, 128, 129, 257, 500)
WINDOW = 20


def some_ids(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(300), k=n)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """W = 20 and 4 decoder layers: 77 entry rows."""
    dst = tmp_path_factory.mktemp("w20")
    return write_tiny(dst, window=WINDOW, n_layers=7, n_encoder_layers=3)


@pytest.fixture(scope="module")
def yoco_dir(tmp_path_factory):
    dst = tmp_path_factory.mktemp("yoco")
    return write_tiny(dst, window=0, n_layers=5, n_encoder_layers=2, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def decoder_only_dir(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("plain"), n_layers=4, n_encoder_layers=4)


def prefilled(engine, ids):
    sequence = engine.sequence()
    return sequence, sequence.prefill(ids)


def window_rows(sequence, n_tokens):
    """The last W rows of every decoder layer."""
    found = []
    for cache in sequence._state.windows:
        rows = cache.rows(max(0, n_tokens - WINDOW), n_tokens)
        found += [part.clone() for part in rows if part is not None]
    return found


@pytest.mark.parametrize("precision", ["int8", "float32"])
@pytest.mark.parametrize("n_tokens", LENGTHS)
def test_exact_equals_full_in_logits_and_every_window_row(model_dir, precision, n_tokens):
    ids = some_ids(n_tokens, seed=n_tokens)
    full = Engine.load(model_dir, precision=precision, mode="full")
    exact = Engine.load(model_dir, precision=precision, mode="exact")
    (a, _), (b, usage) = prefilled(full, ids), prefilled(exact, ids)
    assert torch.equal(a.logits, b.logits)
    assert torch.equal(a.logits, full.logits(ids)[-1])
    rows_a, rows_b = window_rows(a, n_tokens), window_rows(b, n_tokens)
    assert rows_a
    assert all(torch.equal(x, y) for x, y in zip(rows_a, rows_b, strict=True))
    assert usage.replayed == min(n_tokens, 77)


@pytest.mark.parametrize("precision", ["int8", "float32"])
def test_exact_stays_equal_while_decoding(model_dir, precision):
    ids = some_ids(150)
    full = Engine.load(model_dir, precision=precision, mode="full")
    exact = Engine.load(model_dir, precision=precision, mode="exact")
    (a, _), (b, _) = prefilled(full, ids), prefilled(exact, ids)
    for token in some_ids(45, seed=1):
        a.feed(token)
        b.feed(token)
        assert torch.equal(a.logits, b.logits)


@pytest.mark.parametrize("precision", ["int8", "float32"])
def test_one_row_fewer_in_every_layer_differs_from_length_w_on(model_dir, precision, monkeypatch):
    full = Engine.load(model_dir, precision=precision, mode="full")
    exact = Engine.load(model_dir, precision=precision, mode="exact")
    rows = LlamaConfig.exact_rows
    monkeypatch.setattr(
        LlamaConfig,
        "exact_rows",
        lambda self, n, *, layers_left: max(1, rows(self, n, layers_left=layers_left) - 1),
    )
    for n_tokens in (20, 21, 77, 78, 129, 257, 500):
        ids = some_ids(n_tokens, seed=n_tokens)
        (a, _), (b, _) = prefilled(full, ids), prefilled(exact, ids)
        same = all(
            torch.equal(x, y)
            for x, y in zip(window_rows(a, n_tokens), window_rows(b, n_tokens), strict=True)
        )
        assert not (same and torch.equal(a.logits, b.logits))


@pytest.mark.parametrize("n_tokens", LENGTHS)
def test_full_is_the_definition(model_dir, n_tokens):
    ids = some_ids(n_tokens, seed=n_tokens)
    got = Engine.load(model_dir, precision="float32").logits(ids)
    expected = NaiveCed(model_dir).forward(ids)
    torch.testing.assert_close(got.double(), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("replay_windows", [1, 2, 3])
@pytest.mark.parametrize("n_tokens", [1, 19, 20, 21, 39, 41, 60, 61, 128, 300])
def test_bounded_is_the_definition(model_dir, n_tokens, replay_windows):
    ids = some_ids(n_tokens, seed=n_tokens)
    engine = Engine.load(model_dir, precision="float32", replay_windows=replay_windows)
    sequence, usage = prefilled(engine, ids)
    start = n_tokens - min(n_tokens, replay_windows * WINDOW)
    expected = NaiveCed(model_dir).forward(ids, replay_start=start)[-1]
    torch.testing.assert_close(sequence.logits.double(), expected, atol=2e-4, rtol=1e-4)
    assert usage.replayed == n_tokens - start


def test_the_error_of_bounded_falls_as_replay_windows_grows(model_dir):
    full = Engine.load(model_dir, precision="float32", mode="full")
    errors = []
    for windows in (1, 2, 4):
        engine = Engine.load(model_dir, precision="float32", replay_windows=windows)
        error = 0.0
        for seed in range(6):
            ids = some_ids(211, seed=seed)
            a, b = prefilled(full, ids)[0].logits, prefilled(engine, ids)[0].logits
            error += float((a - b).abs().max())
        errors.append(error)
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "float32"])
@pytest.mark.parametrize("n_tokens", [1, 2, 127, 128, 129, 300])
def test_yoco_needs_one_decoder_row(yoco_dir, precision, n_tokens):
    ids = some_ids(n_tokens)
    bounded = Engine.load(yoco_dir, precision=precision)
    exact = Engine.load(yoco_dir, precision=precision, mode="exact")
    full = Engine.load(yoco_dir, precision=precision, mode="full")
    expected = full.logits(ids)[-1]
    sequence, usage = prefilled(bounded, ids)
    assert usage.replayed == 1
    torch.testing.assert_close(sequence.logits, expected, atol=2e-4, rtol=1e-4)
    sequence, usage = prefilled(exact, ids)
    assert usage.replayed == 1
    assert torch.equal(sequence.logits, expected)


def test_yoco_is_the_definition_also_while_decoding(yoco_dir):
    ids = some_ids(140)
    sequence, _ = prefilled(Engine.load(yoco_dir, precision="float32"), ids[:120])
    for token in ids[120:]:
        sequence.feed(token)
    expected = NaiveCed(yoco_dir).forward(ids)[-1]
    torch.testing.assert_close(sequence.logits.double(), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("mode", ["bounded", "exact", "full"])
def test_decoder_only_is_a_plain_transformer(decoder_only_dir, mode):
    ids = some_ids(150)
    expected = NaiveCed(decoder_only_dir).forward(ids)
    sequence, usage = prefilled(
        Engine.load(decoder_only_dir, precision="float32", mode=mode), ids[:130]
    )
    torch.testing.assert_close(sequence.logits.double(), expected[129], atol=2e-4, rtol=1e-4)
    assert usage.replayed == 0
    for token in ids[130:]:
        sequence.feed(token)
    torch.testing.assert_close(sequence.logits.double(), expected[-1], atol=2e-4, rtol=1e-4)


def test_decoding_agrees_with_full_scoring_beyond_the_window(model_dir):
    ids = some_ids(200)
    engine = Engine.load(model_dir, precision="float32", mode="exact")
    sequence, _ = prefilled(engine, ids[:130])
    expected = engine.logits(ids)
    for i, token in enumerate(ids[130:]):
        torch.testing.assert_close(sequence.logits, expected[129 + i], atol=2e-4, rtol=1e-4)
        sequence.feed(token)


def test_int8_is_close_to_float32(model_dir):
    ids = some_ids(300)
    a = Engine.load(model_dir).logits(ids).log_softmax(-1)
    b = Engine.load(model_dir, precision="float32").logits(ids).log_softmax(-1)
    kl = (b.exp() * (b - a)).sum(-1).mean()
    assert 0 < float(kl) < 0.05
