"""The walk over a log's batches reads no more than it needs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from distlog.core.errors import CorruptRecordError
from distlog.core.format.record_batch import BatchWalk
from distlog.core.format.record_encoder import encode

SIZE = 168


def log_of_four() -> bytes:
    times = pa.array([0], pa.timestamp("ms"))
    records = pa.record_batch({"key": pa.nulls(1, pa.binary()), "value": [b"v" * 98], "timestamp": times})
    return b"".join(bytes(encode(records, offset).data) for offset in range(4))


def walked(step: int, likely_end: int) -> tuple[list[int], list[tuple[int, int]]]:
    log, ranges = log_of_four(), list[tuple[int, int]]()

    def read(start: int, end: int) -> memoryview:
        ranges.append((start, end))
        assert len(ranges) < 20
        return memoryview(log)[start:end]

    walk = BatchWalk(read, 0, len(log), step, "raise", likely_end=likely_end)
    return [offset for batches in walk for offset in batches.rows["base_offset"].tolist()], ranges


def test_no_byte_past_the_likely_end_is_read() -> None:
    assert walked(4 * SIZE, 2 * SIZE) == ([0, 1, 2, 3], [(0, 2 * SIZE), (2 * SIZE, 4 * SIZE)])


@pytest.mark.parametrize("step", [SIZE, 4 * SIZE])
def test_a_batch_across_the_hint_is_read_to_its_end(step: int) -> None:
    offsets, ranges = walked(step, SIZE + 20)
    assert offsets == [0, 1, 2, 3]
    assert ranges[1:3] == [(SIZE, SIZE + 20), (SIZE, 2 * SIZE)]


def test_an_impossible_size_at_a_wrong_hint_takes_few_reads() -> None:
    log, ranges = bytearray(log_of_four()), list[tuple[int, int]]()
    log[8:12] = bytes(4)

    def read(start: int, end: int) -> memoryview:
        ranges.append((start, end))
        return memoryview(log)[start:end]

    with pytest.raises(CorruptRecordError, match="shorter than any batch"):
        list(BatchWalk(read, 0, len(log), 4 * SIZE, "raise", likely_end=12))
    assert len(ranges) == 2
