"""What cases that begin alike share: the call grammar, and the settled rows of the beginning.

Knows formats and engines by their doors. Invariant: what is kept changes only the time that a case
takes, since reused rows have the bits of rows that are run again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from cedagent.chat.grammar import CallGrammar
from cedagent.chat.template import ChatFormat
from cedagent.chat.tokenizer import Tokenizer
from cedagent.engine.protocol import EngineLike, SequenceLike
from cedagent.upcycle.data import Case

_KEPT: Final = 16
"""Beginnings; one that comes often, such as that of a chat without options, is always among them.
"""


@dataclass(slots=True)
class Opening:
    """The beginning of a conversation: system text and tools."""

    ids: tuple[int, ...]
    grammar: CallGrammar
    sequence: SequenceLike | None = None
    """Keeps the rows in RAM; None until the beginning comes a second time."""


class Openings:
    """The beginnings that were used last."""

    def __init__(self, engine: EngineLike, fmt: ChatFormat, tokenizer: Tokenizer) -> None:
        """Take what conversations are begun with."""
        self._engine, self._format, self._tokenizer = engine, fmt, tokenizer
        self._kept: OrderedDict[tuple[int, ...], Opening] = OrderedDict()

    def of(self, case: Case) -> Opening:
        """Return the beginning of a case; its rows are kept if it came before.

        Raises ContextLimitError when it does not fit.
        """
        ids = tuple(self._format.begin(case.system, case.tools))
        opening = self._kept.get(ids)
        if opening is None:
            grammar = CallGrammar(
                self._format, self._tokenizer, case.tools, vocab_size=self._engine.vocab_size
            )
            opening = self._kept[ids] = Opening(ids, grammar)
        elif opening.sequence is None and ids:
            opening.sequence = self._engine.sequence()
            opening.sequence.prefill(ids, label="eval")
        self._kept.move_to_end(ids)
        if len(self._kept) > _KEPT:
            _, oldest = self._kept.popitem(last=False)
            if oldest.sequence is not None:
                oldest.sequence.close()
        return opening
