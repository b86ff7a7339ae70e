"""Rotary position embedding in half-split order: channel i turns with channel i + D/2.

Angles are computed in float64 and rounded once, so that position 100,000 is as exact as position 1.
"""

from __future__ import annotations

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
