"""A picture of quality by position: KL to the parent and perplexity, one line per model.

Knows reports and matplotlib, which is optional and is loaded here alone, when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from cedagent.errors import UsageError
from cedagent.upcycle.evaluation.closeness import Closeness, Positions
from cedagent.upcycle.evaluation.figures import GOALS
from cedagent.upcycle.evaluation.report import ModelReport


def check_matplotlib() -> ModuleType:
    """Return matplotlib's figure module; raises UsageError when it is not installed."""
    try:
        return import_module("matplotlib.figure")
    except ImportError as error:
        raise UsageError(
            "--png: matplotlib is not installed; `pip install 'matplotlib>=3.11'`, or install "
            "cedagent with its extra: `cedagent[plot]`"
        ) from error


def draw_quality(path: Path, models: Sequence[ModelReport]) -> None:
    """Write a PNG of the models' text figures.

    Raises UsageError without matplotlib or without a model that has text figures, OSError when the
    file cannot be written.
    """
    texts = [(model, model.text) for model in models if model.text is not None]
    if not texts:
        raise UsageError("--png: expected text figures to draw, got none; add the suite text")
    # Without pyplot: no window system is asked for and no state is left behind.
    figure = check_matplotlib().Figure(figsize=(9, 7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    parents = set()
    for number, (model, text) in enumerate(texts):
        name, colour = name_of(model), f"C{number}"
        _draw_kl(above, text, name, colour=colour)
        x = [_middle(part) for part in text.by_position]
        below.plot(x, [part.perplexity for part in text.by_position], color=colour, label=name)
        if (model.parent, text.digest) not in parents:
            parents.add((model.parent, text.digest))
            theirs = [part.parent_perplexity for part in text.by_position]
            below.plot(x, theirs, color="black", linestyle="--", linewidth=0.8, label="its parent")
    goal = next(goal for goal in GOALS if goal.key == "kl_after_prefill")
    for value, word in ((goal.bound, "bound"), (goal.aim, "aim")):
        above.axhline(value, color="grey", linewidth=0.8, linestyle=":")
        # At the left edge, whatever the positions are.
        place = above.get_yaxis_transform()
        above.text(0.005, value, word, transform=place, fontsize=8, color="grey", va="bottom")
    above.set_ylabel("KL(parent || student), nats per token")
    above.set_ylim(bottom=0)
    below.set_ylabel("perplexity")
    below.set_yscale("log")
    below.yaxis.set_major_formatter("{x:g}")
    below.yaxis.set_minor_formatter("{x:g}")
    below.set_xlabel("position of the token, in tokens")
    above.legend(fontsize=8)
    below.legend(fontsize=8)
    figure.savefig(path, format="png", dpi=130)


def name_of(model: ModelReport) -> str:
    """Return a short name of a model: the last part of its path."""
    return Path(model.model).name or model.model


def _draw_kl(axes: Any, text: Closeness, name: str, *, colour: str) -> None:
    x = [_middle(part) for part in text.by_position]
    axes.plot(x, [part.kl.value for part in text.by_position], color=colour, label=name)
    if text.by_end:
        axes.errorbar(
            [part.start for part in text.by_end],
            [part.kl.value for part in text.by_end],
            yerr=[part.kl.error or 0.0 for part in text.by_end],
            fmt="o",
            markersize=4,
            capsize=2,
            color=colour,
            label=f"{name}, 32 tokens after a prefill",
        )


def _middle(part: Positions) -> float:
    return (part.start + part.stop) / 2
