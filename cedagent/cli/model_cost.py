"""`cedagent model cost`: what a prompt costs in work, parameters and bytes, as a table or as JSON.

The arithmetic is in cedagent.model.cost; no weights are read.
"""

from __future__ import annotations

from pathlib import Path

import click

from cedagent.cli.options import json_option
from cedagent.cli.report import print_json, print_table, size


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--tokens", type=click.IntRange(1), metavar="N", default=32_768, show_default=True)
@json_option
def cost(config: Path, tokens: int, as_json: bool) -> int:
    """Print what a prompt of N tokens costs.

    In work, active parameters and bytes. CONFIG is a config.json or the folder that holds one, of
    either family.
    """
    from cedagent.model.cost import read_cost

    found = read_cost(config, n_tokens=tokens)
    if as_json:
        print_json(found)
        return 0
    n_decoder = found.n_layers - found.n_encoder_layers
    rows = [
        [
            "family",
            f"{found.family}, {found.n_encoder_layers} encoder + {n_decoder} decoder layers",
        ],
        ["every token, every layer", f"{found.full_token_layers:,} token-layers"],
        ["CED prefill", f"{found.ced_token_layers:,} token-layers, {found.ratio:.1%}"],
        ["active, prompt token", _parameters(found.prompt_parameters)],
        ["active, replayed token", f"{_parameters(found.replayed_parameters)} more"],
        ["active, generated token", _parameters(found.generated_parameters)],
        [
            "stored",
            f"{found.bytes_per_token:,} B per token, of these {found.e_out_bytes:,} B E_out",
        ],
        ["stored, all tokens", size(found.bytes_per_token * tokens)],
    ]
    if found.n_windowed_layers:
        windows = f"{found.n_windowed_layers} of {found.n_encoder_layers} encoder layers"
        rows.append(["a snapshot", f"{size(found.snapshot_bytes)}, the windows of {windows}"])
    print_table([f"{tokens:,} tokens", ""], rows)
    return 0


def _parameters(n: int) -> str:
    return f"{n / 1e9:.2f} B parameters" if n >= 1e9 else f"{n / 1e6:.1f} M parameters"
