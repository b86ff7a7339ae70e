"""Layer tables that the release does not have: computed as defined, or refused by name.

What config.json allows must not be wrong in silence, nor fail at the first decoded token.
"""

import random

import pytest
import torch
from naive_v41 import NaiveV41
from v41_altered import altered
from v41_trace import trace_full

from cedagent.engine import Engine
from cedagent.errors import ConfigError
from cedagent.model.tiny_v41 import write_tiny_v41

IDS = random.Random(0).choices(range(352), k=150)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Five encoder and three decoder layers; 2 and 5 are sources, 7 picks again."""
    return write_tiny_v41(
        tmp_path_factory.mktemp("t") / "model", n_encoder_layers=5, n_decoder_layers=3, window=16,
        n_experts=4, vocab_size=352, engram=False, quantized=False,
    )  # fmt: skip


def load(plain, dst, ratios, **settings):
    """The engine of a model with this table; None when the table is refused by its name."""
    model_dir = altered(plain, dst, text={"compress_ratios": ratios})
    try:
        return Engine.load(model_dir, **settings)
    except ConfigError as error:
        if "compress_ratios" not in str(error):
            raise
        return None


TABLES = {
    "as released": [0, 0, 2, 2, 2, 1, 1, 1],
    "a window layer among Reuse layers": [0, 0, 2, 0, 2, 1, 1, 1],
    "a window layer in the decoder": [0, 0, 2, 2, 2, 1, 0, 1],
    "groups of four": [0, 0, 4, 4, 4, 1, 1, 1],
}
EACH = pytest.mark.parametrize("ratios", TABLES.values(), ids=list(TABLES))


@pytest.mark.slow
@EACH
def test_every_layer_attends_to_what_its_table_says(plain, tmp_path, ratios):
    engine = load(plain, tmp_path / "model", ratios)
    if engine is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        ours = trace_full(engine, IDS[:60], patch)
    expected = NaiveV41(engine.model_dir).run(IDS[:60], given=ours)
    for layer in range(8):
        error = (ours["attention", layer].double() - expected["attention", layer]).abs()
        assert float(error.max()) < 1e-4, layer


@pytest.mark.slow
@EACH
def test_decoding_goes_on_as_the_whole_text_would(plain, tmp_path, ratios):
    engine = load(plain, tmp_path / "model", ratios, mode="full")
    if engine is None:
        return
    sequence = engine.sequence()
    sequence.prefill(IDS[:123])
    expected = engine.logits(IDS[:128])
    # Through a whole group, whatever its length.
    for pos in range(123, 128):
        sequence.feed(IDS[pos])
        assert torch.equal(sequence.logits, expected[pos]), pos


def test_the_released_kind_of_table_is_not_refused(plain, tmp_path):
    assert load(plain, tmp_path / "model", TABLES["as released"]) is not None
