"""Golden values: what independent implementations compute on the same tiny checkpoints.

How exact they must be met is what tests/vectors/README.md says.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from cedagent.engine import Engine

VECTORS = Path(__file__).parent.parent / "vectors"
CHECKPOINTS = ("v41_tiny", "v41_tiny_fp8", "v41_tiny_engram")
EVERYWHERE, MEDIAN, FLIPPED = 5e-2, 2e-3, 1e-3


def expected(name: str) -> tuple[list[int], dict[str, Tensor]]:
    tensors = load_file(VECTORS / name / "expected.safetensors")
    return tensors["input_ids"].tolist(), tensors


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("weights", ["dequantize", "keep"])
def test_logits_and_argmax_are_those_of_independent_implementations(
    name: str, weights: str
) -> None:
    ids, golden = expected(name)
    logits = Engine.load(VECTORS / name, weights=weights).logits(ids)
    errors = (logits - golden["logits"]).abs().amax(-1)
    assert torch.equal(logits.argmax(-1), golden["logits"].argmax(-1))
    assert errors.max() < EVERYWHERE
    assert errors.median() < MEDIAN


def test_caches_are_equal_but_for_flipped_codes() -> None:
    ids, golden = expected("v41_tiny")
    engine = Engine.load(VECTORS / "v41_tiny", mode="full")
    sequence = engine.sequence(ids)
    sequence.prefill([])
    state, n = sequence._state, len(ids)
    pairs = []
    for layer, source in state.sources.items():
        n_rows = n // source.ratio
        for name, rows in (("compressed_kv", source.latents), ("index_keys", source.keys)):
            want = golden[f"{name}.{layer}"]
            assert len(want) == n_rows
            pairs.append((rows.values(0, n_rows), want))
    windows = [*state.windows, *state.decoder_windows]
    for layer, rows in enumerate(windows):
        want = golden[f"window.{layer}"]
        pairs.append((rows.values(n - len(want), n), want))
    flipped = sum(int((got != want).sum()) for got, want in pairs)
    assert len(pairs) == 12
    assert flipped <= FLIPPED * sum(want.numel() for _, want in pairs)
    # A flipped code is the neighbour of the right one, not another number.
    assert all((got - want).abs().max() <= 0.25 * want.abs().max() for got, want in pairs)


def test_prefill_and_decode_meet_the_golden_logits_of_their_last_rows() -> None:
    ids, golden = expected("v41_tiny_engram")
    engine = Engine.load(VECTORS / "v41_tiny_engram", mode="exact")
    sequence = engine.sequence(ids[:97])
    sequence.prefill([])
    for pos in range(97, len(ids)):
        assert (sequence.logits - golden["logits"][pos - 1]).abs().max() < EVERYWHERE
        sequence.feed(ids[pos])
    assert sequence.logits.argmax() == golden["logits"][-1].argmax()
