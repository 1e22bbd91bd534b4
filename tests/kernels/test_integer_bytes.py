"""Integers that kernels read from bytes and write into them, against Python's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.format.kernels.native import COMPILED, fill_kernel, inlined, int_at, put_int_at, uint32_at


@fill_kernel
def read_all(data: np.ndarray, position: int, values: np.ndarray) -> None:
    values[0] = int_at(data, position, 1)
    values[1] = int_at(data, position, 2)
    values[2] = int_at(data, position, 4)
    values[3] = int_at(data, position, 8)
    values[4] = uint32_at(data, position)


@fill_kernel
def write_all(data: np.ndarray, value: int) -> None:
    put_int_at(data, 1, 1, value)
    put_int_at(data, 2, 2, value)
    put_int_at(data, 4, 4, value)
    put_int_at(data, 8, 8, value)


@given(st.binary(min_size=8, max_size=8), st.integers(0, 9))
def test_integers_are_read_from_any_position(data: bytes, position: int) -> None:
    values = np.zeros(5, np.int64)
    read_all(np.frombuffer(bytes(position) + data, np.uint8), position, values)
    expected = [int.from_bytes(data[:width], "big", signed=True) for width in (1, 2, 4, 8)]
    assert values.tolist() == [*expected, int.from_bytes(data[:4], "little")]


@given(st.integers(-(2**63), 2**63 - 1))
def test_only_the_low_bytes_of_a_value_are_written(value: int) -> None:
    data = np.full(17, 0xEE, np.uint8)
    write_all(data, value)
    parts = [(value & (1 << 8 * width) - 1).to_bytes(width, "big") for width in (1, 2, 4, 8)]
    assert data.tobytes() == b"\xee" + parts[0] + b"".join(parts[1:]) + b"\xee"


@pytest.mark.skipif(not COMPILED, reason="without the compiler a part is a plain function")
def test_a_part_of_kernels_refuses_calls_from_python() -> None:
    with pytest.raises(NotImplementedError, match="only kernels can call half"):
        inlined(half)(2)


def half(value: int) -> int:
    return value // 2
