"""A whole layer for one row has the bits of its operations called one after the other."""

import pytest
import torch

from ced_kernels.attention import KeySpan
from ced_kernels.int8_product import int8_product
from ced_kernels.kernel_set import KernelSet, LayerWeights, Product, ReferenceKernels, Weight
from ced_kernels.rope import rope_table
from ced_kernels.rows import Rows, quantize_rows

SHAPES = [(576, 9, 3, 64, 1536), (48, 3, 1, 16, 96), (100, 2, 2, 12, 37), (64, 13, 1, 80, 200)]
EPS = 1e-5


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def a_matrix(n_out: int, n_in: int, *, seed: int) -> Weight:
    return Weight(*quantize_rows(randn(n_out, n_in, seed=seed) * 1.4 * n_in**-0.5))


def a_layer(hidden: int, n_q: int, n_kv: int, dim: int, inner: int) -> LayerWeights:
    return LayerWeights(
        attention_norm=1 + 0.1 * randn(hidden, seed=1),
        qkv=a_matrix((n_q + 2 * n_kv) * dim, hidden, seed=2),
        output=a_matrix(hidden, n_q * dim, seed=3),
        ffn_norm=1 + 0.1 * randn(hidden, seed=4),
        gate_up=a_matrix(2 * inner, hidden, seed=5),
        down=a_matrix(hidden, inner, seed=6),
        n_q=n_q,
        head_dim=dim,
        eps=EPS,
        scale=dim**-0.5,
    )


def one_by_one(kernels: KernelSet, layer: LayerWeights, x, cos, sin, out, first, spans):
    def product(rows: Rows, weight: Weight) -> Product:
        codes = int8_product(rows.codes, weight.codes, impl="int8_fp32")
        return Product(codes, weight.scale, rows.scale)

    normed = kernels.norm_rows(x, layer.attention_norm, eps=EPS)
    q = kernels.split_heads(
        product(normed, layer.qkv), cos, sin, n_q=layer.n_q, out=out, first=first
    )
    attended = kernels.quantize(kernels.attend(q, spans, scale=layer.scale))
    x, normed = kernels.add_norm_rows(x, product(attended, layer.output), layer.ffn_norm, eps=EPS)
    gated = kernels.gate_rows(product(normed, layer.gate_up))
    return kernels.add(x, product(gated, layer.down))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pos", [0, 1, 63, 1500])
@pytest.mark.parametrize("threads", [1, 2])
def test_it_has_the_bits_of_its_operations(native, shape, pos, threads):
    hidden, _, n_kv, dim, _ = shape
    layer = a_layer(*shape)
    x = randn(1, hidden, seed=7)
    cos, sin = (table[pos : pos + 1] for table in rope_table(pos + 1, dim, theta=1e4))
    stored = quantize_rows(randn(2, n_kv, pos + 3, dim, seed=8), scale_dtype=torch.float16)
    other = quantize_rows(randn(2, n_kv, 90, dim, seed=9), scale_dtype=torch.float16)
    before, results = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        for run in (native.row_layer(layer), lambda *a: one_by_one(native, layer, *a)):
            out = Rows(stored.codes.clone(), stored.scale.clone())
            spans = [KeySpan(other, 5, 85), KeySpan(out, 0, pos + 1)]
            results.append((run(x, cos, sin, out, pos, spans), *out))
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *results))
    assert not torch.equal(results[0][1], stored.codes)
    expected = one_by_one(ReferenceKernels("int8_fp32"), layer, x, cos, sin, out, pos, spans)
    torch.testing.assert_close(results[0][0], expected, rtol=0, atol=0.05)


def test_without_a_cache_of_its_own_nothing_is_written(native):
    layer, x = a_layer(*SHAPES[1]), randn(1, 48, seed=7)
    cos, sin = rope_table(1, 16, theta=1e4)
    span = KeySpan(quantize_rows(randn(2, 1, 90, 16, seed=9), scale_dtype=torch.float16), 0, 90)
    got = native.row_layer(layer)(x, cos, sin, None, 0, [span])
    assert torch.equal(got, one_by_one(native, layer, x, cos, sin, None, 0, [span]))


def test_weights_that_are_not_int8_have_no_row_layer(native):
    layer = a_layer(*SHAPES[1])
    as_float = layer._replace(down=Weight(layer.down.codes.float(), layer.down.scale))
    assert native.row_layer(as_float) is None
    assert ReferenceKernels("int_mm").row_layer(layer) is None
