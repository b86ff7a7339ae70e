"""Functions computed in float64 and rounded once to float32, and short sums in order.

A library's float32 exponential differs from another's in the last bit; the float64 one, rounded, is
the nearest float32 in all but one of many million cases. So these have the same bits anywhere.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def rounded_exp(x: Tensor) -> Tensor:
    """Return e^x elementwise, float32."""
    return x.double().exp_().float()


def rounded_sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + e^-x) elementwise, float32."""
    return 1 / (1 + rounded_exp(-x))


def rounded_softmax(x: Tensor, *, dim: int) -> Tensor:
    """Return the softmax over one short dimension, float32: exponentials, then sums first to last.

    Intended for a handful of terms, which are added one after the other.
    """
    weights = rounded_exp(x - x.amax(dim, keepdim=True))
    return weights / ordered_sum(weights, dim=dim).unsqueeze(dim)


def ordered_sum(x: Tensor, *, dim: int) -> Tensor:
    """Return the sum over one short dimension, first to last, each sum rounded."""
    parts = x.unbind(dim)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def rounded_root_softplus(x: Tensor) -> Tensor:
    """Return sqrt(log(1 + e^x)) elementwise, float32, also where e^x underflows beside 1."""
    return functional.softplus(x.double(), threshold=40).sqrt().float()
