"""Rows that an encoder gets in several calls, and batches that it hands on in several steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from encoded_rows import ROWS, Row, simple, table
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.arrays import BLOCK_BYTES, lies_in_pages
from distlog.core.batches.record_batch import BatchFormat
from distlog.core.batches.record_encoder import EncodedBatches, RecordEncoder, RecordInput, encode
from distlog.core.errors import InvalidRecordError


def in_steps(source: RecordInput, cuts: list[list[int]], **settings: Any) -> tuple[bytes, int]:
    """The bytes that an encoder hands on for rows given in several calls, and in how many steps it does."""
    gather = settings.pop("gather_bytes")
    encoder = RecordEncoder(BatchFormat(**settings), base_offset=9, gather_bytes=gather, room=100)
    steps = [bytes(encoded.data) for rows in cuts for encoded in encoder.append(source, np.array(rows, np.int64))]
    steps.append(bytes(encoder.finish().data))
    return b"".join(steps), len(steps)


@given(
    ROWS.filter(bool),
    st.lists(st.lists(st.integers(0, 2**16), max_size=40), max_size=5),
    st.integers(1, 2000),
    st.sampled_from([1, 60, 300, 131_072]),
    st.sampled_from([0, 3]),
)
def test_rows_given_bit_by_bit_become_the_same_batches(
    rows: list[Row], picked: list[list[int]], gather_bytes: int, batch_bytes: int, codec: int
) -> None:
    cuts = [[number % len(rows) for number in part] for part in picked]
    whole = table([rows[number] for part in cuts for number in part])
    settings = {"batch_bytes": batch_bytes, "codec": codec}
    source = RecordInput.from_arrow(table(rows))
    in_pieces, _ = in_steps(source, cuts, gather_bytes=gather_bytes, **settings)
    assert in_pieces == bytes(encode(whole, base_offset=9, **settings).data)


def test_full_batches_are_handed_on_as_soon_as_enough_is_gathered() -> None:
    source = RecordInput.from_arrow(table(simple(3000, bytes(1000))))
    data, steps = in_steps(source, [list(range(3000))], gather_bytes=BLOCK_BYTES, batch_bytes=100_000)
    assert steps == 2
    assert len(data) > 3_000_000


def test_batches_lie_in_memory_as_they_will_in_their_file() -> None:
    rows = table(simple(9000, bytes(1000)))
    encoder = RecordEncoder(BatchFormat(batch_bytes=100_000))
    data = b""

    def take(encoded: EncodedBatches) -> None:
        nonlocal data
        assert lies_in_pages(np.frombuffer(encoded.data, np.uint8), len(data))
        data += encoded.data
        encoder.file_position = len(data)

    steps = sum(take(encoded) is None for encoded in encoder.append(RecordInput.from_arrow(rows), np.arange(9000)))
    take(encoder.finish())
    assert steps == 4
    assert data == bytes(encode(rows, batch_bytes=100_000).data)


def test_what_is_handed_on_in_turn_has_its_own_extremes_of_time() -> None:
    rows: list[Row] = [(number % 37, None, bytes(50), []) for number in range(500)]
    whole = encode(table(rows), base_offset=9, batch_bytes=400)
    encoder = RecordEncoder(BatchFormat(batch_bytes=400), base_offset=9, gather_bytes=2000, room=100)
    steps = list(encoder.append(RecordInput.from_arrow(table(rows)), np.arange(500)))
    steps.append(encoder.finish())
    for name in ("offsets_of_max_timestamp", "min_timestamps"):
        assert np.concatenate([getattr(step, name) for step in steps]).tolist() == getattr(whole, name).tolist()


def test_a_bad_row_among_many_calls_is_counted_from_the_first_record() -> None:
    good, bad = RecordInput.from_arrow(table(simple(10))), RecordInput.from_arrow(table([(-2, None, None, [])]))
    encoder = RecordEncoder(BatchFormat(batch_bytes=20))
    assert list(encoder.append(good, np.arange(10))) == []
    with pytest.raises(InvalidRecordError, match=r"timestamp is negative.*row=10"):
        list(encoder.append(bad, np.arange(1)))


def test_a_record_that_no_batch_may_hold_is_refused_before_there_is_room_for_it() -> None:
    source = RecordInput.from_arrow(table([(0, None, bytes(50_000_000), [])]))
    encoder = RecordEncoder(BatchFormat())
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidRecordError, match=r"above max.message.bytes.* size=50000\d+ limit=1048588\)"):
        list(encoder.append(source, np.arange(1)))
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_what_was_handed_on_stays_while_more_is_made() -> None:
    rows = table(simple(9000, bytes(1000)))
    encoder = RecordEncoder(BatchFormat(batch_bytes=100_000))
    handed_on = [*encoder.append(RecordInput.from_arrow(rows), np.arange(9000)), encoder.finish()]
    assert b"".join(step.data for step in handed_on) == bytes(encode(rows, batch_bytes=100_000).data)


def test_rows_that_lie_apart_are_refused_before_anything_is_read() -> None:
    source = RecordInput.from_arrow(pa.record_batch({"timestamp": [1] * 9, "key": pa.nulls(9), "value": [b"v"] * 9}))
    with pytest.raises(TypeError, match="contiguous"):
        list(RecordEncoder(BatchFormat()).append(source, np.arange(9)[::3]))
