"""What a segment writer is given: in which order, cut how, of which types, and what it refuses."""

from __future__ import annotations

import gc
import itertools
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from searches import examples
from written_segments import append, files, memory, records, walk, write, writer

from distlog.core.batches.record_batch import read_headers
from distlog.core.batches.record_decoder import decode
from distlog.core.batches.record_encoder import RecordEncoder, RecordInput
from distlog.core.errors import InvalidRecordError, StorageError
from distlog.core.segments import segment_writer


@pytest.mark.parametrize("setting", ["max_message_bytes", "internal_segment_bytes"])
def test_a_record_that_fits_no_batch_is_refused_by_its_row(setting: str) -> None:
    batch = records([0] * 3, value=pa.array([b"", b"x" * 930, b"x" * 931]))
    assert write(batch.slice(0, 2), batch_bytes=1, **{setting: 1000}).segments
    with pytest.raises(InvalidRecordError, match=r"partition=3 row_of_partition=2 .*size=1001"):
        write(batch, batch_bytes=1, **{setting: 1000})


def test_rows_of_an_error_count_from_the_first_append() -> None:
    made = writer(memory(), max_message_bytes=2000)
    append(made, records([0] * 20_000, size=100))
    with pytest.raises(InvalidRecordError, match="row_of_partition=20000"):
        append(made, records([0], value=pa.array([b"x" * 2000])))


def test_small_appends_are_gathered_into_full_batches() -> None:
    batch = records([0] * 50_000, size=100)
    one = write(batch)
    many = write(*(batch.slice(start, 10) for start in range(0, 50_000, 10)))
    assert one.files == many.files
    sizes = [batch.size for batch in walk(one.files[0][".log"])]
    assert min(sizes[:-1]) > 131_072 - 200


cuts = st.lists(st.integers(0, 400), max_size=12).map(sorted)


@examples(20)
@given(cuts, st.integers(1, 4000), st.sampled_from(["none", "lz4"]), st.integers(500, 20_000))
def test_the_same_records_give_the_same_bytes_however_they_are_cut(
    edges: list[int], gather_bytes: int, codec: str, segment_bytes: int
) -> None:
    batch = records([number % 90 for number in range(400)], size=20)
    config = {
        "codec": codec,
        "batch_bytes": 400,
        "internal_segment_bytes": segment_bytes,
        "index_interval_bytes": 1000,
    }
    whole = write(batch, **config)
    with pytest.MonkeyPatch.context() as patch:
        encoder = partial(RecordEncoder, room=100)
        patch.setattr(segment_writer, "RecordEncoder", lambda form, **_: encoder(form, gather_bytes=gather_bytes))
        parts = [batch.slice(low, high - low) for low, high in itertools.pairwise([0, *edges, 400])]
        assert write(*parts, **config) == whole


def test_rows_are_written_in_the_order_they_are_given_and_no_others() -> None:
    made = writer(storage := memory())
    source = RecordInput.from_arrow(records(list(range(10))))
    made.append(source, np.array([7, 2, 2]))
    made.append(source, np.array([], np.int64))
    made.append(source, np.array([0]))
    (info,) = made.close()
    log = files(storage, info)[".log"]
    assert decode(log, read_headers(log))["timestamp"].cast("int64").to_pylist() == [7, 2, 2, 0]


def test_a_batch_larger_than_what_is_gathered_is_filled() -> None:
    batch = records([0] * 50_000, size=100)
    parts = [batch.slice(start, 1000) for start in range(0, 50_000, 1000)]
    (files,) = write(*parts, batch_bytes=4_000_000, max_message_bytes=5_000_000).files
    sizes = [found.size for found in walk(files[".log"])]
    assert len(sizes) == 2
    assert sizes[0] > 3_999_000


def test_appends_of_different_columns_and_types_go_together() -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"1"}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    )
    written = write(
        records([1]),
        records([2], headers=headers),
        records([3], value=pa.array([b"large"], pa.large_binary())),
        records([4], key=pa.array([b"k"])),
    )
    (log,) = (files[".log"] for files in written.files)
    decoded = decode(log, read_headers(log), columns=("key", "value", "headers")).to_pylist()
    assert len(read_headers(log)) == 1
    assert [row["key"] for row in decoded] == [None, None, None, b"k"]
    assert [row["headers"] for row in decoded] == [[], [{"key": "h", "value": b"1"}], [], []]
    assert decoded[2]["value"] == b"large"


def test_a_small_slice_does_not_keep_what_it_was_cut_from() -> None:
    made = writer(memory())
    gc.collect()
    before = pa.total_allocated_bytes()
    for _ in range(10):
        append(made, pa.concat_batches([records([0] * 10_000, size=100)] * 2).slice(17, 5))
    assert pa.total_allocated_bytes() - before < 100_000
    assert made.close()[0].record_count == 50


def test_close_twice_is_close_once() -> None:
    made = writer(memory())
    append(made, records([1, 2]))
    assert len(made.close()) == len(made.close()) == 1


def test_what_was_aborted_is_never_closed_as_if_it_were_whole() -> None:
    made = writer(memory())
    append(made, records([0] * 3000, size=1000))
    made.abort()
    with pytest.raises(StorageError, match=r"aborted.*partition=3"):
        made.close()


def test_columns_whose_memory_ends_in_the_middle_of_an_item_are_taken() -> None:
    numbers = np.arange(11, dtype=np.int64).tobytes() + b"loose"
    timestamps = pa.Array.from_buffers(pa.int64(), 10, [None, pa.py_buffer(numbers)])
    offsets = pa.py_buffer(np.arange(0, 44, 4, dtype=np.int32).tobytes() + b"end")
    values = pa.Array.from_buffers(pa.binary(), 10, [None, offsets, pa.py_buffer(bytes(40))])
    batch = pa.RecordBatch.from_pydict({"timestamp": timestamps, "key": pa.nulls(10, pa.binary()), "value": values})
    (log,) = (files[".log"] for files in write(batch).files)
    assert decode(log, read_headers(log))["timestamp"].cast("int64").to_pylist() == list(range(10))
