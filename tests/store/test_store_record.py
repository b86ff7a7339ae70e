"""A record says by itself whether it is whole."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ced_kvstore.errors import BadRecord
from ced_kvstore.record import ALIGN, HEADER_BYTES, Header, Kind, Record, checksum, span

HASH = st.binary(min_size=32, max_size=32)
SHORT = st.binary(min_size=16, max_size=16)
HEADERS = st.builds(
    Header,
    kind=st.sampled_from(list(Kind)).map(int),
    length=st.integers(0, 2**32 - 1),
    position=st.integers(0, 2**32 - 1),
    stamp=st.integers(0, 2**64 - 1),
    key=HASH,
    parent=HASH,
    fingerprint=SHORT,
    checksum=SHORT,
)


@given(HEADERS)
def test_a_header_comes_back(header: Header) -> None:
    assert len(header.pack()) == HEADER_BYTES
    assert Header.unpack(header.pack()) == header


@given(HEADERS, st.integers(0, HEADER_BYTES * 8 - 1))
def test_any_flipped_bit_of_a_header_is_found(header: Header, bit: int) -> None:
    raw = bytearray(header.pack())
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadRecord):
        Header.unpack(raw)


@given(st.binary(max_size=200))
def test_noise_is_no_header(raw: bytes) -> None:
    with pytest.raises(BadRecord):
        Header.unpack(raw)


def test_any_flipped_bit_of_a_payload_changes_its_checksum() -> None:
    payload = random.Random(3).randbytes(701)
    whole = checksum([payload])
    for bit in range(len(payload) * 8):
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        assert checksum([changed]) != whole


@given(st.binary(max_size=300), st.integers(0, 300))
def test_the_checksum_does_not_depend_on_the_pieces(payload: bytes, cut: int) -> None:
    assert checksum([payload[:cut], payload[cut:]]) == checksum([payload])


@given(st.integers(0, 2**32 - 1))
def test_records_are_aligned_and_hold_their_payload(length: int) -> None:
    assert span(length) % ALIGN == 0
    assert HEADER_BYTES + length <= span(length) < HEADER_BYTES + length + ALIGN


def test_a_moved_record_keeps_its_stamp() -> None:
    made = Record(Kind.BLOCK, bytes(32), bytes(32), bytes(16), [b"x"])
    moved = Record(Kind.BLOCK, bytes(32), bytes(32), bytes(16), [b"x"], stamp=3)
    assert (made.header(9).stamp, moved.header(9).stamp) == (9, 3)
