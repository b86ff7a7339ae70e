"""`model convert` and the fetching of the default model, as the command line does it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plain_llama import random_parent, write_hf_folder

from cedagent.model.locate import DEFAULT_MODEL
from cedagent.model.tiny import write_tiny
from cedagent.model.tokenizer_build import build_tiny
from cedagent.paths import models_dir

Cli = Callable[..., Any]


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    config, tensors = random_parent(layers=3)
    return Path(write_hf_folder(tmp_path / "hf", config, tensors, build_tiny(384)))


def test_converted_folder_is_a_model_that_answers(cli: Cli, parent: Path, tmp_path: Path) -> None:
    dst = tmp_path / "ced"
    ran = cli("model", "convert", parent, dst, "--encoder-layers", "2", "--window", "20")
    assert (ran.code, ran.out) == (0, f"{dst}\n")
    config = json.loads((dst / "config.json").read_text())
    assert (config["n_encoder_layers"], config["decoder_window"]) == (2, 20)
    assert config["weights_dtype"] == "int8"
    argv = ["-m", dst, "--max-tokens", "3", "--no-kv", "--no-builtin-tools"]
    assert cli("run", "x", *argv).code in (0, 3)
    again = cli("model", "convert", parent, dst, "--encoder-layers", "2")
    assert (again.code, again.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("layers", ["0", "4"])
def test_impossible_split_is_refused_and_leaves_nothing(
    cli: Cli, parent: Path, tmp_path: Path, layers: str
) -> None:
    ran = cli("model", "convert", parent, tmp_path / "ced", "--encoder-layers", layers)
    assert ran.code == 2
    assert not (tmp_path / "ced").exists()


def test_pull_option_fetches_the_default_model_only_when_it_is_absent(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled = []

    def pull(name: str, **more: object) -> Path:
        pulled.append(name)
        return write_tiny(models_dir() / name)

    monkeypatch.setattr("cedagent.upcycle.pull.pull", pull)
    argv = ["-p", "x", "--max-tokens", "2", "--no-builtin-tools"]
    assert cli("chat", *argv).code == 2
    ran = cli("chat", "--pull", *argv)
    assert ran.code in (0, 3)
    assert DEFAULT_MODEL in ran.err
    assert DEFAULT_MODEL not in ran.out
    assert cli("chat", "--pull", *argv).code in (0, 3)
    assert pulled == [DEFAULT_MODEL]
