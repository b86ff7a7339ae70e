"""Rotary position embedding, in half-split order (channel i turns with channel i + D/2) and in
adjacent pairs (2i with 2i + 1, on a row's last channels).

Angles of halves are computed in float64 and rounded once, so that position 100,000 is as exact as
position 1; angles of pairs are float32 numbers, as in the models that were trained with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def rope_table(n_positions: int, head_dim: int, *, theta: float) -> tuple[Tensor, Tensor]:
    """Return (cos, sin), each [n_positions, D] float32, for positions 0 .. n_positions - 1.

    Angle of channels i and i + D/2 at position p: p * theta^(-2i/D) (Su et al. 2021, arXiv
    2104.09864, section 3.2.2).
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    angle = torch.outer(torch.arange(n_positions, dtype=torch.float64), theta**-exponent)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate rows by their positions' angles.

    x [..., T, D], cos and sin [T, D] -> [..., T, D]. Half-split order: the pair of channel i is
    channel i + D/2.
    """
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


@dataclass(frozen=True, slots=True)
class Yarn:
    """How frequencies are stretched beyond the positions that a model was first trained with.

    YaRN, Peng et al. 2023, arXiv 2309.00071, section 3.2; queries and keys are not scaled.
    """

    factor: float
    """Slow frequencies are divided by this."""
    beta_fast: float
    """Channels that turn more often than this within the original positions are kept."""
    beta_slow: float
    """Channels that turn less often than this are slow."""
    original_positions: int

    def frequencies(self, plain: Tensor, *, theta: float) -> Tensor:
        """Return frequencies [D/2] float64 from the plain ones, theta^(-2i/D)."""
        dim = 2 * len(plain)
        low = max(math.floor(self._channel(self.beta_fast, dim, theta)), 0)
        high: float = min(math.ceil(self._channel(self.beta_slow, dim, theta)), dim - 1)
        if low == high:
            high += 0.001
        ramp = (torch.arange(len(plain), dtype=torch.float64) - low) / (high - low)
        slow = ramp.clamp(0, 1)
        return plain / self.factor * slow + plain * (1 - slow)

    def _channel(self, turns: float, dim: int, theta: float) -> float:
        """Return the pair that makes `turns` turns within the original positions."""
        return dim * math.log(self.original_positions / (turns * 2 * math.pi)) / 2 / math.log(theta)


def pair_table(
    n_positions: int, rope_dim: int, *, theta: float, yarn: Yarn | None
) -> tuple[Tensor, Tensor]:
    """Return (cos, sin), each [n_positions, rope_dim/2] float32, one column for each pair.

    Frequencies and angles are rounded to float32 before their cosines are taken: the release was
    trained with such angles, and at position 200 the exact ones differ in the fifth digit.
    """
    exponent = torch.arange(0, rope_dim, 2, dtype=torch.float64) / rope_dim
    frequency = (1 / (theta**exponent).float()).double()
    if yarn is not None:
        frequency = yarn.frequencies(frequency, theta=theta)
    position = torch.arange(n_positions, dtype=torch.float32)
    angle = torch.outer(position, frequency.float()).double()
    return angle.cos().float(), angle.sin().float()


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """Rotate the last channels of rows, as adjacent pairs, by their positions' angles.

    x [T, D] or [T, H, D]; cos and sin [T, R/2] for the last R channels; the others pass through.
    A pair (a, b) becomes (a cos - b sin, a sin + b cos); `inverse` turns it back.
    """
    rope_dim = 2 * cos.shape[-1]
    if x.ndim == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if inverse:
        sin = -sin
    even, odd = x[..., -rope_dim::2], x[..., 1 - rope_dim :: 2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., :-rope_dim], turned), dim=-1)
