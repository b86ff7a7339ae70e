"""The texts of a stage, for one model: plain ones from this machine, transcripts from generators.

Joins a model's tokenizer and chat format with the generators and knows neither loss nor batch.
Invariant: iterators never end; held-out ones go round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Literal

from cedagent.chat.template import load_chat_format
from cedagent.chat.tokenizer import Tokenizer
from cedagent.model.llama.config import LlamaConfig
from cedagent.upcycle.data import tool_examples
from cedagent.upcycle.data.plain import plain_examples
from cedagent.upcycle.training.batches import Example
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
        """Read tokenizer and chat format; transcripts of more than `longest` tokens are left out.

        `answers` make up a share of the transcripts to train on. Raises ConfigError when the model
        has no tokenizer, or no such format.
        """
        config = LlamaConfig.load(model_dir)
        self._tokenizer = Tokenizer.load(model_dir)
        self._format = load_chat_format(model_dir, config.chat_format, tokenizer=self._tokenizer)
        self._longest = min(longest, config.max_position_embeddings)
        self._answers, self._answers_share = answers, answers_share

    def plain(self, split: Literal["train", "heldout"], seed: int) -> Iterator[Example]:
        """Yield plain text without end."""
        return _endless(plain_examples(self._tokenizer, split=split, seed=seed), split)

    def transcripts(self, split: Literal["train", "heldout"], seed: int) -> Iterator[Example]:
        """Yield tool transcripts without end."""
        examples = tool_examples(
            self._format, self._tokenizer, split=split, seed=seed, max_tokens=self._longest
        )
        found = _endless(examples, split)
        if self._answers and split == "train":
            return mixed(found, self._answers, share=self._answers_share, seed=seed)
        return found


def _endless(examples: Iterator[Example], split: str) -> Iterator[Example]:
    return examples if split == "train" else cycle(islice(examples, _HELD_OUT))
