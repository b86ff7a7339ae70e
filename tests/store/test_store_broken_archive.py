"""Archives that broke on the way, or that chance made: refused whole, or imported rightly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forged_archive import END, Forge, Target, make_archive, member
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make_archive(tmp_path_factory.mktemp("good"))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with Target(tmp_path) as made:
        yield made


MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "double", "swap", "zero", "drop"]),
        st.integers(0, 1 << 30),
        st.integers(0, 1 << 30),
    ),
    min_size=1,
    max_size=3,
)


def mutated(raw: bytes, mutations: list[tuple[str, int, int]]) -> bytes:
    made = bytearray(raw)
    for kind, first, second in mutations:
        if not made:
            break
        a, b = first % len(made), second % len(made)
        block = slice(a // 512 * 512, a // 512 * 512 + 512)
        other = slice(b // 512 * 512, b // 512 * 512 + 512)
        match kind:
            case "flip":
                made[a] ^= 1 << b % 8
            case "cut":
                del made[a:]
            case "double":
                made[block.stop : block.stop] = made[other]
            case "swap":
                made[block], made[other] = made[other], made[block]
            case "zero":
                made[block] = bytes(len(made[block]))
            case "drop":
                del made[block]
    return bytes(made)


MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@MANY
@given(mutations=MUTATIONS)
def test_any_mutation_is_refused(good: bytes, target: Target, mutations: Any) -> None:
    raw = mutated(good, mutations)
    # A swap with itself, or zeros in place of zeros, is none.
    if raw.rstrip(b"\0") == good.rstrip(b"\0") and len(raw) >= len(good):
        return
    target.refuses(raw)


@pytest.mark.slow
def test_each_byte_is_covered(good: bytes, target: Target) -> None:
    for where in range(0, len(good), 31):
        target.refuses(mutated(good, [("flip", where, where)]))
    for size in range(0, len(good), 211):
        target.refuses(good[:size])


@pytest.mark.slow
@MANY
@given(raw=st.binary(max_size=2000))
def test_random_bytes_are_refused(target: Target, raw: bytes) -> None:
    target.refuses(raw)
    target.refuses(member("manifest.json", raw) + END)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)


@pytest.mark.slow
@MANY
@given(data=st.data())
def test_any_signed_manifest_is_refused_or_imported_well(
    good: bytes, target: Target, data: Any
) -> None:
    forge = Forge(good)
    place: Any = forge.manifest
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(VALUES)
    target.tries(forge.sign(keep_bytes=True).pack())


@pytest.mark.slow
@MANY
@given(data=st.data())
def test_any_signed_chunk_is_refused_or_imported_well(
    good: bytes, target: Target, data: Any
) -> None:
    forge = Forge(good)
    name = data.draw(st.sampled_from(sorted(forge.files)))
    raw = bytearray(forge.files[name])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(len(raw), 900) - 1) | st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    forge.files[name] = bytes(raw)
    target.tries(forge.sign().pack())
