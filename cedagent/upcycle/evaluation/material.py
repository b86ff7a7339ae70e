"""What a model is evaluated on: held-out texts, and cases by kind.

Draws both from the data generators' held-out side, or from whatever a test puts in their place.
Knows settings and generators, no engine. Invariant: the same settings draw the same material.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cedagent.chat.tokenizer import Tokenizer
from cedagent.upcycle.data import Case, Example, plain_examples, tool_cases
from cedagent.upcycle.evaluation.report import Settings
from cedagent.upcycle.evaluation.texts import cut_texts, text_digest

_KINDS = ("known", "unseen", "multi_step", "chat", "recovery")
_DOCUMENT = 512
"""Fewest tokens of a document."""


@dataclass(frozen=True, slots=True)
class Generators:
    """Where texts and cases come from."""

    examples: Callable[[Tokenizer, int, int], Iterable[Example]]
    """(tokenizer, seed, n) -> texts of at most n tokens that training never sees."""
    cases: Callable[[Tokenizer, str, int, int], Sequence[Case]]
    """(tokenizer, kind, seed, n) -> cases that training never sees."""


@dataclass(frozen=True, slots=True)
class Material:
    """Texts and cases of one evaluation."""

    texts: tuple[list[int], ...]
    cases: Mapping[str, Sequence[Case]]
    """Kind -> cases, in the order in which they are run."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all texts."""
        return hashlib.sha256("".join(map(text_digest, self.texts)).encode()).hexdigest()


def heldout() -> Generators:
    """Return the generators' held-out side."""
    return Generators(_documents, _cases)


def draw(
    settings: Settings, tokenizer: Tokenizer, generators: Generators, *, context: int
) -> Material:
    """Return the material of these settings; no text is longer than `context` tokens.

    Raises UsageError when there is not enough text for one.
    """
    texts: list[list[int]] = []
    if "text" in settings.suites:
        length = min(settings.tokens, context)
        examples = generators.examples(tokenizer, settings.seed, length)
        texts = cut_texts(examples, n=settings.texts, length=length)
    kinds: list[str] = list(_KINDS) if "tools" in settings.suites else []
    if "needle" in settings.suites:
        kinds += [f"needle_{n_tokens}" for n_tokens in settings.needles]
    cases = {
        kind: generators.cases(tokenizer, kind, settings.seed, settings.cases) for kind in kinds
    }
    return Material(tuple(texts), cases)


def _documents(tokenizer: Tokenizer, seed: int, length: int) -> Iterable[Example]:
    # Longer ones alone would be made-up records for the most part: few files are that long.
    return plain_examples(
        tokenizer, split="heldout", seed=seed, lengths=(min(_DOCUMENT, length), length)
    )


def _cases(tokenizer: Tokenizer, kind: str, seed: int, n: int) -> Sequence[Case]:
    return tool_cases(kind=kind, seed=seed, n=n, tokenizer=tokenizer)
