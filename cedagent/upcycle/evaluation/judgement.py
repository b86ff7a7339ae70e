"""Judges one output against what a case expects of it.

Knows calls and texts; no engine. Invariant: a question that the case does not ask is answered None,
never True.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cedagent.chat.output import Call, Output
from cedagent.chat.template import ToolSpec
from cedagent.upcycle.data.conversation import SpokenCall, Step, contains
from cedagent.upcycle.evaluation.arguments import same_arguments


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


class Judge:
    """Judges outputs of a conversation with these tools."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        """Take the tools that the case lists."""
        self._tools = {tool.name: tool for tool in tools}

    def verdict(self, step: Step, output: Output, *, chooses: bool, said: str = "") -> Verdict:
        """Judge an output.

        `chooses` says that here the model decides whether to call: after a message of the user, and
        after a call that failed. After other results a call that nobody expected is a wrong answer,
        not a wrong choice. `said` is what the user has said: what stands there is not a result that
        an answer would have to bring.
        """
        if step.calls:
            tool = _names(step) == Counter(call.name for call in output.calls)
            arguments = self.order_of(step, output) is not None if tool else None
            return Verdict(tool, arguments, None)
        rightly_none = not output.calls
        wanted = [text for text in step.answer_contains if not contains(said, text)]
        answer = None
        if wanted:
            answer = rightly_none and all(contains(output.text, text) for text in wanted)
        return Verdict(rightly_none if chooses and not step.may_call else None, None, answer)

    def order_of(self, step: Step, output: Output) -> list[int] | None:
        """Return for each call of an output which expected call it is; None unless all are right.

        Parallel calls may come in any order.
        """
        left = list(range(len(step.calls)))
        order = []
        for call in output.calls:
            match = next((i for i in left if self._is_call(call, step.calls[i])), None)
            if match is None:
                return None
            left.remove(match)
            order.append(match)
        return order if not left else None

    def _is_call(self, call: Call, expected: SpokenCall) -> bool:
        name, arguments = expected
        return (
            call.arguments is not None
            and call.name == name
            and same_arguments(call.arguments, arguments, tool=self._tools[name])
        )


def is_settled(step: Step, called: Iterable[str]) -> bool:
    """Tell whether an output that calls these tools so far is wrong, whatever follows."""
    return bool(Counter(called) - _names(step))


def _names(step: Step) -> Counter[str]:
    return Counter(name for name, _ in step.calls)
