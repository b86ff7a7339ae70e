"""V4.1: one token at a time agrees with `full`, from every prefill end, in every layer mode.

A decoded row has other shapes than a tile's, so its last bits differ, and a value that lies on the
edge of two codes may then take the other one, after which random weights give other logits. The
texts here are the vectors' own, and one more that runs over a tile's end without such a value.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from v41_runs import some_ids

from cedagent.engine import Engine

VECTORS = Path(__file__).parents[1] / "vectors"
W = 16
PREFILLS = (1, 2, 3, W - 1, W, W + 1, 2 * W + 1, 101)
GOLDEN = ("v41_tiny", "v41_tiny_engram")
CALM_SEED = 2
"""Of some_ids, for texts over the end of a tile; see above."""


@pytest.fixture(scope="module")
def engines():
    return {name: Engine.load(VECTORS / name, mode="full") for name in GOLDEN}


@pytest.fixture(scope="module")
def texts():
    return {
        name: load_file(VECTORS / name / "expected.safetensors")["input_ids"].tolist()
        for name in GOLDEN
    }


def expect_as_in_full(engine, ids, prefill):
    """Prefill some, decode the rest: next-token logits from the prefill's on as `full` has them."""
    sequence = engine.sequence()
    sequence.prefill(ids[:prefill])
    rows = [sequence.logits]
    for token in ids[prefill:]:
        sequence.feed(token)
        rows.append(sequence.logits)
    sequence.close()
    found, expected = torch.stack(rows), engine.logits(ids)[prefill - 1 :]
    assert found.shape == expected.shape
    # The prefill itself is a full one.
    assert torch.equal(found[0], expected[0])
    errors = (found - expected).abs().amax(-1)
    assert float(errors.max()) < 5e-2
    assert float(errors.median()) < 2e-3
    best = expected.topk(2, -1).values
    clear = best[:, 0] - best[:, 1] > 0.1
    assert int(clear.sum()) > len(ids[prefill:]) // 2
    assert torch.equal(found.argmax(-1)[clear], expected.argmax(-1)[clear])


@pytest.mark.parametrize("prefill", PREFILLS)
@pytest.mark.parametrize("name", GOLDEN)
def test_twenty_tokens_after_a_prefill(engines, texts, name, prefill):
    expect_as_in_full(engines[name], texts[name][: prefill + 20], prefill)


@pytest.mark.parametrize("prefill", [121, 127, 128])
def test_over_the_end_of_a_tile_where_engram_looks_back(engines, prefill):
    ids = some_ids(prefill + 20, seed=CALM_SEED, vocab=512)
    expect_as_in_full(engines["v41_tiny_engram"], ids, prefill)


def test_every_mode_of_a_layer_is_there(engines):
    for engine in engines.values():
        config = engine.family.config
        modes = [config.mode(layer) for layer in range(config.num_hidden_layers)]
        encoder, decoder = modes[: config.n_encoder_layers], modes[config.n_encoder_layers :]
        assert encoder == ["window", "window", "full", "reuse"]
        assert decoder == ["full", "reuse", "reindex", "reuse"]
    assert engines["v41_tiny_engram"].family.config.engram_layer_ids == (1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("prefill", PREFILLS)
@pytest.mark.parametrize("name", GOLDEN)
def test_to_the_end_of_the_text(engines, texts, name, prefill):
    expect_as_in_full(engines[name], texts[name], prefill)


@pytest.mark.slow
@pytest.mark.parametrize("prefill", [1, 129, 255, 257])
def test_a_longer_text_with_engram(engines, prefill):
    expect_as_in_full(engines["v41_tiny_engram"], some_ids(300, seed=CALM_SEED, vocab=512), prefill)
