"""A lookup in a batch by offset finds the record that decoding finds, and nothing where bytes are missing."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from raw_batches import batch, record

from distlog.core.arrays import MIN_LONG, byte_array
from distlog.core.format.kernels.record_scan import (
    HEADER_LOCATION,
    LOCATION,
    NOT_APPEND_TIME,
    UNSURE,
    find_batch,
    find_headers,
    find_records,
)
from distlog.core.format.record_batch import HEADER_SIZE, read_headers
from distlog.core.format.record_decoder import decode

TEXTS = (None, b"", b"key", b"v" * 70)
HEADERS = ((b"h1", b"x"), (b"h2", None), (b"", b""))

DENSE = (
    batch([record(0), record(1), record(2)], base_offset=5),
    batch([record(0)], base_offset=8),
    batch([record(0), record(1), record(2), record(3)], base_offset=9),
)
GAPS = (
    batch([record(0), record(2)], base_offset=5, last_delta=2),
    batch([record(0)], base_offset=10),
    batch([record(1), record(2)], base_offset=14, last_delta=6),
)


def batch_at(
    parts: tuple[bytes, ...], offset: int, *, start: int = 0, following: int = 5, dense: bool = True, end: int = 13
) -> int:
    """Look up the batch: return its number, UNSURE, or the number of batches if it does not exist."""
    data = byte_array(b"".join(parts))
    positions = np.cumsum([0, *map(len, parts)]).tolist()
    position = find_batch(data, positions[start], data.size, following, dense, end, offset)
    return UNSURE if position == UNSURE else positions.index(position)


def test_a_batch_is_found_by_each_of_its_offsets() -> None:
    assert [batch_at(DENSE, offset) for offset in range(5, 14)] == [0, 0, 0, 1, 2, 2, 2, 2, 3]
    assert [batch_at(DENSE, offset, start=1, following=-1) for offset in range(8, 14)] == [1, 2, 2, 2, 2, 3]
    numbers = [batch_at(GAPS, offset, dense=False, end=30) for offset in (4, 7, 8, 10, 11, 20, 21)]
    assert numbers == [0, 0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"following": 4},
        {"following": 6},
        {"following": -1, "start": 1},
        {"end": 12},
        {"end": 14},
    ],
    ids=str,
)
def test_a_batch_at_a_wrong_offset_is_not_found(wrong: dict[str, Any]) -> None:
    offset = 7 if "start" in wrong else 12
    assert batch_at(DENSE, offset, **wrong) == UNSURE


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (0, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize(("parts", "dense", "end"), [(DENSE, True, 13), (GAPS, False, 30)])
def test_non_consecutive_batches_are_not_found(
    order: tuple[int, ...], parts: tuple[bytes, ...], dense: bool, end: int
) -> None:
    mixed = tuple(parts[number] for number in order)
    first = read_headers(mixed[0])[0]
    offset = int(first["base_offset"] + first["last_offset_delta"])
    gap = order == (0, 2, 1) and not dense
    assert batch_at(mixed, offset, following=-1, dense=dense, end=end) == (0 if gap else UNSURE)
    assert batch_at(mixed, end - 1, following=-1 if dense else 5, dense=dense, end=end) == UNSURE


def test_a_log_that_is_cut_off_anywhere_has_no_batch_at_its_end() -> None:
    data = b"".join(DENSE)
    for size in range(1, len(data)):
        assert find_batch(byte_array(data[:size]), 0, size, 5, True, 13, 12) == UNSURE


def random_batch(pick: random.Random) -> bytes:
    count = pick.randrange(1, 6)
    deltas = sorted(pick.sample(range(9), count))
    records = [
        record(delta, pick.randrange(-50, 50), pick.choice(TEXTS), pick.choice(TEXTS), HEADERS[: pick.randrange(4)])
        for delta in deltas
    ]
    return batch(records, last_delta=8)


def records_of(data: Any, start: int = 0, oldest: int = MIN_LONG, room: int = 9, end: int | None = None) -> Any:
    array, (header,) = byte_array(data), read_headers(data)
    rows, times = np.zeros(room, LOCATION), (int(header["base_timestamp"]), NOT_APPEND_TIME)
    counts = (int(header["record_count"]), int(header["last_offset_delta"]))
    stop = array.size if end is None else end
    count = find_records(array, HEADER_SIZE, stop, *counts, *times, start, oldest, rows)
    return UNSURE if count == UNSURE else [_row(array, *row) for row in rows[:count].tolist()]


def _row(data: np.ndarray, delta: int, time: int, *positions: int) -> dict[str, Any]:
    key_at, key_size, value_at, value_size, headers_at, count = positions
    headers = np.zeros(count, HEADER_LOCATION)
    find_headers(data, headers_at, headers)
    pairs = [(_text(data, *row[:2]), _text(data, *row[2:])) for row in headers.tolist()]
    return {
        "offset": delta,
        "timestamp": time,
        "key": _text(data, key_at, key_size),
        "value": _text(data, value_at, value_size),
        "headers": [{"key": (key or b"").decode(), "value": value} for key, value in pairs],
    }


def _text(data: np.ndarray, position: int, size: int) -> bytes | None:
    return data[position : position + size].tobytes() if size >= 0 else None


def test_records_equal_the_decoded_batch() -> None:
    pick = random.Random(5)
    for _ in range(40):
        data = random_batch(pick)
        columns = ("offset", "timestamp", "key", "value", "headers")
        decoded = decode(data, read_headers(data), columns=columns)
        times = decoded["timestamp"].cast("int64").to_pylist()
        every = [{**row, "timestamp": time} for row, time in zip(decoded.to_pylist(), times, strict=True)]
        start, oldest, room = pick.randrange(9), pick.choice((MIN_LONG, 990, 1000, 1040)), pick.randrange(1, 4)
        expected = [row for row in every if row["offset"] >= start and row["timestamp"] >= oldest]
        assert records_of(data, start, oldest, room) == expected[:room]


def test_truncated_records_are_not_found() -> None:
    pick = random.Random(6)
    for _ in range(5):
        data = random_batch(pick)
        every = records_of(data)
        for end in range(HEADER_SIZE, len(data)):
            assert records_of(data, end=end) == UNSURE
            assert records_of(data, room=1, end=end) in (UNSURE, every[:1])


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 5)])
def test_descending_offsets_are_not_found(deltas: tuple[int, int]) -> None:
    assert records_of(batch([record(delta) for delta in deltas], last_delta=4)) == UNSURE
