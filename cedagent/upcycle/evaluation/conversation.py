"""Drives an engine through one case, output by output, as an agent serves it.

Greedy, under the call grammar, tool choice `auto`. Knows the engine's narrow door and the chat
format, no tensors; judges just enough to go on. Invariant: every output is written after the right
history. What was wrong is replaced by what was expected, so that one mistake is counted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cedagent.chat.grammar import CallGrammar
from cedagent.chat.output import CallStart, Output
from cedagent.chat.template import ChatFormat, load_chat_format
from cedagent.chat.tokenizer import Tokenizer
from cedagent.engine.protocol import EngineLike, Sampling, SequenceLike
from cedagent.errors import ContextLimitError
from cedagent.upcycle.data import Case, Said, Step
from cedagent.upcycle.data.rendering import output_ids
from cedagent.upcycle.evaluation.judgement import Judge, Verdict, is_settled
from cedagent.upcycle.evaluation.openings import Openings

_GREEDY = Sampling()
_FAILED = "Error: "
"""What the result of a call that failed begins with."""


@dataclass(frozen=True, slots=True)
class Point:
    """One output of the model and what it should have been."""

    turn: int
    """Index of the user's message that it belongs to."""
    number: int
    """Index of the output among those of its turn."""
    step: Step
    output: Output
    verdict: Verdict
    n_tokens: int
    """Tokens of the output, the end among them."""
    after_failure: bool
    """Whether a call before it failed, so that it says what to do about that."""

    @property
    def is_later_call(self) -> bool:
        """Whether calls are expected here and calls came before in this turn."""
        return self.number > 0 and bool(self.step.calls)


class Speaker:
    """An engine with what it needs to write outputs; one for many cases."""

    def __init__(self, engine: EngineLike, *, max_tokens: int = 256) -> None:
        """Read the model's tokenizer and chat format.

        An output that has not ended after `max_tokens` is cut and judged as it stands.
        """
        self._engine = engine
        self._max_tokens = max_tokens
        self.tokenizer = Tokenizer.load(engine.model_dir)
        self.format: ChatFormat = load_chat_format(
            engine.model_dir, engine.chat_format, tokenizer=self.tokenizer
        )
        self._openings = Openings(engine, self.format, self.tokenizer)

    def converse(self, case: Case) -> Iterator[Point]:
        """Yield the outputs of a case in order; what the case gives itself is none of them.

        Ends early where nothing right is known to go on from: after a call instead of an answer,
        and where the context is full.
        """
        judge = Judge(case.tools)
        sequence = self._engine.sequence()
        opened = [sequence]
        try:
            opening = self._openings.of(case)
            new_ids = list(opening.ids)
            for turn, (message, steps) in enumerate(zip(case.user, case.steps, strict=True)):
                new_ids += self.format.user(message)
                said = "\n".join(case.user[: turn + 1])
                failed = False
                for number, step in enumerate(steps):
                    if step.given:
                        new_ids += [*self._expected(step), *self.format.results(step.results)]
                        failed = _has_failed(step)
                        continue
                    start = len(sequence.ids) + len(new_ids)
                    written, output = self._write(sequence, new_ids, opening.grammar, step)
                    chooses = number == 0 or failed
                    verdict = judge.verdict(step, output, chooses=chooses, said=said)
                    yield Point(turn, number, step, output, verdict, len(written), failed)
                    order = judge.order_of(step, output)
                    if order is None:
                        if not step.calls:
                            return
                        # The settled rows of the first sequence are copied, so it stays open.
                        sequence = sequence.fork(start)
                        opened.append(sequence)
                        order = list(range(len(step.calls)))
                        sequence.append_unseen(self._expected(step))
                    else:
                        sequence.append_unseen(self._rest(sequence, start, written))
                    new_ids = []
                    if step.calls:
                        new_ids = self.format.results([step.results[i] for i in order])
                    failed = _has_failed(step)
        except ContextLimitError:
            return
        finally:
            for one in opened:
                one.close()

    def prompt_tokens(self, case: Case) -> int:
        """Return about how many tokens a case makes an engine read."""
        n_tokens = len(self.format.begin(case.system, case.tools))
        for message, steps in zip(case.user, case.steps, strict=True):
            n_tokens += len(self.format.user(message))
            n_tokens += sum(len(self.format.results(step.results)) for step in steps if step.calls)
        return n_tokens

    def _write(
        self, sequence: SequenceLike, new_ids: Sequence[int], grammar: CallGrammar, step: Step
    ) -> tuple[list[int], Output]:
        """Prefill and write one output; its last token is not fed.

        It ends where it has called what nobody expects here: nothing can make it right any more,
        and it will be replaced.
        """
        sequence.prefill(new_ids, label="eval")
        constraint, parser = grammar.start(), self.format.parser()
        room = self._engine.context_limit - len(sequence.ids)
        written: list[int] = []
        called: list[str] = []
        while len(written) < min(self._max_tokens, room):
            if written:
                sequence.feed(written[-1])
            token = constraint.forced()
            if token is None:
                token = sequence.sample(_GREEDY, constraint.mask(), majority=constraint.majority())
            constraint.advance(token)
            events = parser.push(token)
            written.append(token)
            called += [event.name for event in events if isinstance(event, CallStart)]
            if token in self.format.stop_ids or is_settled(step, called):
                break
        return written, parser.finish()

    def _rest(self, sequence: SequenceLike, start: int, written: list[int]) -> list[int]:
        """Return the ids of an output that were not fed, and those that close it."""
        return [*written[len(sequence.ids) - start :], *self.format.closing(written)]

    def _expected(self, step: Step) -> list[int]:
        """Return the ids of the expected calls and those that close them."""
        said = Said(calls=step.calls, results=step.results)
        written = output_ids(said, self.format, tokenizer=self.tokenizer)
        return [*written, *self.format.closing(written)]


def _has_failed(step: Step) -> bool:
    return any(result.startswith(_FAILED) for result in step.results)
