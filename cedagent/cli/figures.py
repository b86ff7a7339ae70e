"""The figures of `cedagent bench` as a report: medians and spreads, ratios, machine and versions.

It knows runs and their times, not how they were measured. A model without a baseline has its own
column alone.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cedagent import __version__
from cedagent.cli.report import print_table

SITUATIONS = {
    "cold": "cold, {context:,} tokens",
    "append": "append {append:,} to {context:,}, session live",
    "append_odd": "append {append:,} to {odd:,} (no tile's end), session live",
    "restart": "append {append:,} to {context:,} after a restart, in a new process",
    "restart_early": "append {append:,} to the first {early:,}, likewise: no snapshot there",
    "warm": "new session and process, system turn of {system:,} tokens warmed",
    "not_warm": "the same, not warmed",
}
"""What is measured -> how the table calls it. A model without encoder windows needs no snapshot."""

OURS, BASELINE = "cedagent", "decoder-only"


@dataclass(frozen=True, slots=True)
class Run:
    """Every situation once, with one model."""

    seconds: Mapping[str, float]
    """Situation -> time to the first token."""
    rerun: Mapping[str, int]
    """Situation -> tokens that were run again, where a model does that."""
    bytes_per_token: float
    """On disk."""


def report(
    runs: Mapping[str, Sequence[Run]], *, words: Mapping[str, int], model: str
) -> dict[str, Any]:
    """Return all figures of the runs of OURS, and of BASELINE if there is one, as JSON values."""
    ours = runs[OURS]
    rows = []
    for key, text in SITUATIONS.items():
        if key not in ours[0].seconds:
            continue
        times = {name: [run.seconds[key] for run in of] for name, of in runs.items()}
        row: dict[str, Any] = {"situation": key, "text": text.format(**words)}
        row["times"] = {name: _spread_s(seconds) for name, seconds in times.items()}
        if BASELINE in times:
            pairs = zip(times[BASELINE], times[OURS], strict=True)
            ratios = [theirs / mine for theirs, mine in pairs]
            row["ratio"] = {
                "median": statistics.median(ratios), "min": min(ratios), "max": max(ratios),
            }  # fmt: skip
        if key in ours[0].rerun:
            row["rerun"] = ours[0].rerun[key]
            row["text"] += f" ({row['rerun']:,} run again)"
        rows.append(row)
    return {
        "model": model,
        "runs": len(ours),
        "machine": _machine(),
        "versions": _versions(),
        "hit_equals_cold": True,
        "first_token": rows,
        "bytes_per_token_on_disk": {name: of[-1].bytes_per_token for name, of in runs.items()},
    }


def print_report(report: Mapping[str, Any]) -> None:
    """Print a report as a table, with where the figures are from."""
    on_disk = report["bytes_per_token_on_disk"]
    header = ["time to the first token, ms", *on_disk]
    rows = []
    for row in report["first_token"]:
        cells = [
            f"{1000 * t['median_s']:.0f} ({1000 * t['min_s']:.0f} - {1000 * t['max_s']:.0f})"
            for t in row["times"].values()
        ]
        if ratio := row.get("ratio"):
            cells.append(f"{ratio['median']:.2f} ({ratio['min']:.2f} - {ratio['max']:.2f})")
        rows.append([row["text"], *cells])
    last = ["bytes per token on disk", *(f"{value:,.0f}" for value in on_disk.values())]
    if BASELINE in on_disk:
        header.append("ratio")
        last.append("")
    print_table(header, [*rows, last])
    machine, versions = report["machine"], report["versions"]
    click.echo(
        f"\n{report['model']}; {of_runs(report['runs'])}; "
        f"a restored prefix gave the logits of a cold run, bit for bit.\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, "
        f"{machine['capability']}; " + ", ".join(f"{k} {v}" for k, v in versions.items())
    )


def of_runs(n_runs: int) -> str:
    """Say how far the figures can be trusted: none can that another process had a part in."""
    if n_runs == 1:
        return (
            "1 run alone, which shows no spread; the machine must be idle, use --runs for figures"
        )
    return f"medians (least - most) of {n_runs} interleaved runs; the machine must be idle"


def _spread_s(seconds: Sequence[float]) -> dict[str, Any]:
    return {
        "median_s": statistics.median(seconds),
        "min_s": min(seconds),
        "max_s": max(seconds),
        "runs_s": list(seconds),
    }


def _machine() -> dict[str, Any]:
    import torch

    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def _versions() -> dict[str, str]:
    import torch

    versions = {"cedagent": __version__, "torch": str(torch.__version__)}
    return versions | {"python": platform.python_version()}


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
