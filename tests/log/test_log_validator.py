"""What a producer's ready-made batch must be, and what is changed in it.

These are Kafka's tests of LogValidator, by their names there:

- one batch: checkOnlyOneBatch, testBatchWithoutRecordsNotAllowed, checkInvalidSequence, checkNoKeyCompactedTopic,
  testRecordBatchWithCountOverrides, testInconsistentCountAndOffset, testUnmatchedNumberOfRecords,
  testValidationOfBatchesWithNonSequentialInnerOffsets, testNonIncreasingOffsetRecordBatchHasMetricsLogged,
  testControlRecordsNotAllowedFromClients, testControlRecordsNotCompressed.
- what is stored: checkNonCompressed, checkCompressed, checkRecompression,
  testDifferentLevelDoesNotCauseRecompression, testDifferentCodecCausesRecompression,
  checkLogAppendTimeNonCompressed, checkLogAppendTimeWithoutRecompression,
  testRelativeOffsetAssignmentNonCompressedV2, testRelativeOffsetAssignmentCompressedV2.
- times: testInvalidCreateTimeNonCompressedV2, testInvalidCreateTimeCompressedV2,
  testRecordWithPastTimestampIsRejected, testRecordWithFutureTimestampIsRejected,
  testInvalidTimestampExceptionHasBatchIndex,
  testInvalidRecordExceptionHasBatchIndex, testBatchWithInvalidRecordsAndInvalidTimestamp.

Formats 0 and 1 are refused whole, so what Kafka tests with them is that alone: checkAllowMultiBatch,
checkMismatchMagic, checkInvalidChecksum, checkLogAppendTimeWithRecompression, testInvalidCreateTimeNonCompressedV1,
testInvalidCreateTimeCompressedV1, testAbsoluteOffsetAssignmentNonCompressed, testAbsoluteOffsetAssignmentCompressed,
testRelativeOffsetAssignmentNonCompressedV1, testRelativeOffsetAssignmentCompressedV1.
"""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from partition_logs import Process, append, new_topic
from raw_batches import batch, entry, record, with_right_crc
from topics import NOW, Clock

from distlog.core.batches.compression import CODEC_NAMES, compress, decompress
from distlog.core.batches.record_batch import (
    APPEND_TIME,
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    TRANSACTIONAL,
    check_crcs,
    read_headers,
)
from distlog.core.batches.record_decoder import decode
from distlog.core.commits.actions import SetLogStartOffset
from distlog.core.config import MAX_LONG, TopicConfig
from distlog.core.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    RecordValidationError,
)
from distlog.core.log.append_time import stamped
from distlog.core.log.log_validator import ValidBatch, validate

DAY, HOUR = 86_400_000, 3_600_000
CODECS = {name: codec for codec, name in enumerate(CODEC_NAMES)}
PRODUCER = (1324, 10, 984)


def records(*times: int, key: bytes | None = b"k", value: bytes = b"value") -> list[bytes]:
    """A record for each time, which is given relative to NOW."""
    return [record(delta, time, key, value) for delta, time in enumerate(times)]


def made(contents: list[bytes], codec: str = "none", **facts: Any) -> bytes:
    """A producer's batch of these records, from NOW on, compressed."""
    section = compress(CODECS[codec], b"".join(contents)) if codec != "none" else None
    facts = {"section": section, "base_timestamp": NOW, "max_timestamp": NOW + 1, **facts}
    facts["attributes"] = facts.get("attributes", 0) | CODECS[codec]
    return batch(contents, **facts)


def checked(data: bytes, *, now_ms: int = NOW, from_client: bool = True, **settings: Any) -> ValidBatch:
    """What a topic of these settings makes of the batch; its header and its checksum fit."""
    valid = validate(data, TopicConfig(**settings), now_ms, from_client=from_client)
    assert read_headers(valid.data.data).tobytes() == valid.rows.tobytes()
    check_crcs(valid.data, valid.rows)
    return valid


def section(data: Any, codec: str) -> bytes:
    """The decompressed records of the batch."""
    return bytes(decompress(CODECS[codec], bytes(data)[HEADER_SIZE:]))


def refused(kind: type[Exception], data: bytes, match: str | None = None, **settings: Any) -> Any:
    with pytest.raises(kind, match=match) as caught:
        checked(data, **settings)
    assert type(caught.value) is kind
    return caught.value


@pytest.mark.parametrize("codec", CODECS)
def test_a_good_batch_is_stored_as_it_came(codec: str) -> None:
    data = made(records(0, 1, 1), codec, producer=PRODUCER, attributes=TRANSACTIONAL)
    valid = checked(data)
    assert bytes(valid.data) == data
    assert (valid.newest_offset, valid.min_timestamp) == (1, NOW)


def test_the_leader_epoch_is_the_logs() -> None:
    assert checked(made(records(0), leader_epoch=55)).rows["leader_epoch"] == [-1]


@pytest.mark.parametrize("codec", CODECS)
def test_a_wrong_largest_time_is_corrected(codec: str) -> None:
    data = made(records(0, 5, 3), codec, max_timestamp=NOW + 77)
    valid = checked(data)
    assert valid.rows["max_timestamp"] == [NOW + 5]
    assert bytes(valid.data)[HEADER_SIZE:] == data[HEADER_SIZE:]


def test_records_without_a_time_are_taken() -> None:
    valid = checked(
        made(records(0, 0), base_timestamp=-1, max_timestamp=-1), message_timestamp_before_max_ms=1, segment_ms=1
    )
    assert (valid.rows["max_timestamp"], valid.newest_offset, valid.min_timestamp) == ([-1], -1, -1)


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
@pytest.mark.parametrize("source", ["none", "gzip"])
def test_another_codec_of_the_topic_compresses_the_records_anew(source: str, codec: str) -> None:
    contents = records(*range(100))
    valid = checked(made(contents, source, max_timestamp=NOW + 99, producer=PRODUCER), compression_type=codec)
    assert section(valid.data, codec) == b"".join(contents)
    if source != codec:
        fresh = made(contents, codec, max_timestamp=NOW + 99, producer=PRODUCER)
        assert bytes(valid.data) == fresh


def test_a_topic_without_compression_stores_records_uncompressed() -> None:
    contents = records(*range(100))
    valid = checked(made(contents, "zstd", max_timestamp=NOW + 99), compression_type="uncompressed")
    assert bytes(valid.data) == made(contents, max_timestamp=NOW + 99)


def test_another_level_does_not_compress_the_records_anew() -> None:
    contents = [b"".join(records(0))]
    data = batch(contents, section=compress(1, contents[0], 9), attributes=1, base_timestamp=NOW, max_timestamp=NOW)
    assert bytes(checked(data, compression_type="gzip", compression_gzip_level=1).data) == data


def test_another_codec_takes_the_topics_level() -> None:
    contents = records(*range(100))
    valid = checked(made(contents, max_timestamp=NOW + 99), compression_type="gzip", compression_gzip_level=9)
    assert bytes(valid.data)[HEADER_SIZE:] == compress(1, b"".join(contents), 9)


@pytest.mark.parametrize("codec", CODECS)
def test_an_append_time_is_put_into_the_header_alone(codec: str) -> None:
    data = made(records(5, 1), codec, base_timestamp=1234)
    valid = checked(data, now_ms=NOW + 9, message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=0)
    rows, newest, oldest = stamped(valid.data, valid.rows, NOW + 9)
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
    data = made(records(*times), codec)
    if not bad:
        checked(data, **limits)
        return
    error = refused(InvalidTimestampError, data, **limits)
    assert [number for number, _ in error.record_errors] == bad
    assert "message.timestamp.before.max.ms" in error.record_errors[0][1]


@pytest.mark.parametrize("time", [-2, -(2**62)])
def test_a_negative_time_that_is_not_none_is_refused(time: int) -> None:
    refused(InvalidTimestampError, made([record(0, time)], base_timestamp=0))


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_a_producer_does_not_set_the_append_time(kind: str) -> None:
    error = refused(InvalidTimestampError, made(records(0, 1), attributes=APPEND_TIME), message_timestamp_type=kind)
    assert [number for number, _ in error.record_errors] == [0, 1]


@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_topic_needs_keys(codec: str) -> None:
    keyed, bare = record(0, 0, b"k"), record(1, 0, None)
    data = made([keyed, bare, record(2, 0, b""), record(3, 0, None)], codec)
    error = refused(RecordValidationError, data, cleanup_policy="compact,delete")
    assert [number for number, _ in error.record_errors] == [1, 3]
    checked(data)


def test_all_records_that_are_refused_are_told_and_the_error_stays_short() -> None:
    error = refused(RecordValidationError, made(records(*[0] * 20, key=None)), cleanup_policy="compact")
    assert len(error.record_errors) == 20
    assert str(error).count("needs a key") == 3
    assert pickle.loads(pickle.dumps(error)).record_errors == error.record_errors


def test_a_wrong_time_counts_for_more_than_a_missing_key() -> None:
    contents = [record(number, HOUR * 9 * (number % 2), None) for number in range(5)]
    contents.append(record(5, HOUR * 9, b"k"))
    error = refused(InvalidTimestampError, made(contents), cleanup_policy="compact")
    assert [number for number, _ in error.record_errors] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_old_formats_are_refused_with_what_to_do(magic: int, codec: int) -> None:
    refused(InvalidRecordError, entry(magic, 0, attributes=codec), "use a newer client")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 5,
        made(records(0)) * 2,
        made(records(0), "gzip") * 2,
        made(records(0))[:-1],
        made(records(0)) + b"\0",
        made(records(0)) + made(records(0))[:30],
    ],
    ids=["nothing", "5 bytes", "two", "two compressed", "a part", "a byte more", "a part behind"],
)
def test_there_is_exactly_one_whole_batch(data: bytes) -> None:
    refused(InvalidRecordError, data, "exactly one whole batch")


@pytest.mark.parametrize(("last_delta", "count"), [(0, 3), (15, 3), (5, 6 + 1), (1, 2 + 1), (0, 0), (2, 0)])
def test_the_offsets_are_as_many_as_the_records(last_delta: int, count: int) -> None:
    refused(
        InvalidRecordError, made(records(*[0] * count), last_delta=last_delta), "another number of records than of"
    )


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize(("present", "claimed"), [(5, 6), (3, 2), (2, 1)])
def test_a_batch_has_as_many_records_as_it_says(codec: str, present: int, claimed: int) -> None:
    data = made(records(*[0] * present), codec, last_delta=claimed - 1, count=claimed)
    refused(InvalidRecordError, data, "does not decode")


def test_a_count_that_cannot_be_costs_no_memory() -> None:
    refused(InvalidRecordError, made(records(0), last_delta=2**31 - 2, count=2**31 - 1), "too short for the records")
    with pytest.raises(CorruptRecordError):
        checked(made(records(0), last_delta=-4, count=3))


@pytest.mark.parametrize("codec", ["none", "snappy"])
@pytest.mark.parametrize("deltas", [(0, 2, 1), (1, 2, 3), (0, 0, 2), (0, 2, 3)])
def test_the_offsets_in_a_batch_are_0_1_2_and_so_on(codec: str, deltas: tuple[int, ...]) -> None:
    data = made([record(delta, 0) for delta in deltas], codec)
    refused(InvalidRecordError, data, "its offset is not the next one")


def test_a_batch_begins_at_offset_0() -> None:
    refused(InvalidRecordError, made(records(0), base_offset=1), "begins at offset 0")


def test_a_changed_byte_is_found() -> None:
    for at in (21, 30, HEADER_SIZE + 3):
        data = bytearray(made(records(0, 1)))
        data[at] ^= 1
        refused(CorruptRecordError, bytes(data), "changed on its way")


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"] + ["5"])
def test_records_that_do_not_decompress_are_refused(codec: str) -> None:
    number = int(codec) if codec.isdigit() else CODECS[codec]
    data = batch(records(0), section=b"no such stream at all", attributes=number, base_timestamp=NOW)
    refused(CorruptRecordError, data)


def test_a_damaged_record_with_a_right_checksum_is_refused() -> None:
    good = made(records(0, 1, value=b"v" * 100))
    # lengths and deltas, but not the attributes, which Kafka does not look at
    for at in (0, 1, 3, 4, 5):
        damaged = bytearray(good)
        damaged[HEADER_SIZE + at] = 0x84
        with pytest.raises(InvalidRecordError):
            checked(with_right_crc(bytes(damaged)))


@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_what_is_taken_can_be_read_whatever_is_wrong_with_it(codec: str) -> None:
    pick, taken = random.Random(7), 0
    good = bytearray(b"".join(records(0, 1, 300_000_000, key=b"key", value=b"v" * 40)))
    for _ in range(500):
        section = bytearray(good)
        for _ in range(pick.randrange(1, 3)):
            section[pick.randrange(len(section))] = pick.choice((0, 1, 2, 0x7F, 0x80, 0xFF, pick.randrange(256)))
        data = made(records(0, 0, 0), section=compress(CODECS[codec], section), attributes=CODECS[codec])
        try:
            valid = checked(data, message_timestamp_after_max_ms=MAX_LONG)
        except InvalidRecordError:
            continue
        taken += 1
        found = decode(valid.data, valid.rows, columns=("offset", "timestamp"))
        times = found.column(1).cast("int64").to_pylist()
        assert found.column(0).to_pylist() == [0, 1, 2]
        assert max(times) == valid.rows[0]["max_timestamp"]
        assert (min(times), times.index(max(times))) == (valid.min_timestamp, valid.newest_offset)
    assert 50 < taken < 450


def test_a_producer_id_needs_a_sequence() -> None:
    refused(InvalidRecordError, made(records(0), producer=(5, 0, -1)), "sequence number")


def test_a_client_does_not_append_control_batches() -> None:
    data = made([record(0, 0, b"\0\0\0\1", b"\0" * 6)], attributes=CONTROL | TRANSACTIONAL, producer=(5, 0, -1))
    refused(InvalidRecordError, data, "control")
    own = checked(data, from_client=False, compression_type="gzip", cleanup_policy="compact")
    assert bytes(own.data)[HEADER_SIZE:] == data[HEADER_SIZE:]
    assert own.rows["attributes"] & CODEC_MASK == 0


def test_the_size_limit_holds_before_and_after_compression() -> None:
    value = bytes(range(256)) * 4
    data = made(records(0, value=value))
    checked(data, max_message_bytes=len(data))
    refused(RecordTooLargeError, data, "max.message.bytes", max_message_bytes=len(data) - 1)
    packed = made(records(0, value=value), "gzip")
    assert len(packed) < len(data)
    limits = {"max_message_bytes": len(packed), "compression_type": "uncompressed"}
    refused(RecordTooLargeError, packed, "max.message.bytes", **limits)


def test_a_batch_larger_than_a_varint_of_four_bytes_can_tell_is_checked() -> None:
    contents = [record(0, 0, b"k", bytes(1 << 20)), record(1, 1, b"k", bytes(200_000))]
    checked(made(contents), max_message_bytes=1 << 24)


def test_batches_are_appended_with_what_their_producer_must_know(tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "events", compression_type="zstd"))
    append(process[0], b"first")
    for codec in CODECS:
        process[0].append_batches(made(records(0, 1, value=codec.encode()), codec))
    info = process[0].append_batches(made(records(0)))
    assert (info.appended.first_offset, info.appended.end_offset) == (11, 12)
    assert info.appended.flush_due
    assert (info.appended.append_time_ms, info.log_start_offset) == (-1, 0)
    values = [codec.encode() for codec in CODECS for _ in range(2)]
    assert process.seen()[0] == [b"first", *values, b"value"]
    process[0].roll()
    assert process.anomalies() == ()


def test_the_append_time_and_the_log_start_are_told(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=0)
    process = Process(folder, clock=Clock(NOW + 5))
    process[0].append_batches(made(records(0, 1)))
    process[0].roll()
    process.handle.log.commit(process.head(), "delete-records", lambda _: [SetLogStartOffset(0, 1)])
    process.snapshots.refresh()
    info = process[0].append_batches(made(records(-DAY)))
    assert (info.appended.first_offset, info.appended.append_time_ms, info.log_start_offset) == (2, NOW + 5, 1)


def test_nothing_is_appended_of_a_batch_that_is_refused(tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "events", cleanup_policy="compact", internal_segment_bytes=300))
    with pytest.raises(RecordValidationError):
        process[0].append_batches(made(records(0, key=None)))
    with pytest.raises(RecordTooLargeError, match=r"segment\.bytes"):
        process[0].append_batches(made(records(0, value=bytes(300))))
    assert process.head().version == 0


def test_the_bytes_that_are_given_stay_as_they_are(tmp_path: Path) -> None:
    data = bytearray(made(records(0, 1)))
    before = bytes(data)
    process = Process(new_topic(tmp_path / "events"))
    for _ in range(2):
        process[0].append_batches(memoryview(data).toreadonly())
    assert bytes(data) == before
