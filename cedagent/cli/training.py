"""`cedagent model heal`, `teach` and `apply`: train a converted model, use what was trained.

The work is in cedagent.upcycle; here are options, a progress bar with the time left, and signals:
the first Ctrl-C or SIGTERM ends a run between two passes, with a checkpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cedagent.cli.interrupt import stop_on_interrupt
from cedagent.cli.options import Command
from cedagent.cli.progress import progress_bars
from cedagent.errors import UsageError
from cedagent.model.locate import resolve_model

if TYPE_CHECKING:
    import torch

    from cedagent.upcycle.training.recipe import StageName
    from cedagent.upcycle.training.trainer import Report, Status

_LINE_S = 30.0
"""Seconds between two lines of progress where there is no terminal."""


def _stage_options(command: Command) -> Command:
    """Add the model, and what both stages take."""
    options = [
        click.argument("model", metavar="MODEL"),
        click.option("--out", "folder", type=click.Path(path_type=Path), required=True,
                     metavar="DIR", help="Folder of checkpoint, log and result; a run that is "
                     "there goes on."),
        click.option("--from", "start", type=click.Path(path_type=Path), metavar="FILE",
                     help="trained.safetensors of an earlier stage to go on from."),
        click.option("--steps", type=click.IntRange(1), metavar="N",
                     help="Length of the run; the same N gives the same weights."),
        click.option("--minutes", type=click.FloatRange(0, min_open=True), metavar="M",
                     help="Most time that the run takes, over all its parts; one that took more "
                     "already ends where it stands."),
        click.option("--rank", type=click.IntRange(1), default=16, show_default=True, metavar="R",
                     help="Rank of new adapters."),
        click.option("--lr", type=click.FloatRange(0, min_open=True), default=1e-3,
                     show_default=True, help="Highest learning rate of adapters."),
        click.option("--lr-global", type=click.FloatRange(0, min_open=True), default=1e-3,
                     show_default=True, help="The same of global projections and norms."),
        click.option("--batch-tokens", type=click.IntRange(2), default=8192, show_default=True,
                     metavar="N", help="Tokens of one step."),
        click.option("--pass-tokens", type=click.IntRange(2), metavar="N",
                     show_default="4096; on a GPU 32768",
                     help="Most tokens at once, by memory; longer transcripts are left out."),
        click.option("--replay-share", type=click.FloatRange(0, 1), default=0.5, show_default=True,
                     help="Share of texts run as a bounded replay and the decoding after it."),
        click.option("--fake-int8", type=click.FloatRange(0, 1), default=0.0, show_default=True,
                     metavar="SHARE", help="Share of steps that round weights as int8 does."),
        click.option("--precision", type=click.Choice(["auto", "bfloat16", "float32"]),
                     default="auto", show_default=True, help="Of products; auto: bfloat16 where "
                     "the processor has them."),
        click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto",
                     show_default=True),
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N"),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_stage_options
@click.option("--hidden-weight", type=click.FloatRange(0), default=1.0, show_default=True,
              help="Weight of the distance between last hidden states.")  # fmt: skip
@click.option("--encoder-adapters", is_flag=True,
              help="Adapters on windowed encoder layers, too: stored KV of the untrained model is "
              "of no use to the trained one then.")  # fmt: skip
def heal(model: str, **given: Any) -> int:
    """Bring a converted model back to its parent.

    Self-distillation on text of this machine. MODEL is one that `model convert` made. Writes
    DIR/trained.safetensors, which `model apply` takes.
    """
    return _train("heal", model, given)


@click.command()
@_stage_options
@click.option("--plain-share", type=click.FloatRange(0, 1), default=0.25, show_default=True,
              help="Share of plain text, which keeps the model with its parent.")  # fmt: skip
@click.option("--answers", type=click.Path(path_type=Path), metavar="FILE",
              help="The parent's own answers to plain talk (`model answers`).")  # fmt: skip
@click.option("--answers-share", type=click.FloatRange(0, 1), default=0.15, show_default=True,
              help="Share of transcripts that are such answers.")  # fmt: skip
def teach(model: str, **given: Any) -> int:
    """Teach a converted model to call tools.

    On generated transcripts, with adapters on every layer. MODEL is one that `model convert` made;
    --from takes what `model heal` wrote. Writes DIR/trained.safetensors.
    """
    return _train("teach", model, given)


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
def apply(model: str, file: Path, dst: Path) -> int:
    """Write a converted model with trained weights.

    MODEL as `model convert` made it, FILE a trained.safetensors, DST a new folder.
    """
    from cedagent.upcycle.training.trained_model import write_trained_model

    with progress_bars() as progress:
        made = write_trained_model(resolve_model(model), file, dst, progress=progress)
    click.echo(str(made))
    return 0


def _train(stage: StageName, model: str, given: dict[str, Any]) -> int:
    """Run a stage; exit code 0 also when it was told to stop, which loses nothing."""
    from cedagent.upcycle.source import sha256_file
    from cedagent.upcycle.training.own_answers import read_answers
    from cedagent.upcycle.training.recipe import Recipe
    from cedagent.upcycle.training.run import pass_tokens_of, precision_of, run
    from cedagent.upcycle.training.texts import ModelTexts

    folder, start, minutes = given.pop("folder"), given.pop("start"), given.pop("minutes")
    device = _device(given.pop("device"))
    if given["precision"] == "auto":
        given["precision"] = precision_of(device)
    if given["pass_tokens"] is None:
        given["pass_tokens"] = pass_tokens_of(device)
    if given["steps"] is None and minutes is None:
        raise UsageError(f"model {stage}: expected --steps or --minutes, got neither")
    own, file = [], given.pop("answers", None)
    if file is not None:
        own = read_answers(file)
        given["answers"] = sha256_file(file)
    recipe = Recipe(stage, **given)
    model_dir = resolve_model(model)
    told: list[bool] = []

    def stop() -> None:
        told.append(True)
        # What runs now may take ten seconds and more. Not by print: a handler may interrupt one.
        os.write(2, b"\nstopping after this pass, with a checkpoint; again ends at once\n")

    with stop_on_interrupt(stop), _bar(stage) as report:
        result = run(
            model_dir,
            folder,
            recipe=recipe,
            minutes=minutes,
            texts=ModelTexts(
                model_dir,
                longest=recipe.pass_tokens,
                answers=own,
                answers_share=recipe.answers_share,
            ),
            start=start,
            device=device,
            report=report,
            should_stop=lambda: bool(told),
        )
    if result is None:
        click.echo(
            f"stopped; the same command goes on from {folder}, and one with fewer --minutes than "
            "it took ends it there",
            err=True,
        )
        return 0
    size = result.path.stat().st_size / 1e6
    click.echo(
        f"{result.path}: {size:.1f} MB after {result.steps:,} steps, {result.tokens:,} tokens, "
        f"{result.seconds / 3600:.2f} hours"
    )
    return 0


def _device(name: str) -> torch.device:
    import torch

    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise UsageError("--device cuda: torch finds no GPU here; expected cpu or auto")
    return torch.device("cuda" if name != "cpu" and has_cuda else "cpu")


@contextmanager
def _bar(stage: str) -> Iterator[Report]:
    """Yield a report of progress: a bar on a terminal, else a line on stderr now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(stage)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    with Progress(*columns, console=console) as bars:
        task = bars.add_task(f"{stage}: load", total=1.0)

        def show(status: Status) -> None:
            bars.update(task, completed=status.used, description=f"{stage}: {_said(status)}")

        yield show


def _lines(stage: str) -> Callable[[Status], None]:
    last = 0.0

    def show(status: Status) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_S or status.used >= 1:
            last = time.monotonic()
            click.echo(f"cedagent: {stage}: {status.used:.0%}, {_said(status)}", err=True)

    return show


def _said(status: Status) -> str:
    """Return steps, loss, speed and the time left in a few words."""
    parts = [f"step {status.step:,}"]
    if status.loss is not None:
        parts += [f"loss {status.loss:.4f}", f"{status.tokens_per_second:,.0f} tokens/s"]
    if status.seconds_left is not None:
        minutes = round(status.seconds_left / 60)
        parts.append(f"{minutes // 60}:{minutes % 60:02} h left" if minutes else "nearly done")
    return ", ".join(parts)
