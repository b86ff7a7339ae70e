"""Prompts that the parent answers itself, so that it does not forget how it talks.

Knows conversations and their rendering; the answers come from outside. Invariant: the parent is
asked without tools, as it was trained; the example lists tools, so that what is learned is to talk
although there are some.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cedagent.chat.template import ChatFormat
from cedagent.chat.tokenizer import Tokenizer
from cedagent.upcycle.data.conversation import Conversation, Example, Said, Split, Turn
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.rendering import render
from cedagent.upcycle.data.transcripts import talk


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A message of a user for the parent to answer."""

    conversation: Conversation
    """With one turn; its answer is a stand-in."""

    def ids(self, fmt: ChatFormat) -> list[int]:
        """Return what the parent is given, without tools."""
        system, user = self.conversation.system, self.conversation.turns[0].user
        return fmt.begin(system, ()) + fmt.user(user)

    def example(self, answer: str, fmt: ChatFormat, *, tokenizer: Tokenizer) -> Example:
        """Return the example with the parent's answer, tools listed."""
        turn = replace(self.conversation.turns[0], outputs=(Said(text=answer),))
        return render(replace(self.conversation, turns=(turn,)), fmt, tokenizer=tokenizer)


def chat_prompts(*, split: Split, seed: int) -> Iterator[ChatPrompt]:
    """Yield prompts of plain talk without end."""
    for i in itertools.count():
        draw = Draw(f"prompt/{seed}/{i}", split=split)
        made = talk(draw, "talk", bare=draw.chance(0.3))
        first: Turn = made.turns[0]
        yield ChatPrompt(replace(made, turns=(first,)))
