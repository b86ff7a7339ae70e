"""A windowed encoder layer computes what it is defined to: a token sees the last W, with itself.

Against the oracle in float64, and bit for bit against the model whose layers are all global, in
texts that no window is too short for.
"""

import itertools
import json
import shutil
from typing import NamedTuple

import pytest
import torch
from naive_ced import NaiveCed
from windowed_runs import (
    GLOBAL,
    PATHS,
    alone,
    cold,
    run,
    slow,
    some_ids,
    tensor_bytes,
    write_windowed,
)

from ced_kernels.kernel_set import ReferenceKernels
from cedagent.engine import Engine

WINDOWS = (16, 100, 128)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {window: write_windowed(folder / f"{window}", window=window) for window in WINDOWS}


def all_global(model, dst):
    """The same weights with every encoder layer global."""
    folder = shutil.copytree(model, dst)
    config = json.loads((folder / "config.json").read_text())
    config["encoder_global_layers"] = list(range(config["n_encoder_layers"]))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def float32(model, **options):
    return Engine.load(model, precision="float32", **options)


@pytest.mark.parametrize("window", [100, slow(16), slow(128)])
@pytest.mark.parametrize("n_tokens", [257, *map(slow, (1, 17, 128, 129, 400))])
def test_full_is_the_definition(models, window, n_tokens):
    ids = some_ids(n_tokens, seed=n_tokens)
    got = float32(models[window]).logits(ids)
    expected = NaiveCed(models[window]).forward(ids)
    torch.testing.assert_close(got.double(), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "global_layers", [(), slow((4,)), *map(slow, ((0,), (0, 2, 4), (1, 2, 3)))]
)
def test_any_layers_may_be_windowed(tmp_path, global_layers):
    model = write_windowed(tmp_path / "model", window=21, global_layers=global_layers)
    ids = some_ids(300)
    expected = NaiveCed(model).forward(ids)
    torch.testing.assert_close(float32(model).logits(ids).double(), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("window", [1, *map(slow, (2, 129, 130, 300))])
def test_windows_of_one_token_and_of_more_than_a_tile(tmp_path, window):
    model = write_windowed(tmp_path / "model", window=window)
    ids = some_ids(300)
    expected = NaiveCed(model).forward(ids)
    torch.testing.assert_close(float32(model).logits(ids).double(), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("n_tokens", [130, slow(15), slow(300)])
@pytest.mark.parametrize("window", [16, slow(100)])
def test_bounded_is_the_definition_and_decoding_goes_on_with_it(models, window, n_tokens):
    ids = some_ids(n_tokens + 30, seed=n_tokens)
    sequence = float32(models[window]).sequence()
    sequence.prefill(ids[:n_tokens])
    oracle = NaiveCed(models[window])
    start = n_tokens - min(n_tokens, window)
    for n in range(n_tokens, len(ids)):
        if (n - n_tokens) % 10 == 0:
            expected = oracle.forward(ids[:n], replay_start=start)[-1]
            torch.testing.assert_close(sequence.logits.double(), expected, atol=2e-4, rtol=1e-4)
        sequence.feed(ids[n])


@pytest.mark.slow
def test_decoding_beyond_an_unfinished_tile_with_a_window_of_many_tiles(tmp_path):
    """The rows of the unfinished tile stay when those before the window are forgotten."""
    model = write_windowed(tmp_path / "model", window=300)
    ids = some_ids(520)
    sequence = float32(model).sequence()
    sequence.prefill(ids[:500])
    for token in ids[500:]:
        sequence.feed(token)
    expected = NaiveCed(model).forward(ids, replay_start=200)[-1]
    torch.testing.assert_close(sequence.logits.double(), expected, atol=2e-4, rtol=1e-4)


def test_every_encoder_layer_may_be_windowed_in_a_decoder_only_model(tmp_path):
    shape = {"n_layers": 4, "n_encoder_layers": 4, "global_layers": (2,), "window": 50}
    model = write_windowed(tmp_path / "model", **shape)
    ids = some_ids(200)
    expected = NaiveCed(model).forward(ids)
    sequence = float32(model).sequence()
    sequence.prefill(ids[:170])
    torch.testing.assert_close(sequence.logits.double(), expected[169], atol=2e-4, rtol=1e-4)
    for token in ids[170:]:
        sequence.feed(token)
    torch.testing.assert_close(sequence.logits.double(), expected[-1], atol=2e-4, rtol=1e-4)


def in_decoding(engine, ids, n_prefilled):
    """The logits after a prefill and after each further token, as bytes."""
    sequence = engine.sequence()
    sequence.prefill(ids[:n_prefilled])
    found = [tensor_bytes(sequence.logits)]
    for token in ids[n_prefilled:]:
        sequence.feed(token)
        found.append(tensor_bytes(sequence.logits))
    sequence.close()
    return found


QUICK = [(16, "native"), (128, "float32")]


@pytest.mark.parametrize(
    ("window", "path"),
    [c if c in QUICK else slow(*c) for c in itertools.product((16, 128, 200), PATHS)],
)
def test_a_text_of_at_most_w_tokens_has_the_bits_of_the_all_global_model(tmp_path, window, path):
    model = write_windowed(tmp_path / "windowed", window=window)
    twin = all_global(model, tmp_path / "global")
    ids = some_ids(window + 1, seed=window)
    for n_tokens in (1, window - 1, window):
        left, expected = (run(alone(m, path), ids[:n_tokens]) for m in (model, twin))
        expected.streams = [expected.streams[layer] for layer in GLOBAL]
        assert left == expected
    ours, theirs = (in_decoding(alone(m, path), ids, window - 9) for m in (model, twin))
    assert ours[:-1] == theirs[:-1]
    # And with one more the oldest is out of sight.
    assert ours[-1] != theirs[-1]
    assert cold(model, ids, path) != cold(twin, ids, path)


@pytest.mark.parametrize("path", ["native", slow("reference"), slow("float32")])
def test_exact_equals_full_bit_for_bit(models, path):
    for n_tokens in (129, 300):
        ids = some_ids(n_tokens, seed=n_tokens)
        exact, full = (run(alone(models[100], path, mode=mode), ids) for mode in ("exact", "full"))
        assert exact == full


@pytest.mark.slow
def test_native_and_reference_agree_but_for_rounding(models):
    ids = some_ids(300)
    native, reference, precise = (
        alone(models[100], path).logits(ids).log_softmax(-1) for path in PATHS
    )
    assert not torch.equal(native, reference)
    assert 0 < float((reference.exp() * (reference - native)).sum(-1).mean()) < 1e-3
    assert 0 < float((precise.exp() * (precise - native)).sum(-1).mean()) < 0.05


class Seen(NamedTuple):
    """The size of one attention."""

    n_queries: int
    n_keys: int


def keys_seen(monkeypatch, engine, work):
    """Every attention of the encoder in `work`, in order."""
    found, attend = [], ReferenceKernels.attend

    def spy(self, q, spans, *, scale):
        found.append(Seen(q.codes.shape[1], sum(span.stop - span.start for span in spans)))
        return attend(self, q, spans, scale=scale)

    with monkeypatch.context() as patch:
        patch.setattr(ReferenceKernels, "attend", spy)
        work()
    return found


@pytest.mark.parametrize(("window", "n_tiles"), [(1, 0), (130, 2), slow(100, 1), slow(129, 1)])
def test_keys_read_are_a_function_of_the_position_alone(tmp_path, monkeypatch, window, n_tiles):
    """Tile k: 128 (k + 1) keys in a global layer, whole tiles in a windowed one; and a row."""
    engine = alone(write_windowed(tmp_path / "model", window=window), "reference")
    ids = some_ids(400)
    state = engine.family.new_state()

    def tiles():
        for tile in range(4):
            engine.encode_tile(state, ids, tile=tile)

    expected = []
    for tile, layer in itertools.product(range(4), range(5)):
        near = 128 + 128 * min(tile, n_tiles)
        expected.append(Seen(128, 128 * (tile + 1) if layer in GLOBAL else near))
    assert keys_seen(monkeypatch, engine, tiles) == expected

    def row():
        with engine.forward():
            engine.family.model.encoder.row(engine.family.model.embed([7]), state.encoder, pos=400)

    near = [Seen(1, 401 if layer in GLOBAL else window) for layer in range(5)]
    assert keys_seen(monkeypatch, engine, row) == near
