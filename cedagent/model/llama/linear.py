"""Linear maps without bias, in float32 or in exact int8.

An int8 map multiplies codes exactly and leaves both scales to what comes after; so a row's result
does not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ced_kernels.int8_product import Int8Impl, int8_product
from ced_kernels.kernel_set import Product, Weight
from ced_kernels.rows import Rows
from cedagent.model.llama.weights import Checkpoint


class Linear(Protocol):
    """y = x W^T."""

    @property
    def stored(self) -> Weight:
        """The matrix [N, K] as it is multiplied."""
        ...

    def __call__(self, x: Rows) -> Product:
        """Map rows [M, K] to [M, N]."""
        ...

    def rows(self, index: Tensor) -> Tensor:
        """Return rows [T, K] float32 of W by index [T] (an embedding look-up)."""
        ...


class Float32Linear:
    """A map whose weights are float32: the reference path."""

    def __init__(self, weight: Tensor) -> None:
        """Take weight [N, K] float32."""
        self.stored = Weight(weight, None)

    def __call__(self, x: Rows) -> Product:
        """Map float32 rows [M, K] to [M, N]."""
        return Product(x.codes @ self.stored.codes.t(), None, None)

    def rows(self, index: Tensor) -> Tensor:
        """Return rows [T, K] of the weight."""
        return self.stored.codes[index]


class Int8Linear:
    """A map whose weights are int8 codes [N, K] with a scale [N] per output channel."""

    def __init__(self, codes: Tensor, scale: Tensor, *, impl: Int8Impl) -> None:
        """Take the codes; `int8_fp32` keeps them as float32, which it multiplies."""
        self.impl: Int8Impl = impl
        self.stored = Weight(codes.float() if impl == "int8_fp32" else codes, scale)
        self._scale = scale

    def __call__(self, x: Rows) -> Product:
        """Map rows of codes [M, K] to [M, N]."""
        product = int8_product(x.codes, self.stored.codes, impl=self.impl)
        return Product(product, self._scale, x.scale)

    def rows(self, index: Tensor) -> Tensor:
        """Return rows [T, K] of the dequantised weight."""
        return self.stored.codes[index].float() * self._scale[index].unsqueeze(-1)


def load_linear(checkpoint: Checkpoint, names: Sequence[str], *, impl: Int8Impl) -> Linear:
    """Return one map whose outputs are those of the named matrices, one after the other."""
    parts = [checkpoint.matrix(name) for name in names]
    weight = torch.cat([values for values, _ in parts]) if len(parts) > 1 else parts[0][0]
    scales = [scale for _, scale in parts if scale is not None]
    if not scales:
        return Float32Linear(weight)
    return Int8Linear(weight, torch.cat(scales), impl=impl)
