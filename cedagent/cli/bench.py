"""`cedagent bench`: the time to the first token, beside our own decoder-only baseline.

Runs of the two models are interleaved, medians and spreads are printed, and nothing is printed when
a restored prefix does not give the bits of a cold run: a fast wrong answer is no figure.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cedagent import __version__
from cedagent.cli.options import json_option, model_option
from cedagent.cli.report import print_json, print_table
from cedagent.errors import EngineError

QUESTION = "What is 17% of 2450?"

SITUATIONS = {
    "cold": "cold, {context:,} tokens",
    "append": "append {append:,} to {context:,}, session live",
    "append_odd": "append {append:,} to {odd:,} (no tile's end), session live",
    "restart": "append {append:,} to {context:,} after a restart, in a new process",
    "warm": "new session and process, system turn of {system:,} tokens warmed",
    "not_warm": "the same, not warmed",
}
"""What is measured -> how the table calls it."""


@click.command()
@model_option
@click.option("--context", type=click.IntRange(128), default=2048, show_default=True)
@click.option("--append", type=click.IntRange(1), default=512, show_default=True)
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True)
@click.option("--quick", is_flag=True, help="One run of 256 + 64 tokens: does it work at all?")
@click.option("--pull", is_flag=True, help="Get the default model first, if it is not there.")
@json_option
def bench(
    model: str, context: int, append: int, runs: int, quick: bool, pull: bool, as_json: bool
) -> int:
    """Measure the time to the first token: cold, append, restart, warm; with a baseline."""
    from cedagent.cli.baseline import decoder_only
    from cedagent.cli.loading import ensure_model
    from cedagent.model.locate import resolve_model

    ensure_model(model, pull=pull)
    if quick:
        context, append, runs = min(context, 256), min(append, 64), 1
    chosen = resolve_model(model)
    models = {"cedagent": chosen, "decoder-only": decoder_only(chosen)}
    times: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in models}
    on_disk = {}
    system = _system_ids(chosen)
    for run in range(runs):
        for name, directory in models.items():
            click.echo(f"run {run + 1} of {runs}: {name}", err=True)
            got = _one_run(directory, context=context, append=append, run=run, system=system)
            on_disk[name] = got.pop("bytes_per_token")
            for situation, seconds in got.items():
                times[name][situation].append(seconds)
    words = {"context": context, "append": append, "odd": context - 91, "system": len(system[0])}
    report = _report(times, on_disk, words=words, runs=runs, model=model)
    if as_json:
        print_json(report)
    else:
        _print(report)
    return 0


def _one_run(
    model: Path, *, context: int, append: int, run: int, system: tuple[list[int], list[int]]
) -> dict[str, float]:
    """Run every situation once; raises EngineError when a hit's bits differ from a cold run's."""
    from cedagent.cli import probe
    from cedagent.engine import Engine

    common: dict[str, Any] = {
        "model": str(model), "context": context, "append": append, "seed": 100 * run,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="cedagent-bench-") as folder:
        kv = str(Path(folder) / "kv")
        first = probe.run_task("first_process", kv=kv, check=run == 0, **common)
        second = probe.run_task("second_process", kv=kv, **common)
        if run == 0 and first["digest"] != second["digest"]:
            raise EngineError(
                f"no figures: {model} restored from disk does not give the logits of a cold run; "
                "`cedagent kv selftest` says where"
            )
        shared, ids = system
        warmed = str(Path(folder) / "warm")
        engine = Engine.load(model, kv=warmed)
        engine.warm(shared)
        engine.close()
        warm = probe.run_task("warm_start", model=str(model), kv=warmed, ids=ids)
        empty = str(Path(folder) / "empty")
        not_warm = probe.run_task("warm_start", model=str(model), kv=empty, ids=ids)
    return {
        **first["times"],
        "restart": second["seconds"],
        "warm": warm["seconds"],
        "not_warm": not_warm["seconds"],
        "bytes_per_token": first["bytes_per_token"],
    }


def _system_ids(model: Path) -> tuple[list[int], list[int]]:
    """Return the chat's own system turn with its tools, and that turn with a question."""
    from cedagent.agent.agent import Agent
    from cedagent.cli.loading import load_tools, open_engine

    engine = open_engine(str(model), no_kv=True)
    agent = Agent(engine, tools=load_tools([], builtin=True))
    engine.close()
    shared = agent.format.begin(None, agent.specs)
    return shared, [*shared, *agent.format.user(QUESTION)]


def _report(
    times: Mapping[str, Mapping[str, Sequence[float]]],
    on_disk: Mapping[str, float],
    *,
    words: Mapping[str, int],
    runs: int,
    model: str,
) -> dict[str, Any]:
    import torch

    rows = []
    for key, text in SITUATIONS.items():
        figures = {
            name: {
                "median_s": statistics.median(of[key]),
                "min_s": min(of[key]),
                "max_s": max(of[key]),
                "runs_s": list(of[key]),
            }
            for name, of in times.items()
        }
        pairs = zip(times["decoder-only"][key], times["cedagent"][key], strict=True)
        ratios = [theirs / ours for theirs, ours in pairs]
        ratio = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
        rows.append(
            {"situation": key, "text": text.format(**words), "times": figures, "ratio": ratio}
        )
    machine = {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
    versions = {"cedagent": __version__, "torch": str(torch.__version__)}
    versions["python"] = platform.python_version()
    return {
        "model": model,
        "runs": runs,
        "machine": machine,
        "versions": versions,
        "hit_equals_cold": True,
        "first_token": rows,
        "bytes_per_token_on_disk": dict(on_disk),
    }


def _print(report: Mapping[str, Any]) -> None:
    rows = []
    for row in report["first_token"]:
        cells = [
            f"{1000 * t['median_s']:.0f} ({1000 * t['min_s']:.0f} - {1000 * t['max_s']:.0f})"
            for t in row["times"].values()
        ]
        ratio = row["ratio"]
        ratio_cell = f"{ratio['median']:.2f} ({ratio['min']:.2f} - {ratio['max']:.2f})"
        rows.append([row["text"], *cells, ratio_cell])
    on_disk = report["bytes_per_token_on_disk"]
    rows.append(["bytes per token on disk", *(f"{value:,.0f}" for value in on_disk.values()), ""])
    print_table(["time to the first token, ms", "cedagent", "decoder-only", "ratio"], rows)
    machine, versions = report["machine"], report["versions"]
    click.echo(
        f"\n{report['model']}; {_of_runs(report['runs'])}; "
        f"a restored prefix gave the logits of a cold run, bit for bit.\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, "
        f"{machine['capability']}; " + ", ".join(f"{k} {v}" for k, v in versions.items())
    )


def _of_runs(runs: int) -> str:
    """Say how far the figures can be trusted: none can that another process had a part in."""
    if runs == 1:
        return (
            "1 run alone, which shows no spread; the machine must be idle, use --runs for figures"
        )
    return f"medians (least - most) of {runs} interleaved runs; the machine must be idle"


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
