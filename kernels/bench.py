"""Time every native operation against its reference, interleaved, at the default model's shapes.

Run as a script: it finds ced_kernels beside itself. Prints medians, the median ratio and its
spread; refuses to print when an operation does not agree with its reference in the same run. One
thread is measured in CPU time, which other processes falsify little; more in wall clock time.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ced_kernels.attention import KeySpan
from ced_kernels.int8_product import choose_impl, int8_product
from ced_kernels.kernel_set import KernelSet, LayerWeights, Product, ReferenceKernels, Weight
from ced_kernels.native.build import NativeUnavailable
from ced_kernels.native.library import load_native
from ced_kernels.rope import rope_table
from ced_kernels.rows import Rows, quantize_rows

HIDDEN, N_Q, N_KV, DIM, INNER = 576, 9, 3, 64, 1536
"""The shapes of SmolLM2-135M."""
EPS = 1e-5

CODE = 0.01
"""Tolerance, of the largest value, where codes may differ by one: 1 / 127 and a little."""

Results = tuple[Tensor, ...]


class Case(NamedTuple):
    """One operation at one shape."""

    name: str
    tolerance: float
    """Largest difference from the reference, as a fraction of the largest value."""
    run: Callable[[KernelSet], Results]
    """The operation's outputs as values, by a set of kernels."""


def randn(*shape: int) -> Tensor:
    """Return normal values; the seed is set once."""
    return torch.randn(*shape)


def a_product(n_rows: int, width: int) -> Product:
    """Return a product with values of magnitude 1."""
    codes = torch.randint(-(2**22), 2**22, (n_rows, width), dtype=torch.int32)
    return Product(codes, torch.full((width,), 4e-7), torch.ones(n_rows))


def a_matrix(n_out: int, n_in: int) -> Weight:
    """Return an int8 weight."""
    return Weight(*quantize_rows(randn(n_out, n_in) * n_in**-0.5))


def row_cases(n_rows: int) -> Iterator[Case]:
    """Yield what lies between products, for one row or a tile."""
    x, weight = randn(n_rows, HIDDEN), randn(HIDDEN)
    product, gates = a_product(n_rows, HIDDEN), a_product(n_rows, 2 * INNER)
    heads = a_product(n_rows, (N_Q + 2 * N_KV) * DIM)
    cos, sin = rope_table(n_rows, DIM, theta=1e4)
    cache = Rows(
        torch.zeros(2, N_KV, n_rows, DIM, dtype=torch.int8),
        torch.zeros(2, N_KV, n_rows, dtype=torch.float16),
    )

    def add_norm(kernels: KernelSet) -> Results:
        total, rows = kernels.add_norm_rows(x, product, weight, eps=EPS)
        return total, rows.values()

    def split(kernels: KernelSet) -> Results:
        q = kernels.split_heads(heads, cos, sin, n_q=N_Q, out=cache, first=0)
        return q.values(), cache.values()

    shape = f"[{n_rows}, {HIDDEN}]"
    yield Case(f"quantize {shape}", 0, lambda k: (k.quantize(x).values(),))
    yield Case(f"norm_rows {shape}", CODE, lambda k: (k.norm_rows(x, weight, eps=EPS).values(),))
    yield Case(f"add {shape}", 0, lambda k: (k.add(x, product),))
    yield Case(f"add_norm_rows {shape}", CODE, add_norm)
    yield Case(f"gate_rows [{n_rows}, {INNER}]", CODE, lambda k: (k.gate_rows(gates).values(),))
    yield Case(f"split_heads [{n_rows}, {N_Q} + 2 * {N_KV}, {DIM}]", 0, split)


def attention_case(n_rows: int, n_keys: int) -> Case:
    """Return attention of the last `n_rows` of `n_keys` positions, causal."""
    rows = quantize_rows(randn(2, N_KV, n_keys, DIM), scale_dtype=torch.float16)
    q = quantize_rows(randn(N_Q, n_rows, DIM) * 2)
    to = torch.arange(1, n_rows + 1, dtype=torch.int32)
    start = n_keys - n_rows
    spans = [KeySpan(rows, start, n_keys, torch.zeros_like(to), to)]
    if start:
        spans.insert(0, KeySpan(rows, 0, start))
    name = f"attend [{N_Q}, {n_rows}, {DIM}], {n_keys} keys"
    return Case(name, 1e-5, lambda k: (k.attend(q, spans, scale=DIM**-0.5),))


def layer_case(n_keys: int, sets: Sequence[KernelSet]) -> Case:
    """Return a whole layer for one row: in one piece where the set has it, else one by one."""
    layer = LayerWeights(
        randn(HIDDEN), a_matrix((N_Q + 2 * N_KV) * DIM, HIDDEN), a_matrix(HIDDEN, N_Q * DIM),
        randn(HIDDEN), a_matrix(2 * INNER, HIDDEN), a_matrix(HIDDEN, INNER), N_Q, DIM, EPS,
        DIM**-0.5,
    )  # fmt: skip
    x, (cos, sin), impl = randn(1, HIDDEN), rope_table(1, DIM, theta=1e4), choose_impl()
    cache = quantize_rows(randn(2, N_KV, n_keys, DIM), scale_dtype=torch.float16)
    spans, last = [KeySpan(cache, 0, n_keys)], n_keys - 1
    pieces = {kernels.name: kernels.row_layer(layer) for kernels in sets}

    def product(rows: Rows, weight: Weight) -> Product:
        codes = int8_product(rows.codes, weight.codes, impl=impl)
        return Product(codes, weight.scale, rows.scale)

    def run(k: KernelSet) -> Results:
        whole = pieces[k.name]
        if whole is not None:
            return (whole(x, cos, sin, cache, last, spans),)
        heads = product(k.norm_rows(x, layer.attention_norm, eps=EPS), layer.qkv)
        q = k.split_heads(heads, cos, sin, n_q=N_Q, out=cache, first=last)
        attended = product(k.quantize(k.attend(q, spans, scale=layer.scale)), layer.output)
        total, normed = k.add_norm_rows(x, attended, layer.ffn_norm, eps=EPS)
        return (k.add(total, product(k.gate_rows(product(normed, layer.gate_up)), layer.down)),)

    return Case(f"layer, one row, {n_keys} keys", 3 * CODE, run)


def disagreement(case: Case, reference: KernelSet, native: KernelSet) -> str | None:
    """Return what differs by more than the case allows, or None."""
    for i, (a, b) in enumerate(zip(case.run(native), case.run(reference), strict=True)):
        off = float((a - b).abs().max()) / float(b.abs().max())
        if not off <= case.tolerance:
            return f"{case.name}: output {i} is off by {off:.2g}, allowed {case.tolerance:.2g}"
    return None


def seconds(case: Case, kernels: KernelSet, repeats: int) -> float:
    """Return the time of one run, averaged over `repeats` in a row."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(repeats):
        case.run(kernels)
    return (clock() - start) / repeats


def measure(case: Case, reference: KernelSet, native: KernelSet, rounds: int) -> str:
    """Return the table row of a case."""
    times: dict[str, list[float]] = {reference.name: [], native.name: []}
    repeats = {k.name: max(1, int(3e-3 / seconds(case, k, 2))) for k in (reference, native)}
    for _ in range(rounds):
        for kernels in (reference, native):
            times[kernels.name].append(seconds(case, kernels, repeats[kernels.name]))
    slow, fast = times[reference.name], times[native.name]
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=True))
    low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
    return (
        f"| {case.name} | {1e6 * statistics.median(slow):,.0f} "
        f"| {1e6 * statistics.median(fast):,.0f} | {statistics.median(ratios):.1f} "
        f"| {low:.1f} .. {high:.1f} |"
    )


def main() -> int:
    """Compare, then time; 1 when something disagrees or native kernels cannot run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", default="", help="operations whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        try:
            native: KernelSet = load_native(Path(folder), head_dim=DIM)
        except NativeUnavailable as error:
            print(f"native kernels cannot run here: {error}", file=sys.stderr)
            return 1
        reference = ReferenceKernels(choose_impl())
        cases = [
            *row_cases(128), *row_cases(1),
            *(attention_case(128, n) for n in (128, 1024, 4096)),
            *(attention_case(1, n) for n in (64, 4600)),
            *(layer_case(n, (reference, native)) for n in (64, 4600)),
        ]  # fmt: skip
        cases = [case for case in cases if options.only in case.name]
        for case in cases:
            wrong = disagreement(case, reference, native)
            if wrong is not None:
                print(f"no figures: {wrong}", file=sys.stderr)
                return 1
        versions = f"torch {torch.__version__}, Python {platform.python_version()}"
        print(f"{_cpu()}, {options.threads} threads, {versions}, medians of {options.rounds}")
        print(f"| operation | {reference.name}, us | {native.name}, us | ratio | 10% .. 90% |")
        print("|---|---|---|---|---|")
        for case in cases:
            print(measure(case, reference, native, options.rounds), flush=True)
    return 0


def _cpu() -> str:
    """Return vendor, family and model of the CPU."""
    found: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return f"{found['model name']}, family {found['cpu family']} model {found['model']}"


if __name__ == "__main__":
    sys.exit(main())
