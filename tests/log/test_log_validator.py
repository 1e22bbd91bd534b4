"""The batches that a producer may send, and the fields that an append changes: Kafka's LogValidatorTest."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import pytest
from commits import put_commit
from partition_logs import Process, append, new_topic
from producer_batches import CODECS, checked, packed, records, refused, section
from raw_batches import batch, record
from topics import NOW, Clock

from distlog.core.commits.actions import SetLogStartOffset
from distlog.core.errors import InvalidRecordError, InvalidTimestampError, RecordValidationError
from distlog.core.format.compression import compress
from distlog.core.format.record_batch import APPEND_TIME, HEADER_SIZE, TRANSACTIONAL
from distlog.core.format.record_decoder import decode
from distlog.core.log.partition_log import with_append_times

DAY, HOUR = 86_400_000, 3_600_000
PRODUCER = (1324, 10, 984)


@pytest.mark.parametrize("codec", CODECS)
def test_a_good_batch_is_stored_unchanged(codec: str) -> None:
    data = packed(records(0, 1, 1), codec, producer=PRODUCER, attributes=TRANSACTIONAL)
    valid = checked(data)
    assert bytes(valid.data) == data
    assert (valid.offset_of_max_timestamp, valid.min_timestamp) == (1, NOW)


def test_the_leader_epoch_is_the_logs() -> None:
    assert checked(packed(records(0), leader_epoch=55)).rows["leader_epoch"] == [-1]


@pytest.mark.parametrize("codec", CODECS)
def test_a_wrong_largest_time_is_corrected(codec: str) -> None:
    data = packed(records(0, 5, 3), codec, max_timestamp=NOW + 77)
    valid = checked(data)
    assert valid.rows["max_timestamp"] == [NOW + 5]
    assert bytes(valid.data)[HEADER_SIZE:] == data[HEADER_SIZE:]


def test_records_without_a_time_are_accepted() -> None:
    valid = checked(
        packed(records(0, 0), base_timestamp=-1, max_timestamp=-1),
        message_timestamp_before_max_ms=1,
        segment_ms=1,
    )
    assert (valid.rows["max_timestamp"], valid.offset_of_max_timestamp, valid.min_timestamp) == ([-1], -1, -1)


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
@pytest.mark.parametrize("source", ["none", "gzip"])
def test_another_topic_codec_recompresses_the_records(source: str, codec: str) -> None:
    contents = records(*range(100))
    valid = checked(packed(contents, source, max_timestamp=NOW + 99, producer=PRODUCER), compression_type=codec)
    assert section(valid.data, codec) == b"".join(contents)
    if source != codec:
        fresh = packed(contents, codec, max_timestamp=NOW + 99, producer=PRODUCER)
        assert bytes(valid.data) == fresh


def test_a_topic_without_compression_stores_records_uncompressed() -> None:
    contents = records(*range(100))
    valid = checked(packed(contents, "zstd", max_timestamp=NOW + 99), compression_type="uncompressed")
    assert bytes(valid.data) == packed(contents, max_timestamp=NOW + 99)


def test_another_level_does_not_recompress_the_records() -> None:
    contents = [b"".join(records(0))]
    data = batch(contents, section=compress(1, contents[0], 9), attributes=1, base_timestamp=NOW, max_timestamp=NOW)
    assert bytes(checked(data, compression_type="gzip", compression_gzip_level=1).data) == data


def test_another_codec_takes_the_topics_level() -> None:
    contents = records(*range(100))
    valid = checked(packed(contents, max_timestamp=NOW + 99), compression_type="gzip", compression_gzip_level=9)
    assert bytes(valid.data)[HEADER_SIZE:] == compress(1, b"".join(contents), 9)


@pytest.mark.parametrize("codec", CODECS)
def test_an_append_time_is_put_into_the_header_alone(codec: str) -> None:
    data = packed(records(5, 1), codec, base_timestamp=1234)
    valid = checked(data, now_ms=NOW + 9, message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=0)
    rows, newest, oldest = with_append_times(valid.data, valid.rows, NOW + 9)
    assert bytes(valid.data)[HEADER_SIZE:] == data[HEADER_SIZE:]
    assert rows["base_timestamp"] == [1234]
    assert rows["max_timestamp"] == [NOW + 9]
    assert rows["attributes"] & APPEND_TIME
    assert (newest.tolist(), oldest.tolist()) == ([0], [NOW + 9])
    assert set(decode(valid.data, rows).column("timestamp").cast("int64").to_pylist()) == {NOW + 9}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("times", "bad"),
    [
        ((-DAY, HOUR), []),
        ((-DAY - 1, 0, -DAY - 1), [0, 2]),
        ((0, HOUR, HOUR + 1), [2]),
        ((-DAY - 300_000, -DAY - 300_000, HOUR + 300_000), [0, 1, 2]),
    ],
)
def test_times_too_old_or_too_far_ahead_are_refused_with_their_numbers(
    codec: str, times: tuple[int, ...], bad: list[int]
) -> None:
    limits = {"message_timestamp_before_max_ms": DAY, "message_timestamp_after_max_ms": HOUR}
    data = packed(records(*times), codec)
    if not bad:
        checked(data, **limits)
        return
    error = refused(InvalidTimestampError, data, **limits)
    assert [number for number, _ in error.record_errors] == bad
    assert "message.timestamp.before.max.ms" in error.record_errors[0][1]


@pytest.mark.parametrize("time", [-2, -(2**62)])
def test_a_negative_time_that_is_not_none_is_refused(time: int) -> None:
    refused(InvalidTimestampError, packed([record(0, time)], base_timestamp=0))


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_a_producer_does_not_set_the_append_time(kind: str) -> None:
    error = refused(InvalidTimestampError, packed(records(0, 1), attributes=APPEND_TIME), message_timestamp_type=kind)
    assert [number for number, _ in error.record_errors] == [0, 1]


@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_topic_needs_keys(codec: str) -> None:
    keyed, bare = record(0, 0, b"k"), record(1, 0, None)
    data = packed([keyed, bare, record(2, 0, b""), record(3, 0, None)], codec)
    error = refused(RecordValidationError, data, cleanup_policy="compact,delete")
    assert [number for number, _ in error.record_errors] == [1, 3]
    checked(data)


def test_the_error_lists_refused_records_and_stays_short() -> None:
    error = refused(RecordValidationError, packed(records(*[0] * 20, key=None)), cleanup_policy="compact")
    assert len(error.record_errors) == 20
    assert str(error).count("needs a key") == 3
    assert pickle.loads(pickle.dumps(error)).record_errors == error.record_errors


def test_the_error_lists_at_most_a_hundred_refused_records() -> None:
    many = batch([record(number) for number in range(1000)])
    error = refused(RecordValidationError, many, cleanup_policy="compact")
    assert [number for number, _ in error.record_errors] == list(range(100))


def test_a_claimed_number_of_records_allocates_nothing() -> None:
    hostile = batch([record()], count=(1 << 31) - 1, last_delta=(1 << 31) - 2, attributes=APPEND_TIME)
    tracemalloc.start()
    try:
        refused(InvalidRecordError, hostile)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_wrong_time_takes_precedence_over_a_missing_key() -> None:
    contents = [record(number, HOUR * 9 * (number % 2), None) for number in range(5)]
    contents.append(record(5, HOUR * 9, b"k"))
    error = refused(InvalidTimestampError, packed(contents), cleanup_policy="compact")
    assert [number for number, _ in error.record_errors] == [0, 1, 2, 3, 4, 5]


def test_a_batch_past_the_range_of_a_four_byte_varint_is_checked() -> None:
    contents = [record(0, 0, b"k", bytes(1 << 20)), record(1, 1, b"k", bytes(200_000))]
    checked(packed(contents), max_message_bytes=1 << 24)


def test_batches_are_appended_with_what_their_producer_must_know(tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "events", compression_type="zstd"))
    append(process[0], b"first")
    for codec in CODECS:
        process[0].append_batches(packed(records(0, 1, value=codec.encode()), codec))
    info = process[0].append_batches(packed(records(0)))
    assert (info.appended.first_offset, info.appended.end_offset) == (11, 12)
    assert info.appended.flush_due
    assert (info.appended.append_time_ms, info.log_start_offset) == (-1, 0)
    values = [codec.encode() for codec in CODECS for _ in range(2)]
    assert process.values()[0] == [b"first", *values, b"value"]
    process[0].roll()
    assert process.anomalies() == ()


def test_the_append_time_and_the_log_start_are_returned(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=0)
    process = Process(folder, clock=Clock(NOW + 5))
    process[0].append_batches(packed(records(0, 1)))
    process[0].roll()
    put_commit(process.handle.log, process.head(), "delete-records", lambda _: [SetLogStartOffset(0, 1)])
    process.snapshots.refresh()
    info = process[0].append_batches(packed(records(-DAY)))
    assert (info.appended.first_offset, info.appended.append_time_ms, info.log_start_offset) == (2, NOW + 5, 1)


def test_the_input_stays_unchanged(tmp_path: Path) -> None:
    data = bytearray(packed(records(0, 1)))
    old_data = bytes(data)
    process = Process(new_topic(tmp_path / "events"))
    for _ in range(2):
        process[0].append_batches(memoryview(data).toreadonly())
    assert bytes(data) == old_data
