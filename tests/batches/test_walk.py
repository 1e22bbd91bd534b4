"""The walk over a log's batches reads no more than it needs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from distlog.core.batches.record_encoder import encode
from distlog.core.batches.walk import BatchWalk

COUNT = 4


def batch(offset: int) -> bytes:
    return bytes(encode(pa.record_batch({"value": [b"v" * 100]}), offset).data)


LOG = b"".join(batch(offset) for offset in range(COUNT))
SIZE = len(LOG) // COUNT


def walked(step: int, hint: int) -> tuple[list[int], list[tuple[int, int]]]:
    """The offsets of the batches, and the ranges that were read."""
    ranges: list[tuple[int, int]] = []

    def read(start: int, end: int) -> memoryview:
        ranges.append((start, end))
        assert len(ranges) < 20
        return memoryview(LOG)[start:end]

    walk = BatchWalk(read, 0, len(LOG), step, "raise", hint=hint)
    return [offset for batches in walk for offset in batches.rows["base_offset"].tolist()], ranges


def test_nothing_behind_the_hint_is_read_with_the_batches_before_it() -> None:
    assert walked(len(LOG), 2 * SIZE) == ([0, 1, 2, 3], [(0, 2 * SIZE), (2 * SIZE, 4 * SIZE)])


@pytest.mark.parametrize("step", [SIZE, len(LOG)])
def test_a_batch_that_goes_on_behind_the_hint_is_read_to_its_end(step: int) -> None:
    offsets, ranges = walked(step, SIZE + 20)
    assert offsets == [0, 1, 2, 3]
    assert ranges[1:3] == [(SIZE, SIZE + 20), (SIZE, 2 * SIZE)]
