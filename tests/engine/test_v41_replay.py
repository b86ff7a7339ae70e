"""V4.1's replay: exact equals full bit for bit and no row is to spare, bounded is what it says."""

from pathlib import Path

import pytest
import torch
from v41_runs import (
    alone,
    last_rows,
    run,
    slow,
    some_ids,
    tensor_bytes,
    write_small,
    write_wide,
)

from cedagent.model.v41_config import V41Config

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "vectors" / "v41_tiny"
SHAPES = {"W = 16": (write_small, 16, 3), "W = 100": (write_wide, 100, 2)}
QUICK = {"W = 16": (1, 16, 47, 129), "W = 100": (257,)}
LENGTHS = {
    "W = 16": (2, 14, 15, 17, 31, 32, 33, 45, 46, 48, 63, 64, 65, 127, 128, 255, 256, 257, 301),
    "W = 100": (1, 99, 100, 101, 127, 128, 129, 198, 199, 200, 201, 255, 256, 299, 300, 301, 401),
}
CASES = [(name, n) for name, lengths in QUICK.items() for n in lengths]
CASES += [slow(name, n) for name, lengths in LENGTHS.items() for n in lengths]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: write(folder / name) for name, (write, _, _) in SHAPES.items()}


def prefilled(engine, ids):
    sequence = engine.sequence()
    return sequence, sequence.prefill(ids)


def decoder_windows(sequence, n_rows):
    return last_rows(sequence._state.decoder_windows, len(sequence.ids), n_rows)


@pytest.mark.parametrize(("name", "n"), CASES)
def test_exact_equals_full_in_logits_and_every_window_row(models, name, n):
    ids, (_, window, n_decoder) = some_ids(n, seed=n), SHAPES[name]
    full = alone(models[name], mode="full")
    exact = alone(models[name], mode="exact")
    (a, all_), (b, few) = prefilled(full, ids), prefilled(exact, ids)
    assert torch.equal(a.logits, b.logits)
    assert torch.equal(a.logits, full.logits(ids)[-1])
    assert decoder_windows(a, window) == decoder_windows(b, window)
    assert (all_.replayed, few.replayed) == (n, min(n, window + (n_decoder - 1) * (window - 1)))


@pytest.mark.parametrize(
    ("name", "n"),
    [("W = 16", n) for n in (16, 47, 140)]
    + [slow("W = 16", n) for n in (17, 45, 46, 127, 128, 129, 257, 301)]
    + [slow("W = 100", n) for n in (100, 101, 199, 257, 401)],
)
def test_one_row_fewer_in_every_layer_is_wrong(models, monkeypatch, name, n):
    ids, window = some_ids(n, seed=n), SHAPES[name][1]
    full = alone(models[name], mode="full")
    exact = alone(models[name], mode="exact")
    rows = V41Config.exact_rows

    def fewer(self, n_tokens, *, layers_left):
        return max(1, rows(self, n_tokens, layers_left=layers_left) - 1)

    monkeypatch.setattr(V41Config, "exact_rows", fewer)
    (a, _), (b, _) = prefilled(full, ids), prefilled(exact, ids)
    assert decoder_windows(a, window) != decoder_windows(b, window)


def test_exact_stays_equal_while_decoding(models):
    ids = some_ids(120)
    full = alone(models["W = 16"], mode="full")
    exact = alone(models["W = 16"], mode="exact")
    (a, _), (b, _) = prefilled(full, ids), prefilled(exact, ids)
    for token in some_ids(6, seed=1):
        a.feed(token)
        b.feed(token)
        assert torch.equal(a.logits, b.logits)


@pytest.mark.parametrize(
    ("n", "windows"), [(17, 1), (131, 2), slow(17, 2), slow(131, 1), slow(200, 1), slow(200, 2)]
)
def test_the_first_decoder_layers_window_is_exact_and_others_are_not(models, n, windows):
    ids = some_ids(n, seed=n)
    full = alone(models["W = 16"], mode="full")
    bounded = alone(models["W = 16"], replay_windows=windows)
    (a, _), (b, usage) = prefilled(full, ids), prefilled(bounded, ids)
    n_rows = min(n, windows * 16)
    assert usage.replayed == n_rows
    exact, found = decoder_windows(a, n_rows), decoder_windows(b, n_rows)
    # Its rows come from encoder outputs; those of the layers above it saw a window cut short.
    assert found[0] == exact[0]
    if n > n_rows:
        assert all(x != y for x, y in zip(found[1:], exact[1:], strict=True))
        assert not torch.equal(a.logits, b.logits)
    else:
        assert found == exact


@pytest.mark.parametrize("n", [1, 32, slow(15), slow(16), slow(31)])
def test_a_text_within_the_replayed_rows_is_exact(models, n):
    ids = some_ids(n, seed=n)
    bounded = alone(models["W = 16"], replay_windows=2)
    assert run(bounded, ids) == run(alone(models["W = 16"], mode="full"), ids)


def test_a_bounded_window_holds_the_replayed_rows_and_no_other(models):
    sequence, _ = prefilled(alone(models["W = 16"], replay_windows=2), some_ids(131))
    for own in sequence._state.decoder_windows:
        assert (own.base, own.stop) == (131 - 32, 131)
    sequence.feed(5)
    assert {own.stop for own in sequence._state.decoder_windows} == {132}


def divergence(expected, found):
    p, q = expected.log_softmax(-1), found.log_softmax(-1)
    return float((p.exp() * (p - q)).sum())


@pytest.mark.parametrize("n_texts", [2, slow(8)])
def test_the_error_of_bounded_falls_as_replay_windows_grows(n_texts):
    """Mean over some texts, on the vectors' model: four decoder layers, 61 exact entry rows."""
    full = alone(GOLDEN, mode="full")
    engines = {windows: alone(GOLDEN, replay_windows=windows) for windows in (1, 2, 3, 4)}
    means = dict.fromkeys((*engines, "truncated"), 0.0)
    for seed in range(n_texts):
        ids = some_ids(77 + 7 * seed, seed=seed)
        expected = prefilled(full, ids)[0].logits
        for windows, engine in engines.items():
            means[windows] += divergence(expected, prefilled(engine, ids)[0].logits) / n_texts
        means["truncated"] += divergence(expected, prefilled(full, ids[-16:])[0].logits) / n_texts
        # 64 rows are more than the trapezoid's: the same bits.
        assert torch.equal(prefilled(engines[4], ids)[0].logits, expected)
    assert means[1] > 5 * means[2] > 25 * means[3] > 0
    assert means["truncated"] > 10 * means[1]


def test_where_the_last_prefill_ended_matters_to_bounded_alone(models):
    """A function of the tokens and the prefill's end: decoded rows saw more than replayed ones."""
    ids = some_ids(60)
    for options, same in (({}, False), ({"mode": "exact"}, True), ({"mode": "full"}, True)):
        engine = alone(models["W = 16"], **options)
        sequence, _ = prefilled(engine, ids[:55])
        for token in ids[55:]:
            sequence.feed(token)
        at_once, _ = prefilled(engine, ids)
        assert (tensor_bytes(sequence.logits) == tensor_bytes(at_once.logits)) is same
