"""Judges one output against what a case expects of it.

Knows calls, JSON and texts; no engine. Invariants: a question that the case does not ask is
answered None, never True; arguments are equal as JSON values, so true is not 1 and order in an
object does not matter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cedagent.chat.output import Call, Output
from cedagent.upcycle.data.conversation import SpokenCall, Step


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was right about one output; None where that was not the question."""

    tool: bool | None
    """Whether exactly the expected tools were called, or rightly none."""
    arguments: bool | None
    """Whether all arguments are right; asked where the right tools were called."""
    answer: bool | None
    """Whether the output is an answer that contains what it must."""

    @property
    def good(self) -> bool:
        """Whether nothing that was asked is wrong."""
        return False not in (self.tool, self.arguments, self.answer)


def judge(step: Step, output: Output, *, opens: bool) -> Verdict:
    """Judge an output; `opens` says that it comes first after a message of the user.

    There the model chooses between calling and answering. After results, a call that nobody
    expected is a wrong answer, not a wrong choice.
    """
    if step.calls:
        tool = _names(step.calls) == Counter(call.name for call in output.calls)
        arguments = order_of(step, output) is not None if tool else None
        return Verdict(tool, arguments, None)
    rightly_none = not output.calls
    answer = None
    if step.answer_contains:
        found = all(contains(output.text, text) for text in step.answer_contains)
        answer = rightly_none and found
    return Verdict(rightly_none if opens and not step.may_call else None, None, answer)


def order_of(step: Step, output: Output) -> list[int] | None:
    """Return for each call of an output which expected call it is; None unless all are right.

    Parallel calls may come in any order.
    """
    left = list(range(len(step.calls)))
    order = []
    for call in output.calls:
        match = next((i for i in left if _is_call(call, step.calls[i])), None)
        if match is None:
            return None
        left.remove(match)
        order.append(match)
    return order if not left else None


def json_equal(a: object, b: object) -> bool:
    """Tell whether two values are the same JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(json_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(json_equal, a, b))
    if isinstance(a, bool) or isinstance(b, bool) or a is None or b is None:
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b
    return isinstance(a, str) and isinstance(b, str) and a == b


def contains(answer: str, expected: str) -> bool:
    """Tell whether an answer holds a text, whatever its case and white space.

    A number must stand there whole: 12 is not in 312, 12.5, 12,500 or -12.
    """
    text, wanted = f" {_folded(answer)}", _folded(expected)
    before = r"(?<!\d)(?<!\d[.,])(?<! [-\u2212])" if wanted[:1].isdigit() else ""
    after = r"(?!\d)(?![.,]\d)" if wanted[-1:].isdigit() else ""
    return re.search(before + re.escape(wanted) + after, text) is not None


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _names(calls: Sequence[SpokenCall]) -> Counter[str]:
    return Counter(name for name, _ in calls)


def _is_call(call: Call, expected: SpokenCall) -> bool:
    name, arguments = expected
    return (
        call.arguments is not None
        and call.name == name
        and json_equal(call.arguments, dict(arguments))
    )
