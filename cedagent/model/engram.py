"""Engram, the conditional memory: n-grams of token ids, hashed into tables of learned rows.

Technical report arXiv 2609.19969, the part on Engram; config fields engram_*, tensors
layers.N.engram.{embed,wkv,q_weight,k_weight}. Knows ids, classes and one layer's tensors; it keeps
nothing of a sequence, since look-back comes from the ids. Invariants: hashing is exact int64
arithmetic, and a position's hash ids do not depend on where a tile or an append began.

Letters: T positions, N = engram_max_ngram_size, H = engram_n_heads, C = (N - 1) * H columns (one
table row each), S = hc_mult streams, D = hidden_size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ced_kernels.ordered.kernel_set import OrderedKernels
from ced_kernels.ordered.norm import inverse_rms
from ced_kernels.ordered.rounded import rounded_sigmoid
from cedagent.errors import ConfigError
from cedagent.model.config_fields import shown
from cedagent.model.engram_map import config_field, load_token_map
from cedagent.model.engram_primes import primes

if TYPE_CHECKING:
    from cedagent.model.release import ReleaseCheckpoint
    from cedagent.model.v41_config import V41Config

__all__ = ["Engram", "NgramHash", "hash_ids", "load_token_map", "multipliers", "primes"]

_INT64_MAX = 2**63 - 1
_GATE_FLOOR = 1e-6
"""Least |dot| under the gate's root (a constant of the report's formula, not in the config)."""


def multipliers(config: Mapping[str, Any] | V41Config, layer: int) -> list[int]:
    """Return a layer's N odd multipliers, one per look-back.

    They are not stored but drawn, as in training from numpy's default generator seeded by the
    layer, and bounded so that class * multiplier stays below 2^63. With few classes they exceed
    2^53, where a float loses the last bits.
    """
    n_classes = config_field(config, "engram_compressed_vocab_size")
    bound = max(1, (_INT64_MAX // n_classes) // 2)
    drawn = np.random.default_rng(10007 * layer).integers(
        0, bound, size=(config_field(config, "engram_max_ngram_size"),), dtype=np.int64
    )
    return [2 * int(value) + 1 for value in drawn]


class NgramHash:
    """Turns token ids into table rows, for all Engram layers of one model."""

    def __init__(self, config: Mapping[str, Any] | V41Config, token_map: Sequence[int]) -> None:
        """Draw primes and multipliers; raises ConfigError when fields or map do not fit."""
        layers = config_field(config, "engram_layer_ids")
        n_classes = config_field(config, "engram_compressed_vocab_size")
        pad = config_field(config, "engram_pad_id")
        n_ids = config_field(config, "vocab_size")
        sizes = primes(config)
        if not sizes:
            raise ConfigError("engram_layer_ids names no layer: there is nothing to hash for")
        classes = _integers(token_map)
        if classes is None or min(classes, default=-1) < 0 or max(classes) >= n_classes:
            raise ConfigError(f"expected a token map of classes 0 .. {n_classes - 1}, got others")
        if len(classes) != n_ids:
            raise ConfigError(
                f"the token map has {len(classes)} token ids, but vocab_size is {n_ids}"
            )
        if not 0 <= pad < len(token_map):
            raise ConfigError(f"engram_pad_id must be 0 .. {len(token_map) - 1}, got {pad}")
        flat = [[prime for heads in orders for prime in heads] for orders in sizes]
        self.n_back = config_field(config, "engram_max_ngram_size") - 1
        """Earlier tokens that an n-gram may hold."""
        self._n_ids = len(classes)
        self._classes = torch.tensor(classes, dtype=torch.int64)
        self._pad = self._classes[pad]
        self._primes = torch.tensor(sizes, dtype=torch.int64)  # [layers, N - 1, H]
        self._offsets = torch.tensor([list(accumulate(row, initial=0))[:-1] for row in flat])
        self._multipliers = torch.tensor(
            [multipliers(config, layer) for layer in layers], dtype=torch.int64
        )

    def of(
        self, ids: Sequence[int], start: int, stop: int, *, dead: Collection[int] = ()
    ) -> Tensor:
        """Return the table rows of positions start .. stop - 1 of a sequence.

        -> int64 [stop - start, layers, C], columns in (order, head) order. Looks back into the ids
        before `start`. At the sequence's start, and from a dead position (an image's) backwards,
        an n-gram is filled with the pad's class. Raises ValueError for an id that has no class.
        """
        if not 0 <= start <= stop <= len(ids):
            raise ValueError(f"expected positions within 0 .. {len(ids)}, got {start} .. {stop}")
        first = max(0, start - self.n_back)
        read = _integers(ids[first:stop])
        if read is None or not 0 <= min(read, default=0) <= max(read, default=0) < self._n_ids:
            raise ValueError(
                f"expected token ids 0 .. {self._n_ids - 1}, got {shown(ids[first:stop])}"
            )
        window = torch.tensor(read, dtype=torch.int64)
        # Pads before position 0 are dead as well: one rule ends look-back at both.
        n_missing = self.n_back - (start - first)
        live = torch.ones(n_missing + len(window), dtype=torch.bool)
        live[:n_missing] = False
        for position in dead:
            if first <= position < stop:
                live[n_missing + position - first] = False
        classes = torch.cat([self._pad.repeat(n_missing), self._classes[window]])
        n_rows = stop - start
        reached = torch.ones(n_rows, dtype=torch.bool)
        rolling = torch.zeros(n_rows, len(self._multipliers), dtype=torch.int64)
        columns = []
        for back in range(self.n_back + 1):
            here = slice(self.n_back - back, self.n_back - back + n_rows)
            reached = reached & live[here]
            word = torch.where(reached, classes[here], self._pad)
            rolling = rolling ^ (word[:, None] * self._multipliers[:, back])
            if back:
                columns.append(rolling[..., None] % self._primes[:, back - 1])
        return torch.cat(columns, dim=-1) + self._offsets


def hash_ids(
    config: Mapping[str, Any] | V41Config,
    token_map: Sequence[int],
    ids: Sequence[int],
    dead: Collection[int] | None = None,
) -> Tensor:
    """Return the table rows of a whole sequence: int64 [T, layers, C].

    `config` is a V41Config or any mapping with vocab_size and the engram_* fields, `dead` holds
    positions. Without Engram layers it is [T, 0, 0]. Raises ConfigError and ValueError as NgramHash
    does, and ValueError for a dead position that the sequence has not.
    """
    positions = _integers(() if dead is None else dead)
    if positions is None or not all(0 <= position < len(ids) for position in positions):
        raise ValueError(f"expected dead positions within 0 .. {len(ids) - 1}, got {shown(dead)}")
    if not config_field(config, "engram_layer_ids"):
        return torch.empty(len(ids), 0, 0, dtype=torch.int64)
    return NgramHash(config, token_map).of(ids, 0, len(ids), dead=positions)


class Engram:
    """One layer's memory: reads C table rows per position and adds a gated value to each stream."""

    def __init__(
        self,
        checkpoint: ReleaseCheckpoint,
        config: V41Config,
        *,
        layer: int,
        kernels: OrderedKernels,
    ) -> None:
        """Open the layer's tensors; table rows are read as they are looked up."""
        self._kernels = kernels
        prefix = f"layers.{layer}.engram."
        self._table = checkpoint.matrix(prefix + "embed.weight")
        self._wkv = checkpoint.matrix(prefix + "wkv.weight")
        self._weight = checkpoint.vector(prefix + "q_weight") * checkpoint.vector(
            prefix + "k_weight"
        )
        self._eps = config.rms_norm_eps

    def __call__(self, streams: Tensor, hash_ids: Tensor) -> Tensor:
        """Return the streams with the memory's values added.

        streams [T, S, D] float32, hash_ids [T, C] int64 -> [T, S, D]. Per stream h with its key k:
        dot = sum(norm(h) * norm(k) * q_weight * k_weight) / sqrt(D), gate = sigmoid(sign(dot) *
        sqrt(|dot|)); the one value is common to all streams.
        """
        n_rows, _, width = streams.shape
        read = self._table.rows(hash_ids.reshape(-1)).reshape(n_rows, -1)
        mixed = self._kernels.product(read, self._wkv.transposed())
        # One key per stream, then the value.
        keys, value = mixed[:, :-width].reshape(streams.shape), mixed[:, -width:]
        weighted = (streams * self._weight).flatten(0, 1)
        dot = self._kernels.row_dots(weighted, keys.flatten(0, 1)).view(streams.shape[:2])
        dot = dot * self._inverse_rms(streams) * self._inverse_rms(keys) * width**-0.5
        gate = rounded_sigmoid(torch.copysign(dot.abs().clamp(min=_GATE_FLOOR).sqrt(), dot))
        return streams + gate[..., None] * value[:, None, :]

    def _inverse_rms(self, x: Tensor) -> Tensor:
        return inverse_rms(self._kernels, x.flatten(0, 1), eps=self._eps).view(x.shape[:2])


def _integers(values: Any) -> list[int] | None:
    """Return a collection's integers, None if it holds anything else: no float is cut to an id."""
    found = values.tolist() if hasattr(values, "tolist") else list(values)
    if not isinstance(found, list):
        return None
    if any(isinstance(one, bool) or not isinstance(one, Integral) for one in found):
        return None
    return [int(one) for one in found]
