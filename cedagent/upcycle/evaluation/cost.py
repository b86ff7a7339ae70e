"""How long an evaluation will take, from a second of measuring and from what it has to run.

Knows counts of tokens and an engine's narrow door. It is an estimate: it is there so that nobody
starts an hour's work for a look.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from cedagent.engine.protocol import EngineLike

_PROBE = 384
_PROBE_FED = 12
_OUTPUT_TOKENS = 30
"""Tokens of one output: a call or a sentence."""
_PARENT = 10.0
"""Time of a token of the float32 parent in those of an int8 prefill (measured: 9 to 12)."""
_FULL = 2.0
"""The same of a position in `full` mode, head and all."""
_COMPARE = 0.25
"""Time of comparing two rows of logits in those of a decoded token."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be run, in tokens."""

    parent: int = 0
    """Through the parent."""
    positions: int = 0
    """Scored in `full` mode."""
    prefilled: int = 0
    fed: int = 0
    """Decoded and scored."""
    outputs: int = 0
    """Outputs to be written; in outputs, not in tokens."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds per token of one engine on this machine, now."""

    prefill: float
    decode: float

    def seconds(self, work: Work) -> float:
        """Return about how long the work takes."""
        prefilled = work.prefilled + _FULL * work.positions + _PARENT * work.parent
        decoded = work.outputs * _OUTPUT_TOKENS + work.fed
        compared = _COMPARE * (work.fed + work.positions)
        return self.prefill * prefilled + self.decode * (decoded + compared)


def measure(engine: EngineLike, ids: Sequence[int]) -> Pace:
    """Run some tokens, given or zeros, and return their pace."""
    length = min(_PROBE, engine.context_limit - _PROBE_FED)
    text = [*ids[:length], *[0] * (length - len(ids))]
    first = engine.sequence()
    first.prefill(text[:1])
    first.close()
    sequence = engine.sequence()
    started = time.perf_counter()
    sequence.prefill(text)
    prefilled = time.perf_counter()
    for _ in range(_PROBE_FED):
        sequence.feed(0)
    fed = time.perf_counter()
    sequence.close()
    return Pace((prefilled - started) / length, (fed - prefilled) / _PROBE_FED)
