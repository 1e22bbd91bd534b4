"""The checksums of many short ranges, against the library's."""

from __future__ import annotations

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from raw_batches import batch, record

from distlog.core.batches.record_batch import BATCH, SHORT_BATCH, check_crcs, read_headers
from distlog.core.buffers import byte_array
from distlog.core.errors import CorruptRecordError
from distlog.core.kernels.crc import first_mismatch


def mismatch(data: bytes, ranges: list[tuple[int, int]], crcs: list[int]) -> int:
    """The first of the ranges of `data` that has not the checksum, as if each were a batch without a prefix."""
    batches = np.zeros(len(ranges), BATCH)
    batches["magic"], batches["crc"] = 2, crcs
    batches["position"], batches["size"] = [start for start, _ in ranges], [end - start for start, end in ranges]
    return int(first_mismatch(byte_array(data), batches, SHORT_BATCH, 0))


def test_the_check_value_of_the_standard() -> None:
    assert mismatch(b"-123456789-", [(1, 10)], [0xE3069283]) == -1
    assert mismatch(b"-123456789-", [(1, 10)], [0xE3069282]) == 0


@given(st.binary(max_size=200), st.data())
def test_it_is_the_librarys_checksum_at_every_alignment_and_length(data: bytes, draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(start, len(data)))
    crc = crc32c(data[start:end])
    assert mismatch(data, [(start, end)], [crc]) == -1
    assert mismatch(data, [(start, end), (start, end)], [crc, crc ^ 1 << draw.draw(st.integers(0, 31))]) == 1


@pytest.mark.parametrize("bad", [0, 1, 2, 3])
def test_the_first_bad_batch_is_named_whether_it_is_short_or_long(bad: int) -> None:
    long = record(value=bytes(SHORT_BATCH))
    parts = [batch([record()]), batch([long], base_offset=1), batch([record()], base_offset=2)]
    data = bytearray(b"".join([*parts, batch([long], base_offset=3)]))
    headers = read_headers(data)
    check_crcs(data, headers)
    for row in range(bad, 4):
        data[headers["position"][row] + 61] ^= 1
    with pytest.raises(CorruptRecordError, match=f"position={headers['position'][bad]} offset={bad}"):
        check_crcs(data, headers)


def test_batches_of_other_data_are_refused() -> None:
    data = batch([record()])
    with pytest.raises(ValueError, match="not of this data"):
        check_crcs(data[:-1], read_headers(data))
