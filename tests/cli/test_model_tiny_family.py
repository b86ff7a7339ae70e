"""`model tiny --family` writes a model of either family, and `model cost` reads both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cedagent.model.v41_config import V41Config

Cli = Callable[..., Any]


def test_a_tiny_v41_model_has_engram_and_a_cost(cli: Cli, tmp_path: Path) -> None:
    made = tmp_path / "made"
    ran = cli("model", "tiny", made, "--family", "deepseek_v41")
    assert (ran.code, ran.out, ran.err) == (0, f"{made}\n", "")
    config = V41Config.load(made)
    assert (config.n_encoder_layers, config.n_decoder_layers, config.window) == (4, 4, 16)
    assert config.engram_layer_ids
    cost = json.loads(cli("model", "cost", made, "--tokens", "1000", "--json").out)
    assert (cost["family"], cost["n_layers"], cost["n_encoder_layers"]) == ("deepseek_v41", 8, 4)
    assert cost["ced_token_layers"] == 1000 * 4 + 16 * 4
    shown = cli("model", "cost", made, "--tokens", "1000").out
    assert "deepseek_v41, 4 encoder + 4 decoder layers" in shown


@pytest.mark.slow
def test_a_tiny_v41_model_answers(cli: Cli, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert cli("model", "tiny", made, "--family", "deepseek_v41").code == 0
    assert cli("run", "x", "-m", made, "--max-tokens", "2", "--no-kv").code in (0, 3)


def test_layers_window_and_seed_are_the_ones_asked_for(cli: Cli, tmp_path: Path) -> None:
    family = ("--family", "deepseek_v41")
    shape = ("--layers", "5", "--encoder-layers", "3", "--window", "7")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert cli("model", "tiny", tmp_path / name, *family, *shape, "--seed", seed).code == 0
    config = V41Config.load(tmp_path / "a")
    assert (config.n_encoder_layers, config.n_decoder_layers, config.window) == (3, 2, 7)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


def test_without_a_family_it_is_the_default_models(cli: Cli, tmp_path: Path) -> None:
    for name, options in (("a", ()), ("b", ("--family", "ced_llama"))):
        assert cli("model", "tiny", tmp_path / name, *options).code == 0
        values = json.loads((tmp_path / name / "config.json").read_text())
        assert (values["model_type"], values["num_hidden_layers"]) == ("ced_llama", 6)
        assert (values["n_encoder_layers"], values["decoder_window"]) == (3, 128)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--window", "0"), "sliding_window must be at least 1, got 0"),
        (("--layers", "4"), "at least one encoder and one decoder layer, got 4 and 0"),
        (("--family", "gpt"), "'gpt' is not one of"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_leaves_nothing(
    cli: Cli, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    made = tmp_path / "made"
    ran = cli("model", "tiny", made, "--family", "deepseek_v41", *options)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert message in ran.err
    assert not made.exists()


def test_an_existing_folder_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    ran = cli("model", "tiny", tmp_path, "--family", "deepseek_v41")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "exists already" in ran.err
    assert not (tmp_path / "config.json").exists()
