"""`cedagent bench`: the time to the first token, beside our own decoder-only baseline.

Runs of the two models are interleaved, medians and spreads are printed, and nothing is printed when
a restored prefix does not give the bits of a cold run: a fast wrong answer is no figure. A model
that has no decoder-only twin is measured alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cedagent.cli.figures import BASELINE, OURS, Run, print_report, report
from cedagent.cli.options import json_option, model_option, weights_option
from cedagent.cli.report import print_json
from cedagent.errors import EngineError

if TYPE_CHECKING:
    from cedagent.model.weights_choice import WeightsChoice

QUESTION = "What is 17% of 2450?"
BLOCK = 128


@dataclass(frozen=True, slots=True)
class Plan:
    """What every run measures."""

    context: int
    append: int
    restored: Sequence[int]
    """Lengths that are resumed after a restart: the context, then perhaps a part of it."""
    shared: Sequence[int]
    """The chat's own system turn with its tools."""
    ids: Sequence[int]
    """That turn with a question."""
    weights: WeightsChoice


@click.command()
@model_option
@weights_option
@click.option("--context", type=click.IntRange(128), default=2048, show_default=True)
@click.option("--append", type=click.IntRange(1), default=512, show_default=True)
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True)
@click.option("--quick", is_flag=True, help="One run of 256 + 64 tokens: does it work at all?")
@click.option("--pull", is_flag=True, help="Get the default model first, if it is not there.")
@json_option
def bench(
    model: str,
    weights: WeightsChoice,
    context: int,
    append: int,
    runs: int,
    quick: bool,
    pull: bool,
    as_json: bool,
) -> int:
    """Measure the time to the first token: cold, append, restart, warm; with a baseline.

    The baseline is the model's decoder-only twin; deepseek_v41 has none and is measured alone.
    """
    from cedagent.cli.baseline import decoder_only
    from cedagent.cli.loading import ensure_model
    from cedagent.model.locate import resolve_model

    ensure_model(model, pull=pull)
    if quick:
        context, append, runs = min(context, 256), min(append, 64), 1
    chosen = resolve_model(model)
    plan = _plan(chosen, context=context, append=append, weights=weights)
    models = {OURS: chosen}
    twin = decoder_only(chosen)
    if twin is None:
        click.echo("no baseline: a model of this family has no decoder-only twin", err=True)
    else:
        models[BASELINE] = twin
    done: dict[str, list[Run]] = {name: [] for name in models}
    for run in range(runs):
        for name, directory in models.items():
            click.echo(f"run {run + 1} of {runs}: {name}", err=True)
            done[name].append(_one_run(directory, plan, seed=100 * run, check=run == 0))
    words = {
        "context": context, "append": append, "odd": context - 91, "early": plan.restored[-1],
        "system": len(plan.shared),
    }  # fmt: skip
    found = report(done, words=words, model=model)
    if as_json:
        print_json(found)
    else:
        print_report(found)
    return 0


def _one_run(model: Path, plan: Plan, *, seed: int, check: bool) -> Run:
    """Run every situation once; raises EngineError when a hit's bits differ from a cold run's."""
    from cedagent.cli import probe
    from cedagent.engine import Engine

    common: dict[str, Any] = {"model": str(model), "weights": plan.weights}
    task = common | {"append": plan.append, "seed": seed}
    with tempfile.TemporaryDirectory(prefix="cedagent-bench-") as folder:
        kv, warmed, empty = (str(Path(folder) / name) for name in ("kv", "warm", "empty"))
        first = probe.run_task(
            "first_process", kv=kv, context=plan.context,
            restored=list(plan.restored) if check else [], **task,
        )  # fmt: skip
        restarts = [
            probe.run_task("second_process", kv=kv, context=n_tokens, **task)
            for n_tokens in plan.restored
        ]
        for expected, got in zip(first["digests"], restarts, strict=check):
            if got["digest"] != expected:
                raise EngineError(
                    f"no figures: {model} restored from disk does not give the logits of a cold "
                    "run; `cedagent kv selftest` says where"
                )
        engine = Engine.load(model, kv=warmed, weights=plan.weights)
        engine.warm(plan.shared)
        engine.close()
        warm = probe.run_task("warm_start", kv=warmed, ids=list(plan.ids), **common)
        not_warm = probe.run_task("warm_start", kv=empty, ids=list(plan.ids), **common)
    seconds = first["times"] | {"warm": warm["seconds"], "not_warm": not_warm["seconds"]}
    rerun = {}
    for key, got in zip(("restart", "restart_early"), restarts, strict=False):
        seconds[key] = got["seconds"]
        if engine.family.windows is not None:
            rerun[key] = got["rerun"]
    return Run(seconds, rerun, first["bytes_per_token"])


def _plan(model: Path, *, context: int, append: int, weights: WeightsChoice) -> Plan:
    from cedagent.agent.agent import Agent
    from cedagent.cli.loading import load_tools, open_engine, warn_of

    engine = open_engine(str(model), no_kv=True, weights=weights)
    warn_of(engine)
    agent = Agent(engine, tools=load_tools([], builtin=True))
    shared = agent.format.begin(None, agent.specs)
    restored = [context]
    # The store's one snapshot is near the end of the context; half of it is without.
    early = context // 2 // BLOCK * BLOCK
    if engine.family.windows is not None and early:
        restored.append(early)
    engine.close()
    ids = [*shared, *agent.format.user(QUESTION)]
    return Plan(context, append, restored, shared, ids, weights)
