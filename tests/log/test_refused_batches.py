"""Batches that a partition refuses: the error names the reason, and nothing is appended."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from partition_logs import Process, new_topic
from producer_batches import CODECS, checked, packed, records, refused
from raw_batches import batch, entry, record, with_right_crc
from topics import NOW

from distlog.core.arrays import MAX_LONG
from distlog.core.errors import CorruptRecordError, InvalidRecordError, RecordTooLargeError, RecordValidationError
from distlog.core.format.compression import compress
from distlog.core.format.record_batch import CONTROL, HEADER_SIZE, TRANSACTIONAL
from distlog.core.format.record_decoder import decode


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_old_formats_are_refused_with_what_to_do(magic: int, codec: int) -> None:
    refused(InvalidRecordError, entry(magic, 0, attributes=codec), "use a newer client")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 5,
        packed(records(0)) * 2,
        packed(records(0), "gzip") * 2,
        packed(records(0))[:-1],
        packed(records(0)) + b"\0",
        packed(records(0)) + packed(records(0))[:30],
    ],
    ids=["nothing", "5 bytes", "two", "two compressed", "a part", "a byte more", "a part after"],
)
def test_there_is_exactly_one_whole_batch(data: bytes) -> None:
    refused(InvalidRecordError, data, "exactly one whole batch")


@pytest.mark.parametrize(("last_delta", "count"), [(0, 3), (15, 3), (5, 6 + 1), (1, 2 + 1), (0, 0), (2, 0)])
def test_there_is_an_offset_per_record(last_delta: int, count: int) -> None:
    refused(
        InvalidRecordError,
        packed(records(*[0] * count), last_delta=last_delta),
        "one offset per record",
    )


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize(("present", "claimed"), [(5, 6), (3, 2), (2, 1)])
def test_a_batch_has_as_many_records_as_it_says(codec: str, present: int, claimed: int) -> None:
    data = packed(records(*[0] * present), codec, last_delta=claimed - 1, count=claimed)
    refused(InvalidRecordError, data, "does not decode")


def test_an_impossible_count_allocates_no_memory() -> None:
    refused(
        InvalidRecordError,
        packed(records(0), last_delta=2**31 - 2, count=2**31 - 1),
        "too short for its number of records",
    )
    with pytest.raises(CorruptRecordError):
        checked(packed(records(0), last_delta=-4, count=3))


@pytest.mark.parametrize("codec", ["none", "snappy"])
@pytest.mark.parametrize("deltas", [(0, 2, 1), (1, 2, 3), (0, 0, 2), (0, 2, 3)])
def test_the_offsets_in_a_batch_are_consecutive(codec: str, deltas: tuple[int, ...]) -> None:
    data = packed([record(delta, 0) for delta in deltas], codec)
    refused(InvalidRecordError, data, "has a wrong offset")


def test_a_batch_begins_at_offset_0() -> None:
    refused(InvalidRecordError, packed(records(0), base_offset=1), "begin at offset 0")


def test_a_changed_byte_is_detected() -> None:
    for number in (21, 30, HEADER_SIZE + 3):
        data = bytearray(packed(records(0, 1)))
        data[number] ^= 1
        refused(CorruptRecordError, bytes(data), "changed in transit")


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"] + ["5"])
def test_records_that_do_not_decompress_are_refused(codec: str) -> None:
    number = int(codec) if codec.isdigit() else CODECS[codec]
    data = batch(records(0), section=b"not a compressed stream", attributes=number, base_timestamp=NOW)
    refused(CorruptRecordError, data)


def test_a_damaged_record_with_a_right_checksum_is_refused() -> None:
    good = packed(records(0, 1, value=b"v" * 100))
    # lengths and deltas, but not the attributes, which Kafka ignores
    for number in (0, 1, 3, 4, 5):
        damaged = bytearray(good)
        damaged[HEADER_SIZE + number] = 0x84
        with pytest.raises(InvalidRecordError):
            checked(with_right_crc(bytes(damaged)))


@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_accepted_batches_can_be_read(codec: str) -> None:
    pick, accepted = random.Random(7), 0
    good = bytearray(b"".join(records(0, 1, 300_000_000, key=b"key", value=b"v" * 40)))
    for _ in range(500):
        section = bytearray(good)
        for _ in range(pick.randrange(1, 3)):
            section[pick.randrange(len(section))] = pick.choice((0, 1, 2, 0x7F, 0x80, 0xFF, pick.randrange(256)))
        data = packed(records(0, 0, 0), section=compress(CODECS[codec], section), attributes=CODECS[codec])
        try:
            valid = checked(data, message_timestamp_after_max_ms=MAX_LONG)
        except InvalidRecordError:
            continue
        accepted += 1
        decoded = decode(valid.data, valid.rows, columns=("offset", "timestamp"))
        times = decoded.column(1).cast("int64").to_pylist()
        assert decoded.column(0).to_pylist() == [0, 1, 2]
        assert max(times) == valid.rows[0]["max_timestamp"]
        assert (min(times), times.index(max(times))) == (valid.min_timestamp, valid.offset_of_max_timestamp)
    assert 50 < accepted < 450


def test_a_producer_id_needs_a_sequence() -> None:
    refused(InvalidRecordError, packed(records(0), producer=(5, 0, -1)), "sequence number")


def test_a_client_does_not_append_control_batches() -> None:
    data = packed([record(0, 0, b"\0\0\0\1", b"\0" * 6)], attributes=CONTROL | TRANSACTIONAL, producer=(5, 0, -1))
    refused(InvalidRecordError, data, "control")


def test_the_size_limit_holds_before_and_after_compression() -> None:
    value = bytes(range(256)) * 4
    data = packed(records(0, value=value))
    checked(data, max_message_bytes=len(data))
    refused(RecordTooLargeError, data, "max.message.bytes", max_message_bytes=len(data) - 1)
    compressed = packed(records(0, value=value), "gzip")
    assert len(compressed) < len(data)
    limits = {"max_message_bytes": len(compressed), "compression_type": "uncompressed"}
    refused(RecordTooLargeError, compressed, "max.message.bytes", **limits)


def test_a_refused_batch_appends_nothing(tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "events", cleanup_policy="compact", internal_segment_bytes=300))
    with pytest.raises(RecordValidationError):
        process[0].append_batches(packed(records(0, key=None)))
    with pytest.raises(RecordTooLargeError, match=r"segment\.bytes"):
        process[0].append_batches(packed(records(0, value=bytes(300))))
    assert process.head().version == 0
