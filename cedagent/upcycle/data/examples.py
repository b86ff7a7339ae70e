"""Endless examples of tool use, rendered for a chat format.

Knows the mix and the rendering. Invariant: example number i of a split and a seed is the same in
every process and on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from cedagent.chat.template import ChatFormat
from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import UsageError
from cedagent.upcycle.data.cases import heldout_conversations
from cedagent.upcycle.data.conversation import Conversation, Example, Split
from cedagent.upcycle.data.rendering import render
from cedagent.upcycle.data.transcripts import train_conversation

_MOST_LEFT_OUT = 1000
"""Examples in a row that may be too long before it is a mistake."""
_HELDOUT_KINDS = ("known", "unseen", "known", "multi_step", "chat", "known", "needle_1000")


def tool_examples(
    fmt: ChatFormat,
    tokenizer: Tokenizer,
    *,
    split: Split,
    seed: int,
    max_tokens: int = 4096,
) -> Iterator[Example]:
    """Yield examples of tool use and talk without end; longer ones are left out.

    The held-out side has the wordings, values and tools of the cases, with answers. Raises
    UsageError when all that comes is too long.
    """
    n_left_out = 0
    for made in conversations(tokenizer, split=split, seed=seed):
        example = render(made, fmt, tokenizer=tokenizer)
        if len(example.ids) <= max_tokens:
            n_left_out = 0
            yield example
            continue
        n_left_out += 1
        if n_left_out == _MOST_LEFT_OUT:
            raise UsageError(
                f"no transcript of at most {max_tokens:,} tokens among {n_left_out:,}: allow more "
                "tokens in a pass"
            )


def conversations(tokenizer: Tokenizer, *, split: Split, seed: int) -> Iterator[Conversation]:
    """Yield the conversations that `tool_examples` renders."""

    def count(text: str) -> int:
        return len(tokenizer.encode(text))

    for i in itertools.count():
        if split == "train":
            yield train_conversation(f"train/{seed}/{i}", count=count)
        else:
            kind = _HELDOUT_KINDS[i % len(_HELDOUT_KINDS)]
            yield from heldout_conversations(kind, seed=_seed_of(seed, i), n=1, tokenizer=tokenizer)


def _seed_of(seed: int, i: int) -> int:
    """Return a seed for item i that no other item of a nearby seed has."""
    return seed * 1_000_003 + i
