"""Windowed encoder layers from the command line: convert, cost, and the self-test of a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plain_llama import random_parent, write_hf_folder

from cedagent.model.tiny import write_tiny
from cedagent.model.tokenizer_build import build_tiny

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, tensors = random_parent(layers=6)
    folder = tmp_path_factory.mktemp("parent") / "hf"
    return Path(write_hf_folder(folder, config, tensors, build_tiny(384)))


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("0, 2-4", [0, 2, 3, 4]),
        ("none", []),
        ("5,1", [1, 5]),
        (None, list(range(6))),
    ],
)
def test_global_layers_are_numbers_and_ranges(
    cli: Cli, parent: Path, tmp_path: Path, text: str | None, layers: list[int]
) -> None:
    argv = [] if text is None else ["--global-layers", text]
    # All layers in the encoder, without int8: there is nothing to calibrate.
    argv += ["--encoder-layers", "6", "--window", "20", "--no-int8"]
    ran = cli("model", "convert", parent, tmp_path / "ced", *argv)
    assert ran.code == 0, ran.err
    config = json.loads((tmp_path / "ced" / "config.json").read_text())
    assert config["encoder_global_layers"] == layers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected layers such as 8,14,17-19, or none, got ''"),
        ("1,", "expected layers such as"),
        ("two", "expected layers such as"),
        ("-3", "expected layers such as"),
        ("1-2-3", "expected layers such as"),
        ("1-99999", "expected layers such as"),
        ("²", "expected layers such as"),
        ("4-2", "the range 4-2 ends before it begins"),
        ("2,6", "must be layers 0 .. 5, in order and each once, got [2, 6]"),
    ],
)
def test_what_is_no_list_of_the_encoders_layers_is_one_line(
    cli: Cli, parent: Path, tmp_path: Path, text: str, message: str
) -> None:
    argv = ["--encoder-layers", "6", "--global-layers", text]
    ran = cli("model", "convert", parent, tmp_path / "ced", *argv)
    assert (ran.code, ran.out, ran.err.strip().count("\n")) == (
        2,
        "",
        ran.err.count("cedagent: ") - 1,
    )
    assert message in ran.err
    assert not (tmp_path / "ced").exists()


def test_cost_counts_windowed_layers(cli: Cli, tmp_path: Path) -> None:
    shape = {"n_layers": 7, "n_encoder_layers": 5, "window": 100}
    windowed = write_tiny(tmp_path / "w", encoder_global_layers=(1, 4), **shape)
    whole = write_tiny(tmp_path / "all", **shape)
    found = [json.loads(cli("model", "cost", m, "--json").out) for m in (windowed, whole)]
    assert [one["n_windowed_layers"] for one in found] == [3, 0]
    # A key and a value head of 16 codes and a scale; E_out is 48 channels.
    assert [one["bytes_per_token"] for one in found] == [2 * 36 + 96, 5 * 36 + 96]
    assert [one["snapshot_bytes"] for one in found] == [3 * 99 * 36, 0]
    assert "the windows of 3 of 5 encoder layers" in cli("model", "cost", windowed).out
    assert "windows" not in cli("model", "cost", whole).out


@pytest.mark.slow
def test_the_selftest_also_restores_without_a_snapshot(cli: Cli, tmp_path: Path) -> None:
    model = write_tiny(
        tmp_path / "w", n_layers=7, n_encoder_layers=5, encoder_global_layers=(1, 4), window=100
    )
    ran = cli("kv", "selftest", "-m", model, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["good"]
    longest = found["rows"][-1]
    assert (longest["tokens"], longest["reused_disk"], longest["no_snapshot"]) == (700, 640, True)
    assert (longest["rerun"], longest["rerun_no_snapshot"]) == (0, 384)
