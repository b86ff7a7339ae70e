"""How well a model predicts a text, token by token, every position through both halves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cedagent.engine import Engine


@dataclass(frozen=True, slots=True)
class Scored:
    """Sums over the tokens that have a token before them."""

    tokens: int
    nats: float
    """Negative log probability of all of them."""

    @property
    def bits_per_token(self) -> float:
        """Mean of -log2 p."""
        return self.nats / math.log(2) / self.tokens

    @property
    def perplexity(self) -> float:
        """exp of the mean of -ln p."""
        return math.exp(self.nats / self.tokens)


def score_text(engine: Engine, text: str, *, context: int) -> Scored:
    """Score a text in stretches of `context` tokens, each starting anew."""
    import torch

    from cedagent.chat.tokenizer import Tokenizer

    ids = Tokenizer.load(engine.model_dir).encode(text)
    context = min(context, engine.context_limit)
    n_tokens, nats = 0, 0.0
    for start in range(0, len(ids), context):
        part = ids[start : start + context]
        if len(part) < 2:
            continue
        logits = engine.logits(part[:-1]).double()
        given = torch.tensor(part[1:]).unsqueeze(-1)
        chosen = logits.log_softmax(-1).gather(-1, given)
        nats -= float(chosen.sum())
        n_tokens += len(part) - 1
    return Scored(n_tokens, nats)
