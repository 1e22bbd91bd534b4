"""Varints against Kafka's examples, a plain-Python writer, and buffers that end too early."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import compiled
from hypothesis import given
from hypothesis import strategies as st
from raw_batches import varint

from distlog.core.arrays import byte_array
from distlog.core.format.kernels import record_scan
from distlog.core.format.kernels.native import fill_kernel
from distlog.core.format.kernels.record_scan import SLACK, VARINT, VARLONG, read_number

varlong_size, write_varlong = compiled(record_scan.varlong_size), compiled(record_scan.write_varlong)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)


@fill_kernel
def read_varint(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    return read_number(data, position, end, VARINT, True)


@fill_kernel
def read_varlong(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    return read_number(data, position, end, VARLONG, True)


@fill_kernel
def read_short(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    return read_number(data, position, end, VARLONG, False)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-64, "7f"),
        (64, "8001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_the_examples_of_the_format(value: int, encoded: str) -> None:
    data = byte_array(bytes.fromhex(encoded))
    assert read_varint(data, 0, data.size) == (value, data.size)
    assert varlong_size(value) == data.size
    assert written(value) == bytes.fromhex(encoded)


def written(value: int) -> bytes:
    target = np.zeros(10, np.uint8)
    return target[: write_varlong(target, 0, value)].tobytes()


@given(INTS, st.binary(max_size=12))
def test_a_varint_round_trips_before_any_bytes(value: int, following: bytes) -> None:
    encoded = varint(value)
    assert read_varint(byte_array(encoded + following), 0, len(encoded + following)) == (value, len(encoded))
    assert written(value) == encoded


@given(LONGS, st.binary(max_size=12))
def test_a_varlong_round_trips_before_any_bytes(value: int, following: bytes) -> None:
    encoded = varint(value)
    assert read_varlong(byte_array(encoded + following), 0, len(encoded + following)) == (value, len(encoded))
    assert written(value) == encoded
    assert varlong_size(value) == len(encoded)


@given(LONGS, st.binary(max_size=12))
def test_a_value_that_passes_the_end_is_not_read(value: int, following: bytes) -> None:
    encoded = varint(value)
    for end in range(len(encoded)):
        _, position = read_varlong(byte_array(encoded + following), 0, end)
        assert position == end + 1


@given(LONGS | st.integers(-(2**29), 2**29), st.binary(min_size=SLACK, max_size=SLACK))
def test_a_short_read_gives_a_value_of_up_to_four_bytes_and_passes_the_end_otherwise(
    value: int, following: bytes
) -> None:
    encoded = varint(value)
    data = byte_array(encoded + following)
    for end in range(len(encoded) + 1):
        read, position = read_short(data, 0, end)
        if len(encoded) <= 4:
            assert (read, position) == (value, len(encoded))
        else:
            assert position == end + 1


@pytest.mark.parametrize("following", [b"", b"\0" * 8])
def test_a_varint_of_six_bytes_and_a_varlong_of_eleven_are_refused(following: bytes) -> None:
    six, eleven = byte_array(b"\x80" * 5 + b"\0" + following), byte_array(b"\x80" * 10 + b"\0" + following)
    assert read_varint(six, 0, six.size)[1] == six.size + 1
    assert read_varlong(six, 0, six.size) == (0, 6)
    assert read_varlong(eleven, 0, eleven.size)[1] == eleven.size + 1


def test_bits_beyond_the_32nd_are_dropped_as_in_java() -> None:
    for following in (b"", b"\0" * 8):
        data = byte_array(b"\xff\xff\xff\xff\x7f" + following)
        assert read_varint(data, 0, data.size) == (-(2**31), 5)


def test_a_read_after_a_failed_read_fails_too() -> None:
    data = byte_array(b"\0" * 20)
    assert read_varint(data, 11, 10)[1] == 11
    assert read_varlong(data, 11, 10)[1] == 11
