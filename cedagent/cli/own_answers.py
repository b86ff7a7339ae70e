"""`cedagent model answers`: the parent's own answers to plain talk, for `model teach --answers`.

The work is in cedagent.upcycle.training.own_answers. Ctrl-C ends it after an answer; what is
written is kept, and the same command goes on.
"""

from __future__ import annotations

from pathlib import Path

import click

from cedagent.cli.interrupt import stop_on_interrupt
from cedagent.cli.progress import progress_bars
from cedagent.errors import UsageError
from cedagent.model.locate import resolve_model


@click.command()
@click.argument("parent", metavar="PARENT")
@click.option("--out", "file", type=click.Path(path_type=Path), required=True, metavar="FILE",
              help="JSON lines; what is there already is kept.")  # fmt: skip
@click.option("-n", "n", type=click.IntRange(1), default=400, show_default=True, metavar="N",
              help="Prompts to answer.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N")
def answers(parent: str, file: Path, n: int, seed: int) -> int:
    """Let the parent answer plain talk, for `model teach --answers`.

    PARENT is the checkpoint converted with all its layers in the encoder.
    """
    from cedagent.chat.template import load_chat_format
    from cedagent.chat.tokenizer import Tokenizer
    from cedagent.engine import Engine
    from cedagent.model.llama.config import LlamaConfig
    from cedagent.upcycle.training.own_answers import write_answers

    model_dir = resolve_model(parent)
    config = LlamaConfig.load(model_dir)
    if config.n_decoder_layers or config.encoder_windowed_layers:
        raise UsageError(
            f"{parent} has decoder layers or windowed ones: expected the parent itself, converted "
            f"with --encoder-layers {config.num_hidden_layers}"
        )
    engine = Engine.load(model_dir)
    tokenizer = Tokenizer.load(engine.model_dir)
    fmt = load_chat_format(engine.model_dir, engine.chat_format, tokenizer=tokenizer)
    told: list[bool] = []
    with stop_on_interrupt(lambda: told.append(True)), progress_bars() as progress:
        done = write_answers(
            engine,
            file,
            n=n,
            seed=seed,
            fmt=fmt,
            tokenizer=tokenizer,
            progress=progress,
            should_stop=lambda: bool(told),
        )
    click.echo(f"{file}: {done:,} of {n:,} prompts answered")
    return 0
