"""Block formats: codes are the nearest ones, scales the specified ones, bytes the released ones."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from ced_kernels.block_codes import INDEX, LATENT, WINDOW, BlockCodes, exponent_values

VECTORS = Path(__file__).parents[1] / "vectors"
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FORMATS = pytest.mark.parametrize(
    "form", [WINDOW, LATENT, INDEX], ids=["window", "latent", "index"]
)


def at_scale_one(form, values):
    """Return blocks that hold the format's largest magnitude, so that codes are of the values."""
    largest = 448.0 if form.element == "e4m3" else 6.0
    n_values = form.block - 1
    values = torch.cat((values, torch.zeros(-len(values) % n_values)))
    blocks = values.view(-1, n_values)
    return torch.cat((torch.full((len(blocks), 1), largest), blocks), dim=1)


def unpacked(codes):
    return torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)


def test_bytes_are_the_released_ones():
    def row(form, width):
        return form.code_bytes(width) + form.scale_bytes(width)

    assert row(WINDOW, 512) == 528
    assert row(LATENT, 512) == 288
    assert row(INDEX, 128) == 68
    assert (row(LATENT, 512) + row(INDEX, 128)) * (3 / 2 + 1) == 890
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(0))
    for form in (WINDOW, LATENT, INDEX):
        stored = form.encode(x)
        assert stored.codes.shape == (3, form.code_bytes(512))
        assert stored.scales.shape == (3, form.scale_bytes(512))
        assert stored.codes.dtype == stored.scales.dtype == torch.uint8


def test_every_e4m3_code_and_every_tie_is_torchs():
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(torch.float8_e4m3fn).float()
    finite = values[values.isfinite()].sort().values.unique()
    ties = (finite[1:] + finite[:-1]) / 2
    nudged = torch.cat([torch.nextafter(ties, ties + sign) for sign in (-1, 1)])
    random = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    x = torch.cat((values[values.isfinite()], ties, nudged, random, random * 100, random * 0.01))
    blocks = at_scale_one(WINDOW, x.clamp(-448, 448))
    stored = WINDOW.encode(blocks)
    assert torch.equal(exponent_values(stored.scales), torch.ones(len(blocks), 1))
    assert torch.equal(stored.codes, blocks.to(torch.float8_e4m3fn).view(torch.uint8))


@pytest.mark.parametrize(
    ("tie", "expected"),
    [(0.25, 0), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5.0, 4)],
)
@pytest.mark.parametrize("form", [LATENT, INDEX], ids=["latent", "index"])
def test_e2m1_ties_go_to_the_even_code(form, tie, expected):
    below, above = math.nextafter(tie, 0) - 1e-6, tie + 1e-6
    x = at_scale_one(form, torch.tensor([tie, -tie, below, above]))
    got = form.round(x)[0, 1:5]
    nearest = [E2M1[(E2M1 - value).abs().argmin()].item() for value in (below, above)]
    assert got.tolist() == [expected, -expected, *nearest]


@pytest.mark.parametrize("form", [LATENT, INDEX], ids=["latent", "index"])
def test_e2m1_codes_are_the_nearest(form):
    x = torch.randn(6000, generator=torch.Generator().manual_seed(1)) * 2
    blocks = at_scale_one(form, x.clamp(-6, 6))
    nearest = E2M1[(blocks.abs().unsqueeze(-1) - E2M1).abs().argmin(-1)] * blocks.sign()
    assert torch.equal(form.round(blocks), nearest)


def test_packing_and_signs():
    x = at_scale_one(INDEX, torch.tensor([-6.0, 0.5, -0.5]))
    codes = INDEX.encode(x).codes[0]
    # Low nibble is the even channel; the sign is bit 3.
    assert codes[:2].tolist() == [0xF7, 0x91]
    assert unpacked(codes)[:4].tolist() == [7, 15, 1, 9]
    x = at_scale_one(WINDOW, torch.tensor([-448.0, -0.0]))
    assert WINDOW.encode(x).codes[0, :3].tolist() == [0x7E, 0xFE, 0x80]


def test_every_exponent_byte_is_its_power_of_two():
    bytes_ = torch.arange(256, dtype=torch.uint8)
    expected = [2.0 ** (b - 127) for b in range(255)]
    assert exponent_values(bytes_)[:255].tolist() == expected
    assert exponent_values(bytes_)[255].isnan()


@pytest.mark.parametrize(("form", "largest"), [(WINDOW, 448), (INDEX, 6)], ids=["window", "index"])
def test_power_of_two_scales_are_the_least_that_hold_the_block(form, largest):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(500, form.block, generator=generator) * torch.logspace(-3, 3, 500)[:, None]
    amax = x.abs().amax(-1).double()
    expected = torch.exp2(torch.log2(amax.clamp(min=1e-4) / largest).ceil())
    assert torch.equal(exponent_values(form.encode(x).scales)[:, 0].double(), expected)
    exact = torch.zeros(1, form.block)
    exact[0, 3] = largest * 4.0
    assert exponent_values(form.encode(exact).scales).item() == 4
    exact[0, 3] = math.nextafter(largest * 4.0, math.inf) * (1 + 2**-22)
    assert exponent_values(form.encode(exact).scales).item() == 8


def test_latent_scales_are_e4m3_of_the_largest_over_six():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(500, LATENT.block, generator=generator) * torch.logspace(-3, 2, 500)[:, None]
    amax = x.abs().amax(-1).clamp(min=6 * 2.0**-9)
    expected = (amax / torch.full_like(amax, 6)).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(LATENT.encode(x).scales[:, 0], expected)


def test_latents_beyond_the_largest_scale_are_clamped():
    loud = torch.full((1, 16), 1e5)
    loud[0, 1::2] = -3000.0
    assert LATENT.encode(loud).scales.tolist() == [[0x7E]]
    assert LATENT.round(loud)[0, :2].tolist() == [6 * 448, -6 * 448]


def test_quiet_blocks_have_the_least_scale():
    quiet = torch.zeros(1, 32)
    quiet[0, 5] = 1e-6
    assert exponent_values(WINDOW.encode(quiet).scales).item() == 2.0**-22
    assert LATENT.encode(quiet).scales.tolist() == [[1, 1]]
    assert INDEX.encode(torch.zeros(1, 32)).scales.tolist() == [[1]]
    for form in (WINDOW, LATENT, INDEX):
        assert torch.equal(form.round(torch.zeros(2, 64)), torch.zeros(2, 64))


@FORMATS
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_block_that_is_not_finite_reads_as_nan_and_harms_no_other(form, bad):
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(4))
    clean = form.round(x)
    x[1, 40] = bad
    stored = form.encode(x)
    got = form.decode(stored)
    per_code = form.block // (form.code_bytes(form.block))
    first = 40 // form.block * form.block
    hit = torch.zeros(3, 96, dtype=torch.bool)
    hit[1, first : first + form.block] = True
    assert got[hit].isnan().all()
    assert torch.equal(got[~hit], clean[~hit])
    # Its codes are nothing that a device could choose.
    assert not stored.codes[1, first // per_code : (first + form.block) // per_code].any()


@FORMATS
def test_a_row_does_not_depend_on_its_neighbours(form):
    x = torch.randn(5, 7, 64, generator=torch.Generator().manual_seed(5))
    whole, alone = form.encode(x), form.encode(x[3, 2])
    assert torch.equal(whole.codes[3, 2], alone.codes)
    assert torch.equal(whole.scales[3, 2], alone.scales)
    assert torch.equal(form.decode(whole)[3, 2], form.decode(alone))


@FORMATS
def test_no_rows_are_no_rows(form):
    assert form.round(torch.zeros(0, 64)).shape == (0, 64)


@FORMATS
def test_what_cannot_be_cut_into_blocks_is_refused(form):
    with pytest.raises(ValueError, match=f"a multiple of {form.block}.* got torch.float32"):
        form.encode(torch.zeros(2, 33))
    with pytest.raises(ValueError, match="expected float32"):
        form.encode(torch.zeros(2, 64, dtype=torch.bfloat16))


@FORMATS
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), exponent=st.floats(-1.5, 4))
def test_stored_values_are_kept_by_storing_them_again(form, seed, exponent):
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(seed)) * 10**exponent
    if form is LATENT:
        # Beyond 6 * 448 a scale is clamped, and below 6 * 2^-6 it has fewer bits than a code.
        x = x.clamp(-2600, 2600)
        x[:, ::16] = x[:, ::16].sign() * x[:, ::16].abs().clamp(min=0.1)
    once = form.round(x)
    assert torch.equal(form.round(once), once)


@FORMATS
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_the_error_is_at_most_half_a_step(form, seed):
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(seed))
    blocks = x.view(9, -1, form.block)
    amax = blocks.abs().amax(-1, keepdim=True)
    error = (form.round(x).view_as(blocks) - blocks).abs()
    if form is WINDOW:
        # Half a step is 2^-4 of the value, or 2^-10 of a scale that is below amax / 224.
        assert (error <= torch.maximum(blocks.abs() / 16, amax / 224 * 2**-10)).all()
    else:
        # The widest step is from 4 to 6; e4m3 scales may be off by 1/16, ue8m0 ones by 2.
        assert (error <= amax / (5.6 if form is LATENT else 3)).all()


@pytest.mark.parametrize("form", [LATENT, INDEX], ids=["latent", "index"])
def test_every_fp4_byte_decodes_to_its_two_values(form):
    codes = torch.arange(256, dtype=torch.uint8).view(-1, form.block // 2)
    one = 0x38 if form is LATENT else 127
    stored = BlockCodes(codes, torch.full((len(codes), 1), one, dtype=torch.uint8))
    signed = torch.cat((E2M1, -E2M1))
    assert torch.equal(form.decode(stored), signed[unpacked(codes).long()])


@pytest.mark.parametrize(
    ("prefix", "form"), [("compressed_kv.", LATENT), ("index_keys.", INDEX), ("window.", WINDOW)]
)
def test_other_programs_caches_are_on_these_grids(prefix, form):
    expected = load_file(VECTORS / "v41_tiny" / "expected.safetensors")
    caches = {name: value for name, value in expected.items() if name.startswith(prefix)}
    assert caches
    for name, value in caches.items():
        assert torch.equal(form.round(value), value), name
