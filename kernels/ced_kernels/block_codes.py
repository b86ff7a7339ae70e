"""Blocks of codes: rows cut into blocks of 16 or 32 channels, fp8 or fp4 codes with one scale each.

value = code * scale, with a scale of eight bits: a power of two (ue8m0) or an fp8 number (e4m3).
Knows bytes and rounding; knows no tensor's name and no cache. Codes come from plain float32 and
integer arithmetic, never from a cast to fp8, so that they have the same bits on every device. A
block that holds a NaN or an infinity decodes to NaN, never to a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor


class BlockCodes(NamedTuple):
    """Rows as they are stored."""

    codes: Tensor
    """[..., n_code_bytes] uint8: one e4m3 code a byte, or two e2m1, the even channel's low."""
    scales: Tensor
    """[..., n_blocks] uint8: the byte b means 2^(b - 127), or is an e4m3 code."""


class _Element(NamedTuple):
    """A small float: sign, exponent, mantissa."""

    mantissa_bits: int
    least_exponent: int
    """Exponent of the smallest normal number; below it the spacing stays."""
    largest: float


_E4M3 = _Element(mantissa_bits=3, least_exponent=-6, largest=448.0)
_E2M1 = _Element(mantissa_bits=1, least_exponent=0, largest=6.0)
_NOT_A_NUMBER = {"ue8m0": 0xFF, "e4m3": 0x7F}


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One way to store rows. Letters: W channels of a row, W a multiple of `block`."""

    element: Literal["e4m3", "e2m1"]
    block: int
    """Channels that share a scale."""
    scale: Literal["ue8m0", "e4m3"]
    least_amax: float
    """A block's largest magnitude counts as at least this, so that its scale is never 0."""

    def code_bytes(self, width: int) -> int:
        """Return the bytes of one row's codes."""
        return width if self.element == "e4m3" else width // 2

    def scale_bytes(self, width: int) -> int:
        """Return the bytes of one row's scales."""
        return width // self.block

    def encode(self, x: Tensor) -> BlockCodes:
        """Return x [..., W] float32 as codes and scales.

        The scale is amax / largest, rounded up to a power of two or to the nearest e4m3 number;
        codes are x / scale, clamped, ties to even. Raises ValueError for a width that is not whole
        blocks.
        """
        if x.dtype is not torch.float32 or x.shape[-1] % self.block:
            raise ValueError(
                f"expected float32 [..., a multiple of {self.block}], got {x.dtype} "
                f"{list(x.shape)}; pad the rows or convert them"
            )
        blocks = self._blocks(x)
        amax = blocks.abs().amax(-1)
        scales = self._scales(amax.clamp(min=self.least_amax))
        finite = amax.isfinite()
        scales = torch.where(finite, scales, _NOT_A_NUMBER[self.scale])
        element = _E4M3 if self.element == "e4m3" else _E2M1
        codes = _element_codes(blocks / self._scale_values(scales).unsqueeze(-1), element)
        codes = torch.where(finite.unsqueeze(-1), codes, 0).flatten(-2)
        if self.element == "e2m1":
            codes = codes[..., 0::2] | codes[..., 1::2] << 4
        return BlockCodes(codes, scales)

    def decode(self, stored: BlockCodes) -> Tensor:
        """Return the stored rows' values, [..., W] float32; exact."""
        codes, scales = stored
        if self.element == "e2m1":
            # The bits of an e2m1 number, moved to the e4m3 fields, are that number / 64.
            low = (codes & 0x08) << 4 | (codes & 0x07) << 2
            high = codes & 0x80 | codes >> 2 & 0x1C
            codes = torch.stack((low, high), dim=-1).flatten(-2)
        values = codes.view(torch.float8_e4m3fn).float()
        if self.element == "e2m1":
            values.mul_(64)
        return self._blocks(values).mul_(self._scale_values(scales).unsqueeze(-1)).flatten(-2)

    def round(self, x: Tensor) -> Tensor:
        """Return x [..., W] float32 as it reads once stored."""
        return self.decode(self.encode(x))

    def _blocks(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], x.shape[-1] // self.block, self.block)

    def _scales(self, amax: Tensor) -> Tensor:
        """Return the scale bytes of blocks with these largest magnitudes, uint8."""
        largest = _E4M3.largest if self.element == "e4m3" else _E2M1.largest
        if self.scale == "e4m3":
            # A tensor divides alike on every device; by a number, some multiply by its inverse.
            return _element_codes(amax / torch.full_like(amax, largest), _E4M3)
        bits = (amax * (1 / largest)).view(torch.int32)
        return ((bits >> 23) + (bits & 0x7FFFFF != 0)).to(torch.uint8)

    def _scale_values(self, scales: Tensor) -> Tensor:
        if self.scale == "ue8m0":
            return exponent_values(scales)
        return scales.view(torch.float8_e4m3fn).float()


WINDOW = BlockFormat("e4m3", 32, "ue8m0", least_amax=1e-4)
"""Window rows: fp8 over all channels."""
LATENT = BlockFormat("e2m1", 16, "e4m3", least_amax=6 * 2.0**-9)
"""Compressed latents."""
INDEX = BlockFormat("e2m1", 32, "ue8m0", least_amax=6 * 2.0**-126)
"""Index keys and index queries."""


def exponent_values(exponents: Tensor) -> Tensor:
    """Return 2^(b - 127) for ue8m0 bytes [...] uint8, as float32; 255 is NaN."""
    return exponents.view(torch.float8_e8m0fnu).float()


def _element_codes(x: Tensor, element: _Element) -> Tensor:
    """Return the nearest codes of x, clamped, ties to even; uint8 with the sign in its top bit."""
    bits, least = element.mantissa_bits, element.least_exponent
    magnitude = x.abs().clamp(max=element.largest)
    exponent = ((magnitude.view(torch.int32) >> 23) - 127).clamp(min=least)
    steps = magnitude * ((bits - exponent + 127) << 23).view(torch.float32)
    # Floats from 2^23 to 2^24 are the integers, so this sum rounds to one, ties to even.
    steps = (steps + 2.0**23) - 2.0**23
    # Steps carry into the exponent by themselves where they round up to the next power of two.
    code = ((exponent - least) << bits) + steps.to(torch.int32)
    n_exponent_bits = 4 if element is _E4M3 else 2
    sign = torch.signbit(x).to(torch.int32) << (n_exponent_bits + bits)
    return (code | sign).to(torch.uint8)
