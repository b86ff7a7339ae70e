"""The texts of a stage, for one model: plain ones from this machine, transcripts from generators.

Joins a model's tokenizer and chat format with the generators and knows no loss.
Invariant: iterators never end; held-out ones go round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Literal

from cedagent.chat.template import chat_format, load_chat_format
from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import ChatFormatError, UsageError
from cedagent.model.llama.config import LlamaConfig
from cedagent.upcycle.data import tool_examples
from cedagent.upcycle.data.plain import plain_examples
from cedagent.upcycle.source import Parent
from cedagent.upcycle.training.batches import Example, TokenStream
from cedagent.upcycle.training.own_answers import mixed

_HELD_OUT = 64
"""Held-out examples that are gone round."""


class ModelTexts:
    """Examples for one model directory."""

    def __init__(
        self,
        model_dir: Path,
        *,
        longest: int,
        answers: Sequence[Example] = (),
        answers_share: float = 0.0,
    ) -> None:
        """Read the tokenizer; transcripts of more than `longest` tokens are left out.

        `answers` make up a share of the transcripts to train on. Raises ConfigError when the model
        has no tokenizer, UsageError when the answers are another's.
        """
        self._model_dir = model_dir
        self._config = config = LlamaConfig.load(model_dir)
        self._tokenizer = Tokenizer.load(model_dir)
        self._longest = min(longest, config.max_position_embeddings)
        self._answers, self._answers_share = answers, answers_share
        largest = max((max(answer.ids) for answer in answers), default=0)
        if largest >= config.vocab_size:
            raise UsageError(
                f"the answers have token {largest}, but vocab_size is {config.vocab_size}: "
                "expected answers of this model's own parent"
            )

    def plain(self, split: Literal["train", "heldout"], seed: int) -> Iterator[Example]:
        """Yield plain text without end."""
        return _endless(plain_examples(self._tokenizer, split=split, seed=seed), split)

    def transcripts(self, split: Literal["train", "heldout"], seed: int) -> Iterator[Example]:
        """Yield tool transcripts without end.

        Raises ConfigError or ChatFormatError when the model has no such chat format, which plain
        text does without.
        """
        fmt = load_chat_format(self._model_dir, self._config.chat_format, tokenizer=self._tokenizer)
        examples = tool_examples(
            fmt, self._tokenizer, split=split, seed=seed, max_tokens=self._longest
        )
        found = _endless(examples, split)
        if self._answers and split == "train":
            return mixed(found, self._answers, share=self._answers_share, seed=seed)
        return found


def compared_documents(parent: Parent, *, n: int, length: int) -> list[list[int]]:
    """Return `n` held-out documents of `length` tokens, half plain text and half transcripts.

    Plain text alone for a tokenizer without the control tokens of the chat format.
    """
    tokenizer = Tokenizer(parent.tokenizer_json)
    kinds = [plain_examples(tokenizer, split="heldout", seed=0)]
    with suppress(ChatFormatError):
        fmt = chat_format(parent.config.chat_format, tokenizer=tokenizer)
        kinds.append(tool_examples(fmt, tokenizer, split="heldout", seed=0))
    streams = cycle([TokenStream(_endless(examples, "heldout")) for examples in kinds])
    return [stream.take(length) for stream in islice(streams, n)]


def _endless(examples: Iterator[Example], split: str) -> Iterator[Example]:
    return examples if split == "train" else cycle(islice(examples, _HELD_OUT))
