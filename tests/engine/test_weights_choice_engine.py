"""`Engine.load(weights=...)`: how weights are held changes memory and time, and no bit of answers.

Settings that a family has no use for are refused, in one line, before weights are read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from cedagent.engine import Engine
from cedagent.errors import UsageError
from cedagent.model.tiny import write_tiny
from cedagent.model.tiny_v41 import write_tiny_v41

TEXT = [5 + 3 * n % 500 for n in range(273)]


@pytest.fixture(scope="module")
def v41(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_v41(
        tmp_path_factory.mktemp("model") / "v41",
        n_encoder_layers=3,
        n_decoder_layers=2,
        n_experts=4,
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "llama")


@pytest.mark.slow
def test_rows_stored_with_one_choice_serve_the_other_with_the_same_bits(
    v41: Path, tmp_path: Path
) -> None:
    writer = Engine.load(v41, kv=tmp_path / "kv", weights="dequantize")
    cold = writer.sequence()
    cold.prefill(TEXT)
    cold.feed(77)
    reader = Engine.load(v41, kv=tmp_path / "kv2", weights="keep")
    alone = reader.sequence()
    alone.prefill(TEXT)
    alone.feed(77)
    assert torch.equal(cold.logits, alone.logits)
    assert reader.model_digest == writer.model_digest
    writer.close()
    engine = Engine.load(v41, kv=tmp_path / "kv", weights="keep")
    resumed = engine.sequence()
    assert resumed.prefill(TEXT).reused_disk == 256
    resumed.feed(77)
    assert torch.equal(resumed.logits, cold.logits)


@pytest.mark.parametrize(
    ("choice", "available", "held", "said"),
    [
        ("auto", 10**10, "dequantize", None),
        ("auto", 3_000_000, "keep", "weights are kept as stored"),
        ("keep", 10**10, "keep", None),
        ("keep", 10**5, "keep", "larger than that and is read from disk"),
        ("dequantize", 3_000_000, "dequantize", "expect it to run out"),
    ],
)
def test_a_choice_is_met_and_what_it_costs_is_told_in_one_line(
    v41: Path,
    monkeypatch: pytest.MonkeyPatch,
    choice: Any,
    available: int,
    held: str,
    said: str | None,
) -> None:
    monkeypatch.setattr("cedagent.model.release.available_memory", lambda: available)
    engine = Engine.load(v41, weights=choice)
    assert engine.family.model.checkpoint.weights == held  # type: ignore[attr-defined]
    assert len(engine.notices) == (said is not None)
    for notice in engine.notices:
        assert said is not None
        assert said in notice
        assert "\n" not in notice


@pytest.mark.parametrize("choice", ["dequantize", "keep"])
def test_ced_llama_has_no_choice_of_weights(llama: Path, choice: Any) -> None:
    expected = f"weights {choice} is a choice for deepseek_v41 .* leave it at auto"
    with pytest.raises(UsageError, match=expected):
        Engine.load(llama, weights=choice)
    assert Engine.load(llama, weights="auto", precision="auto").vocab_size


def test_deepseek_v41_has_no_int8_path(v41: Path) -> None:
    with pytest.raises(UsageError, match="precision int8 is a choice for ced_llama") as refused:
        Engine.load(v41, precision="int8")
    assert "\n" not in str(refused.value)
    reference = Engine.load(v41, precision="float32").sequence()
    default = Engine.load(v41).sequence()
    reference.prefill(TEXT[:9])
    default.prefill(TEXT[:9])
    assert torch.equal(reference.logits, default.logits)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"weights": "fp8"}, "weights must be auto, dequantize or keep, got 'fp8'"),
        ({"precision": "bf16"}, "precision must be auto, float32 or int8, got 'bf16'"),
        ({"kernels": "fast"}, "kernels must be auto, reference or native, got 'fast'"),
        ({"mode": "some"}, "mode must be bounded, exact or full, got 'some'"),
        ({"replay_windows": 0}, "replay_windows must be at least 1, got 0"),
        ({"max_kv_bytes": -1}, "max_kv_bytes must not be negative, got -1"),
        ({"kv": ""}, "kv must name a folder"),
    ],
    ids=str,
)
def test_an_unknown_setting_is_told_before_the_model_is_looked_for(
    setting: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Engine.load("no-such-model", **setting)
