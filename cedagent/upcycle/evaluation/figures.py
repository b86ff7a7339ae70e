"""The figures that a shipped model must reach: bounds, aims, and where a model stands.

Knows how each figure is read off a report, not how it was measured; what has no bound, such as
recovery from failed calls, is read off the report itself. Invariant: a figure that was
not measured is left out; none is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cedagent.upcycle.evaluation.closeness import Closeness
from cedagent.upcycle.evaluation.rates import Mean, Rate, pooled
from cedagent.upcycle.evaluation.tools import KindReport

Standing = Literal["aim met", "bound met", "bound missed"]
HEADLINE_NEEDLE = 1000
"""Tokens of the tool result in which the needle of the bound lies."""
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure's name and what it must reach."""

    key: str
    text: str
    bound: float
    """The worst value that will do."""
    aim: float
    lower_is_better: bool = False

    def standing(self, value: float) -> Standing:
        """Say where a value stands."""
        sign = -1.0 if self.lower_is_better else 1.0
        if sign * value >= sign * self.aim:
            return "aim met"
        return "bound met" if sign * value >= sign * self.bound else "bound missed"


GOALS = (
    Goal("kl_after_prefill", "KL to the parent, 32 tokens after a prefill", 0.09, 0.05, True),
    Goal("tool_known", "right tool, or rightly none: known tools", 0.95, 0.99),
    Goal("arguments_known", "arguments right, given the tool: known tools", 0.92, 0.98),
    Goal("tool_unseen", "right tool, or rightly none: tools never seen", 0.80, 0.95),
    Goal("arguments_unseen", "arguments right, given the tool: tools never seen", 0.75, 0.92),
    Goal("answer", "answer contains the tool's result", 0.92, 0.98),
    Goal("later_calls", "second and third call of a task right", 0.80, 0.95),
    Goal("needle", "needle from a 1,000-token tool result", 0.70, 0.95),
    Goal("no_call", "no call on plain chat", 0.97, 0.995),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one model beside its goal."""

    key: str
    text: str
    bound: float
    aim: float
    lower_is_better: bool
    value: float
    low: float | None
    """Lower end of the 95% interval: Wilson's of a share, 1.96 standard errors of a mean."""
    high: float | None
    n: int
    """Outputs that were judged, or tokens that were scored."""
    standing: Standing


def figures_of(text: Closeness | None, kinds: Sequence[KindReport]) -> tuple[Figure, ...]:
    """Return the goals' figures that were measured, in the goals' order."""
    by_kind = {kind.kind: kind for kind in kinds}
    measured = _rates(by_kind)
    found = []
    for goal in GOALS:
        if goal.key == "kl_after_prefill":
            mean = None if text is None else text.after_prefill
            if mean is not None:
                found.append(_of_mean(goal, mean))
        elif (rate := measured[goal.key]) is not None:
            found.append(_figure(goal, rate.value, rate.low, rate.high, rate.n))
    return tuple(found)


def _rates(kinds: Mapping[str, KindReport]) -> dict[str, Rate | None]:
    """Return the share behind each goal; None where it was not measured."""
    found: dict[str, Rate | None] = {
        "answer": pooled(
            kinds[name].answer for name in ("known", "unseen", "multi_step") if name in kinds
        )
    }
    needle = f"needle_{HEADLINE_NEEDLE}"
    for key, kind, field in (
        ("tool_known", "known", "tool"),
        ("arguments_known", "known", "arguments"),
        ("tool_unseen", "unseen", "tool"),
        ("arguments_unseen", "unseen", "arguments"),
        ("later_calls", "multi_step", "later_calls"),
        ("needle", needle, "answer"),
        ("no_call", "chat", "tool"),
    ):
        found[key] = getattr(kinds[kind], field) if kind in kinds else None
    return found


def _of_mean(goal: Goal, mean: Mean) -> Figure:
    if mean.error is None:
        return _figure(goal, mean.value, None, None, mean.n)
    half = _Z * mean.error
    return _figure(goal, mean.value, mean.value - half, mean.value + half, mean.n)


def _figure(goal: Goal, value: float, low: float | None, high: float | None, n: int) -> Figure:
    return Figure(
        key=goal.key,
        text=goal.text,
        bound=goal.bound,
        aim=goal.aim,
        lower_is_better=goal.lower_is_better,
        value=value,
        low=low,
        high=high,
        n=n,
        standing=goal.standing(value),
    )
