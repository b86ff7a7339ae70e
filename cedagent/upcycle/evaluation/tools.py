"""The tool suite: a model's outputs on held-out cases, counted kind by kind.

Knows cases, outputs and verdicts; what the figures must reach is not its business. Invariant: every
output that was judged wrong is listed with what was expected, so that a figure can be read and not
only believed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cedagent.upcycle.data import Case
from cedagent.upcycle.evaluation.conversation import Point, Speaker
from cedagent.upcycle.evaluation.rates import Rate, rate_of, share_of
from cedagent.upcycle.source import Progress

_DEPTHS = 5
"""Parts of a long result, from its start to its end."""


@dataclass(frozen=True, slots=True)
class Miss:
    """One output that was wrong."""

    case: int
    """Index of the case among those of its kind."""
    message: str
    """The user's message."""
    number: int
    """Index of the output in its turn."""
    expected: list[Any]
    """Calls as [name, arguments], or the texts that the answer must contain."""
    calls: list[Any]
    """Calls that were made, as [name, arguments or the raw text]."""
    text: str
    """What was said."""


@dataclass(frozen=True, slots=True)
class KindReport:
    """What was counted over the cases of one kind; None where nothing was to be judged."""

    kind: str
    cases: int
    digest: str
    """SHA-256 (hex) of the cases."""
    unfinished: int
    """Cases that ended early: nothing right to go on from, or no room in the context."""
    tool: Rate | None
    """Right tool or tools, or rightly none."""
    arguments: Rate | None
    """Arguments exactly right, given the right tools."""
    answer: Rate | None
    """The answer contains what it must."""
    later_calls: Rate | None
    """Second and later calls of a turn right, tools and arguments, given the right ones before."""
    recovery: Rate | None
    """Right next step after a call that failed: called again, otherwise, or not at all."""
    whole: Rate | None
    """Conversations without one wrong output."""
    depths: tuple[Rate | None, ...]
    """Of needles: answers by the fifth of the result that holds them; else empty."""
    output_tokens: int
    misses: tuple[Miss, ...]


def n_asked(case: Case) -> int:
    """Return how many outputs a case asks for."""
    return sum(not step.given for steps in case.steps for step in steps)


def run_kind(
    speaker: Speaker, kind: str, cases: Sequence[Case], *, progress: Progress
) -> KindReport:
    """Take a model through all cases of a kind."""
    points: list[list[Point]] = []
    label = f"cases of kind {kind}"
    progress(label, 0, len(cases))
    for number, case in enumerate(cases, 1):
        points.append(list(speaker.converse(case)))
        progress(label, number, len(cases))
    return _report(kind, cases, points)


def _report(kind: str, cases: Sequence[Case], points: Sequence[Sequence[Point]]) -> KindReport:
    flat = [point for of_case in points for point in of_case]
    finished = [len(of_case) == n_asked(case) for case, of_case in zip(cases, points, strict=True)]
    wholes = [
        done and all(point.verdict.good for point in of_case)
        for done, of_case in zip(finished, points, strict=True)
    ]
    return KindReport(
        kind=kind,
        cases=len(cases),
        digest=hashlib.sha256(msgspec.json.encode(list(cases))).hexdigest(),
        unfinished=finished.count(False),
        tool=share_of(point.verdict.tool for point in flat),
        arguments=share_of(point.verdict.arguments for point in flat),
        answer=share_of(point.verdict.answer for point in flat),
        later_calls=share_of(point.verdict.good for point in flat if point.is_later_call),
        recovery=share_of(point.verdict.good for point in flat if point.after_failure),
        whole=share_of(wholes),
        depths=_by_depth(cases, points),
        output_tokens=sum(point.n_tokens for point in flat),
        misses=tuple(
            _miss(i, cases[i], point)
            for i, of_case in enumerate(points)
            for point in of_case
            if not point.verdict.good
        ),
    )


def _by_depth(cases: Sequence[Case], points: Sequence[Sequence[Point]]) -> tuple[Rate | None, ...]:
    if all(case.depth is None for case in cases):
        return ()
    right, judged = [0] * _DEPTHS, [0] * _DEPTHS
    for case, of_case in zip(cases, points, strict=True):
        if case.depth is None:
            continue
        part = min(int(case.depth * _DEPTHS), _DEPTHS - 1)
        answers = [point.verdict.answer for point in of_case if point.verdict.answer is not None]
        right[part] += sum(answers)
        judged[part] += len(answers)
    return tuple(rate_of(*pair) for pair in zip(right, judged, strict=True))


def _miss(number: int, case: Case, point: Point) -> Miss:
    step, output = point.step, point.output
    calls = [
        [call.name, call.raw if call.arguments is None else call.arguments] for call in output.calls
    ]
    expected: list[Any] = [[name, dict(arguments)] for name, arguments in step.calls]
    return Miss(
        case=number,
        message=case.user[point.turn],
        number=point.number,
        expected=expected or list(step.answer_contains),
        calls=calls,
        text=output.text,
    )
