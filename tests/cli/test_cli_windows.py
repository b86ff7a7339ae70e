"""`model windows`: a table and JSON of the layers that `model convert` takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from plain_llama import random_parent, write_hf_folder

from cedagent.cli.layer_list import layer_list
from cedagent.cli.window_order import windows, written
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.training import texts

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, tensors = random_parent(layers=4, hidden=32, heads=2, head_dim=16)
    folder = tmp_path_factory.mktemp("parent") / "hf"
    written_to: Path = write_hf_folder(folder, config, tensors, build_tiny(384))
    return written_to


@pytest.fixture(autouse=True)
def short_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting numbers in place of held-out text, which takes a while to find."""

    def counted(parent: Any, *, n: int, length: int) -> list[list[int]]:
        assert length == 512
        return [[(i * (d + 1)) % 384 for i in range(60)] for d in range(n)]

    monkeypatch.setattr(texts, "compared_documents", counted)


def test_the_table_has_a_row_for_every_number_of_global_layers(cli: Cli, source: Path) -> None:
    ran = cli("model", "windows", source, "--encoder-layers", "3", "--window", "8")
    assert ran.code == 0, ran.err
    alone, empty, header, *rows = ran.out.splitlines()
    assert alone.startswith("KL in nats with one windowed layer, the cheapest first: ")
    assert empty == ""
    assert header.split("  ")[0] == "global layers"
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == ["3", "2", "1"]
    assert cells[0][1:] == ["0-2", "0.0000", "172", "B"]
    kl = [float(row[2]) for row in cells]
    assert 0 < kl[1] < kl[2]
    # One key head of 16 channels: two rows of 16 codes and a scale for each layer, and E_out.
    assert [int(row[3]) for row in cells] == [2 * 18 * n + 2 * 32 for n in (3, 2, 1)]
    assert "compare" in ran.err


def test_json_has_what_the_table_has_and_each_layer_alone(cli: Cli, source: Path) -> None:
    ran = cli("model", "windows", source, "--encoder-layers", "3", "--window", "8", "--json")
    found = json.loads(ran.out)
    assert (found["encoder_layers"], found["window"], found["positions"]) == (3, 8, 4 * 11)
    assert len(found["alone"]) == 3
    assert [choice["n_global"] for choice in found["choices"]] == [3, 2, 1]
    best = min(range(3), key=found["alone"].__getitem__)
    left = [layer for layer in range(3) if layer != best]
    assert found["choices"][1]["global_layers"] == written(left)
    assert found["choices"][1]["kl"] == found["alone"][best]


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((), ""),
        ((3,), "3"),
        ((0, 1), "0,1"),
        ((3, 4, 5, 7, 8, 14, 16, 17, 18, 19), "3-5,7,8,14,16-19"),
    ],
)
def test_layers_are_written_as_convert_reads_them(layers: tuple[int, ...], text: str) -> None:
    assert written(layers) == text
    if layers:
        assert layer_list(click.Context(windows), windows.params[0], text) == layers


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere", "--encoder-layers", "3"], "no checkpoint at nowhere"),
        (["--encoder-layers", "5"], "n_encoder_layers must be 1 .. 4, got 5"),
        (["--encoder-layers", "3", "--window", "0"], "0 is not in the range"),
        (["--encoder-layers", "3", "--window", "256"], "expected less than half of"),
        ([], "Missing option '--encoder-layers'"),
    ],
)
def test_what_cannot_be_is_one_line(cli: Cli, source: Path, argv: list[str], message: str) -> None:
    argv = argv if argv[:1] == ["nowhere"] else [str(source), *argv]
    ran = cli("model", "windows", *argv)
    assert ran.code == 2
    assert message in ran.err
    assert ran.out == ""
