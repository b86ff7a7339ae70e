"""Sampling by position: the draw at position t is a function of (seed, t) alone.

So the same seed gives the same tokens live, resumed and cold. Probabilities are float64; equal
logits are ordered by token id.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import torch
from torch import Tensor

from cedagent.engine.protocol import Sampling
from cedagent.errors import EngineError


def draw(seed: int, pos: int) -> float:
    """Return the first 53 bits of SHA-256(seed u64 LE || pos u64 LE) as a number in [0, 1)."""
    digest = hashlib.sha256(struct.pack("<QQ", seed % 2**64, pos)).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def sample(
    logits: Tensor,
    sampling: Sampling,
    *,
    pos: int,
    allowed: bytes | None = None,
    majority: int | None = None,
) -> int:
    """Return the token id drawn from logits [V] for position `pos`.

    `allowed` has one bit per id, least significant first; None allows all. Greedy decoding takes
    the id `majority` exactly if it has half of the probability of all allowed ids. Raises
    EngineError when nothing is allowed or the logits are not finite.
    """
    if allowed is not None:
        bits = np.unpackbits(np.frombuffer(allowed, dtype=np.uint8), bitorder="little")
        mask = torch.from_numpy(bits[: len(logits)].astype(bool))
        if len(mask) < len(logits):
            raise EngineError(f"mask of {len(mask)} bits for {len(logits)} token ids")
        if not bool(mask.any()):
            raise EngineError("no token is allowed here: the grammar has no way on")
        logits = logits.masked_fill(~mask, float("-inf"))
    best = int(logits.argmax())
    if not bool(torch.isfinite(logits[best])):
        raise EngineError("the logits are not finite; the weights or the cache are damaged")
    if sampling.temperature <= 0 and majority is not None:
        if float(torch.softmax(logits.double(), dim=-1)[majority]) >= 0.5:
            return majority
        logits = logits.clone()
        logits[majority] = float("-inf")
        best = int(logits.argmax())
    if sampling.temperature <= 0:
        # argmax may return any of several equal maxima.
        return int((logits == logits[best]).nonzero()[0])
    # The best logit is taken off before dividing: a tiny temperature must not overflow.
    scaled = (logits.double() - float(logits[best])) / sampling.temperature
    probabilities = torch.softmax(scaled, dim=-1)
    ordered, ids = probabilities.sort(descending=True, stable=True)
    cumulative = ordered.cumsum(0)
    kept = int((cumulative < sampling.top_p).sum()) + 1
    kept = min(kept, int((ordered > 0).sum()))
    target = draw(sampling.seed, pos) * float(cumulative[kept - 1])
    index = int(torch.searchsorted(cumulative[:kept], target, right=True))
    return int(ids[min(index, kept - 1)])
