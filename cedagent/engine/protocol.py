"""What the agent loop needs from an engine: the narrow door, without tensors.

`cedagent.engine.Engine` and `cedagent.testing.ScriptedModel` both satisfy it. Nothing here imports
torch. Token ids are plain ints; a mask of allowed ids is bytes, one bit per id, least significant
bit first (id i is bit i % 8 of byte i // 8), at least ceil(vocab / 8) bytes long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cedagent.errors import UsageError

Progress = Callable[[int, int, int], None]
"""Called with (done, total, reused) prompt tokens while a prefill runs."""

Cancelled = Callable[[], bool]
"""Polled at every tile and every token; True asks the engine to stop there."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn; greedy when `temperature` is 0."""

    temperature: float = 0.0
    """0 takes the most likely token; otherwise logits are divided by it."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this."""
    seed: int = 0
    """The draw at position t is the first 53 bits of SHA-256(seed as u64 LE || t as u64 LE)."""

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of its range."""
        # Written so that NaN, which compares with nothing, is refused too.
        if not _is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise UsageError(f"temperature: expected 0 or more, got {self.temperature!r}")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise UsageError(f"top_p: expected above 0 and at most 1, got {self.top_p!r}")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**64:
            raise UsageError(f"seed: expected a whole number of 0 to 2**64 - 1, got {self.seed!r}")


@dataclass(frozen=True, slots=True)
class PrefillUsage:
    """What one prefill did, in tokens; reused_ram + reused_disk + encoded = prompt tokens."""

    reused_ram: int = 0
    """Rows taken from this or another open sequence."""
    reused_disk: int = 0
    """Rows restored from the prefix store."""
    encoded: int = 0
    """Valid rows that went through the encoder."""
    reencoded: int = 0
    """Of `encoded`: tokens already known before this append; fewer than 128 where the rows before
    the last whole block are held in RAM or in the store."""
    rerun: int = 0
    """Rows below the restore point that were run again (in no sum)."""
    padded: int = 0
    """Padding rows in the last tile (in no sum)."""
    replayed: int = 0
    """Rows run through the first decoder layer (in no sum)."""
    cancelled: bool = False
    """True when `cancelled()` stopped it: there are no logits; whole tiles done so far are kept."""


class SequenceLike(Protocol):
    """One sequence of tokens with its state; used by one thread at a time."""

    @property
    def ids(self) -> Sequence[int]:
        """All token ids so far."""
        ...

    def prefill(
        self,
        new_ids: Sequence[int],
        *,
        progress: Progress | None = None,
        cancelled: Cancelled | None = None,
        label: str = "prefill",
    ) -> PrefillUsage:
        """Append ids (perhaps none), encode what is not known, replay; leaves next-token logits.

        Raises ContextLimitError before anything is appended when the ids do not fit.
        """
        ...

    def sample(
        self,
        sampling: Sampling,
        allowed: bytes | None = None,
        *,
        majority: int | None = None,
    ) -> int:
        """Draw the next token from the current logits, among the allowed ids; appends nothing.

        Greedy decoding takes `majority` exactly if it has half of the probability of all allowed
        ids together, and the likeliest other one if not.
        """
        ...

    def feed(self, token: int) -> None:
        """Append one sampled or forced token through both halves; leaves next-token logits."""
        ...

    def append_unseen(self, ids: Sequence[int]) -> None:
        """Append closing ids after an output without running them; the next prefill does."""
        ...

    def settle(self, label: str = "output") -> int:
        """End an output: encode its complete tiles on the grid and publish them.

        Returns how many of its tokens that encoded.
        """
        ...

    def fork(self, n_tokens: int | None = None) -> SequenceLike:
        """Return a new sequence over the first `n_tokens` ids (all by default)."""
        ...

    def close(self) -> None:
        """Drop the state held in RAM; the ids stay readable."""
        ...


class EngineLike(Protocol):
    """A loaded model with its optional prefix store."""

    @property
    def model_dir(self) -> Path:
        """The model directory (config.json, tokenizer.json, weights)."""
        ...

    @property
    def model_digest(self) -> str:
        """Hex digest of config and weights: another value means another model."""
        ...

    @property
    def chat_format(self) -> str:
        """Name of the chat format in config.json: "chatml" or "dsml"."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        ...

    @property
    def context_limit(self) -> int:
        """Most tokens a sequence can hold."""
        ...

    def sequence(self, ids: Sequence[int] = ()) -> SequenceLike:
        """Open a sequence over ids that are known but not yet run; a prefill runs them."""
        ...

    def warm(
        self, ids: Sequence[int], *, label: str = "warm", progress: Progress | None = None
    ) -> PrefillUsage:
        """Encode the whole blocks of a shared prefix and pin them in the store, if there is one.

        Nothing is replayed. Raises ContextLimitError when the ids do not fit.
        """
        ...


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
