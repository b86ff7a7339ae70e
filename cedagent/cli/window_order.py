"""`cedagent model windows`: which encoder layers can do with the last W tokens.

The work is in cedagent.upcycle.training.window_order; here are texts and a table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cedagent.cli.options import json_option
from cedagent.cli.progress import progress_bars
from cedagent.cli.report import print_json, print_table

if TYPE_CHECKING:
    from cedagent.model.llama.config import LlamaConfig
    from cedagent.upcycle.training.window_order import Choice

_DOCUMENTS = 4


@click.command("windows")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--encoder-layers", type=click.IntRange(1), metavar="E", required=True,
              help="Layers of the encoder, as for `model convert`.")  # fmt: skip
@click.option("--window", type=click.IntRange(1), metavar="W", default=128, show_default=True,
              help="Tokens that a windowed layer sees.")  # fmt: skip
@json_option
def windows(source: Path, encoder_layers: int, window: int, as_json: bool) -> int:
    """Show which encoder layers can be windowed.

    For every number of global layers the best ones, as `model convert --global-layers` takes them,
    with the KL to the parent that the windows alone cost, before any training. SOURCE is a GGUF
    file or a Hugging Face folder. Takes ten minutes and more.
    """
    import torch

    from cedagent.upcycle.source import read_parent
    from cedagent.upcycle.training.run import precision_of
    from cedagent.upcycle.training.texts import compared_documents
    from cedagent.upcycle.training.window_order import document_length, window_order

    with progress_bars() as progress:
        parent = read_parent(source, progress=progress)
        config = replace(
            parent.config,
            n_encoder_layers=encoder_layers,
            encoder_global_layers=tuple(range(encoder_layers)),
            decoder_window=window,
        )
        documents = compared_documents(parent, n=_DOCUMENTS, length=document_length(config))
        found = window_order(
            parent,
            documents,
            config=config,
            dtype=getattr(torch, precision_of(torch.device("cpu"))),
            progress=progress,
        )
    rows = [_row(choice, config) for choice in found.choices]
    if as_json:
        print_json(
            {
                "encoder_layers": encoder_layers,
                "window": window,
                "positions": found.n_positions,
                "alone": found.alone,
                "choices": rows,
            }
        )
        return 0
    cheapest = sorted(range(encoder_layers), key=found.alone.__getitem__)
    alone = ", ".join(f"{layer}: {found.alone[layer]:.4f}" for layer in cheapest)
    click.echo(f"KL in nats with one windowed layer, the cheapest first: {alone}\n")
    print_table(
        ["global layers", "--global-layers", "KL, nats", "stored per token"],
        (
            [f"{row['n_global']}", row["global_layers"], f"{row['kl']:.4f}",
             f"{row['bytes_per_token']:,} B"]
            for row in rows
        ),
    )  # fmt: skip
    return 0


def _row(choice: Choice, config: LlamaConfig) -> dict[str, Any]:
    from cedagent.model.cost import model_cost

    values = replace(config, encoder_global_layers=choice.global_layers).as_json()
    # As `model convert` writes it and as it is served.
    values["weights_dtype"] = "int8"
    return {
        "n_global": len(choice.global_layers),
        "global_layers": written(choice.global_layers),
        "kl": choice.kl,
        "bytes_per_token": model_cost(values, n_tokens=1).bytes_per_token,
    }


def written(layers: Iterable[int]) -> str:
    """Return layers in order as `--global-layers` takes them: 3-5,7,8."""
    parts = []
    for _, run in groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0]):
        run_layers = [layer for _, layer in run]
        if len(run_layers) > 2:
            parts.append(f"{run_layers[0]}-{run_layers[-1]}")
        else:
            parts += map(str, run_layers)
    return ",".join(parts)
