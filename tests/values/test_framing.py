"""Headers of values: ids and message indexes, also in slices, and invalid bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from distlog.core.schemas.decoding import split_headers, split_messages, without_prefixes


def test_ids_and_payloads_of_a_slice_are_right() -> None:
    values = pa.array([b"\0\0\0\1\2a", b"x", None, b"\0\0\0\0\7", b"", b"\1\0\0\0\1bc", b"\0\xff\0\0\1"], pa.binary())
    ids, payloads = split_headers(values)
    assert ids.tolist() == [258, -1, -1, 7, -1, -1, -1]
    assert payloads.to_pylist() == [b"a", b"", None, b"", b"", b"bc", b""]
    ids, payloads = split_headers(values.slice(2, 4))
    assert (ids.tolist(), payloads.to_pylist()) == ([-1, 7, -1, -1], [None, b"", b"", b"bc"])
    ids, payloads = split_headers(values.slice(0, 0))
    assert (ids.tolist(), payloads.to_pylist()) == ([], [])


def test_bytes_are_dropped_from_the_front_of_each_value() -> None:
    values = pa.array([b"abc", None, b"", b"de"], pa.binary()).slice(0, 4)
    assert without_prefixes(values, pa.array([2, 0, 0, 2]).to_numpy()).to_pylist() == [b"c", None, b"", b""]


LOCATIONS = [
    (b"\0rest", (0,), b"rest"),
    (b"\2\0rest", (0,), b"rest"),
    (b"\2\4rest", (2,), b"rest"),
    (b"\4\2\6rest", (1, 3), b"rest"),
    (b"\2\x80\1rest", (64,), b"rest"),
    (b"\x12" + b"\2" * 9 + b"rest", (1,) * 9, b"rest"),
    (b"\2", None, b"\2"),
    (b"\2\1", None, b"\2\1"),
    (b"\3\2", None, b"\3\2"),
    (b"\2\x80", None, b"\2\x80"),
    (b"\xff\xff\xff\xff\xff", None, b"\xff\xff\xff\xff\xff"),
    (b"", None, b""),
]


@pytest.mark.parametrize("order", [1, -1])
def test_locations_of_messages_are_distinguished(order: int) -> None:
    cases = [*LOCATIONS, *LOCATIONS][::order]
    kinds, numbers, remainders = split_messages(pa.array([payload for payload, *_ in cases], pa.binary()))
    assert [kinds[number] for number in numbers] == [location for _, location, _ in cases]
    assert remainders.to_pylist() == [remainder for *_, remainder in cases]


def test_an_empty_array_has_no_locations() -> None:
    kinds, numbers, remainders = split_messages(pa.array([], pa.binary()))
    assert (kinds, numbers.tolist(), remainders.to_pylist()) == ([(0,)], [], [])
