"""KernelSet: what a layer computes between its matrix products, and the reference of each.

A layer is four products (exact in int8) with these operations between them. Each is a formula; the
reference set computes it in plain torch and is the specification, another set computes the same
faster. Sets share no bits, so their `name` belongs in every fingerprint.

Letters: T rows, D channels, F inner channels, Hq query heads, H key heads, d head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import silu

from ced_kernels.attention import KeySpan, attend
from ced_kernels.int8_product import Int8Impl
from ced_kernels.norm import rms_norm
from ced_kernels.rope import rotate
from ced_kernels.rows import Rows, quantize_rows


class Product(NamedTuple):
    """Rows times a weight: an exact int8 product with its scales, or float32 values."""

    codes: Tensor
    """[T, N] int32, or float32 values when the scales are None."""
    channel_scale: Tensor | None
    """[N] float32, of the weight's output channels."""
    row_scale: Tensor | None
    """[T] float32, of the input's rows."""

    def values(self) -> Tensor:
        """Return (codes * channel_scale) * row_scale, [T, N] float32."""
        if self.channel_scale is None or self.row_scale is None:
            return self.codes
        return (self.codes * self.channel_scale).mul_(self.row_scale.unsqueeze(-1))


class Weight(NamedTuple):
    """A matrix in its stored form."""

    codes: Tensor
    """[N, K] int8 (or float32 holding codes or, without a scale, values)."""
    scale: Tensor | None
    """[N] float32, or None."""


class LayerWeights(NamedTuple):
    """What one Llama layer computes with."""

    attention_norm: Tensor
    """[D]."""
    qkv: Weight
    """[(Hq + 2H) * d, D]: queries, keys, values."""
    output: Weight
    """[D, Hq * d]."""
    ffn_norm: Tensor
    """[D]."""
    gate_up: Weight
    """[2F, D]: gate, then up."""
    down: Weight
    """[D, F]."""
    n_q: int
    """Hq."""
    head_dim: int
    """d."""
    eps: float
    scale: float
    """Of attention's scores."""


class RowLayer(Protocol):
    """A whole layer for one row."""

    def __call__(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        out: Rows | None,
        first: int,
        spans: Sequence[KeySpan],
    ) -> Tensor:
        """Return the residual stream [1, D] after the layer.

        The row's own keys and values are written first, to row `first` of `out`; see `split_heads`.
        """
        ...


class KernelSet(Protocol):
    """The operations of a layer. Arguments are contiguous and, `out` aside, never written.

    "Codes" are int8 with one float32 scale per row; a set that serves float32 leaves values as they
    are, with scale None.
    """

    @property
    def name(self) -> str:
        """Name and version; the version changes with the bits."""
        ...

    def quantize(self, x: Tensor) -> Rows:
        """Return the rows of x [T, D] float32 as codes [T, D] with scale [T]."""
        ...

    def norm_rows(self, x: Tensor, weight: Tensor, *, eps: float) -> Rows:
        """Return the RMS-normalised rows of x [T, D] as codes [T, D] with scale [T]."""
        ...

    def dequantize(self, product: Product) -> Tensor:
        """Return the product's values [T, N] float32."""
        ...

    def add(self, x: Tensor, product: Product) -> Tensor:
        """Return x + product, [T, D] float32."""
        ...

    def add_norm_rows(
        self, x: Tensor, product: Product, weight: Tensor, *, eps: float
    ) -> tuple[Tensor, Rows]:
        """Return x + product, and its RMS-normalised rows as codes."""
        ...

    def gate_rows(self, product: Product) -> Rows:
        """Return silu(gate) * up as codes [T, F], scale [T]; product [T, 2F] is gate, then up."""
        ...

    def split_heads(
        self, product: Product, cos: Tensor, sin: Tensor, *, n_q: int, out: Rows | None, first: int
    ) -> Rows:
        """Return rotated queries as codes [Hq, T, d], scale [Hq, T]; write keys and values.

        product [T, (Hq + 2H) * d] is queries, keys, values; cos and sin [T, d]; Hq = `n_q`, perhaps
        0. Rotated keys, and values, go into rows `first` .. of `out`: codes [2, H, C, d], scale
        [2, H, C] float16 (or float32 values); nowhere for None.
        """
        ...

    def attend(self, q: Rows, spans: Sequence[KeySpan], *, scale: float) -> Tensor:
        """Return softmax(q K^T * scale) V over all spans, [T, Hq * d] float32."""
        ...

    def row_layer(self, weights: LayerWeights) -> RowLayer | None:
        """Return the layer for one row in one piece, or None where the set has none.

        Its bits are those of the operations above with exact products between them.
        """
        ...


class ReferenceKernels:
    """Every operation in plain torch: the specification."""

    name = "reference 1"

    def __init__(self, impl: Int8Impl | None) -> None:
        """Take the int8 product of attention's scores, whose choice changes no bit.

        None serves float32: nothing is quantised.
        """
        self._impl: Int8Impl | None = impl

    def quantize(self, x: Tensor) -> Rows:
        """Take codes and scale of each row."""
        return Rows(x, None) if self._impl is None else quantize_rows(x)

    def norm_rows(self, x: Tensor, weight: Tensor, *, eps: float) -> Rows:
        """Normalise, then quantise."""
        return self.quantize(rms_norm(x, weight, eps=eps))

    def dequantize(self, product: Product) -> Tensor:
        """Apply both scales."""
        return product.values()

    def add(self, x: Tensor, product: Product) -> Tensor:
        """Apply both scales, then add."""
        return x + product.values()

    def add_norm_rows(
        self, x: Tensor, product: Product, weight: Tensor, *, eps: float
    ) -> tuple[Tensor, Rows]:
        """Add, then normalise and quantise the sum."""
        total = x + product.values()
        return total, self.norm_rows(total, weight, eps=eps)

    def gate_rows(self, product: Product) -> Rows:
        """Gate, then quantise."""
        gate, up = product.values().chunk(2, dim=-1)
        return self.quantize(silu(gate) * up)

    def split_heads(
        self, product: Product, cos: Tensor, sin: Tensor, *, n_q: int, out: Rows | None, first: int
    ) -> Rows:
        """Rotate queries and keys; quantise all heads, keys and values with float16 scales."""
        n_rows, head_dim = cos.shape
        heads = product.values().view(n_rows, -1, head_dim).transpose(0, 1)
        n_kv = (len(heads) - n_q) // 2
        rotated = rotate(heads[: n_q + n_kv], cos, sin)
        if out is not None:
            kv = torch.stack((rotated[n_q:], heads[n_q + n_kv :]))
            rows = Rows(kv, None)
            if out.scale is not None:
                rows = quantize_rows(kv, scale_dtype=torch.float16)
                assert rows.scale is not None
                out.scale[:, :, first : first + n_rows] = rows.scale
            out.codes[:, :, first : first + n_rows] = rows.codes
        return self.quantize(rotated[:n_q])

    def attend(self, q: Rows, spans: Sequence[KeySpan], *, scale: float) -> Tensor:
        """Materialise all scores."""
        return attend(q, spans, scale=scale, impl=self._impl)

    def row_layer(self, weights: LayerWeights) -> RowLayer | None:
        """Have none: one row goes through the operations."""
        return None
