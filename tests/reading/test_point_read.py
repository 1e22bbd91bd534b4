"""A few records from an offset or a time on equal the records of a scan, for every log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden
import pytest
from adopted import adopt, adopt_golden, forget_fields, put, rows, with_indexes
from index_use import WAYS
from index_use import by_index as by_index
from index_use import either_way as either_way
from logs import START, Log, appended, batches_of, each_byte_changed, log_of
from point_reads import active, expected_rows_from, rows_from
from raw_batches import batch, record
from searches import FACTOR, pairs

import distlog
from distlog import CorruptRecordError
from distlog.core.format.record_batch import HEADER_SIZE, read_headers
from distlog.core.read import lookup
from distlog.core.read import scan as record_module
from distlog.core.segments import segment_reader

GOLDEN = golden.partitions()


@pytest.fixture
def no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_left(*arguments: Any) -> Any:
        assert arguments[3] == 0, "a scan was made"
        return iter(())

    monkeypatch.setattr(record_module, "first", nothing_left)


@pytest.mark.parametrize(("name", "either_way"), pairs(GOLDEN, WAYS), indirect=["either_way"])
@pytest.mark.usefixtures("either_way")
def test_every_offset_of_a_brokers_log_gives_its_record(tmp_path: Path, name: str) -> None:
    topic = adopt_golden(str(tmp_path / "t"), GOLDEN[name])
    expected = GOLDEN[name].records()
    start, end = topic.start_offsets()[0], topic.end_offsets()[0]
    for offset in {*range(start, end, max(1, (end - start) // 25)), end - 1, end}:
        for limit in (1, 3):
            assert rows_from(topic, offset, limit) == expected_rows_from(expected, offset, limit)


@pytest.mark.long
@pytest.mark.parametrize(("name", "either_way"), pairs(GOLDEN, WAYS), indirect=["either_way"])
@pytest.mark.usefixtures("either_way")
def test_every_time_of_a_brokers_log_gives_its_first_record(tmp_path: Path, name: str) -> None:
    topic = adopt_golden(str(tmp_path / "t"), GOLDEN[name])
    expected = GOLDEN[name].records()
    times = sorted({row["timestamp"] for row in expected if row["timestamp"] is not None and row["timestamp"] >= 0})
    for time in times[:: max(1, len(times) // 15)]:
        for lookup_ms in (time, time + 1):
            first = next(
                ((row["offset"], row["timestamp"]) for row in expected if row["timestamp"] >= lookup_ms), None
            )
            assert topic.offsets_for_times(lookup_ms)[0] == first


@pytest.mark.usefixtures("either_way", "no_scan")
@pytest.mark.parametrize("settings", [{}, {"compression.type": "lz4"}, {"message.timestamp.type": "LogAppendTime"}])
@pytest.mark.parametrize(("count", "size"), [(60, 10), (1, 10), (30, 20_000), (12, 150_000)])
def test_a_sound_active_segment_is_not_scanned_for_a_record(
    tmp_path: Path, settings: dict[str, str], count: int, size: int
) -> None:
    topic = active(str(tmp_path / "t"), count, size, **settings)
    expected = log_of(topic).expected
    for offset in range(count):
        assert rows_from(topic, offset) == expected_rows_from(expected, offset)


def test_all_records_of_an_active_segment_are_found(tmp_path: Path) -> None:
    topic = active(str(tmp_path / "t"), 3000, 100)
    expected = log_of(topic).expected
    for offset in (0, 1, 1500, 2999, 3000):
        for limit in (1, 2, 63, 64, 65, 2000, None):
            assert rows_from(topic, offset, limit) == expected_rows_from(expected, offset, limit)


@pytest.mark.usefixtures("either_way", "no_scan")
@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_sound_log_is_not_scanned_for_a_record(tmp_path: Path, codec: str) -> None:
    topic = appended(str(tmp_path / "t"), 60, 7, 40, **{"compression.type": codec})
    expected = log_of(topic).expected
    for offset in range(107):
        assert rows_from(topic, offset) == expected_rows_from(expected, offset)


@pytest.mark.usefixtures("by_index")
def test_a_sound_log_is_not_scanned_for_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = appended(str(tmp_path / "t"), 60)
    monkeypatch.setattr(segment_reader.SegmentReader, "chunks", None)
    for row in range(60):
        assert topic.offsets_for_times(START + 10 * row - 5)[0] == (row, START + 10 * row)


def test_headers_and_nulls_are_as_they_were_written(tmp_path: Path, no_scan: None) -> None:
    topic = distlog.create(str(tmp_path / "t"))
    headers = [("h", b"v"), ("h", None), ("\u00e4" * 70, b""), ("", b"x" * 300)]
    topic.append([{"value": None, "key": b"", "timestamp": 5, "headers": headers}, {"value": b"", "timestamp": -1}])
    assert list(topic.records(0, 0, 2)) == [
        (0, 0, 5, 0, b"", None, headers),
        (0, 1, -1, 0, None, b"", []),
    ]


def test_invalid_bytes_in_a_headers_name_are_replaced(tmp_path: Path, no_scan: None) -> None:
    log = batch([record(0, 0, None, b"v", ((b"\xff", b"1"),))])
    topic = adopt(str(tmp_path / "t"), [(0, with_indexes(log, 0))], 1)
    assert next(topic.records(0, 0, 1)).headers == [("\ufffd", b"1")]


def test_the_time_of_a_commit_is_the_time_of_its_records(tmp_path: Path, no_scan: None) -> None:
    topic = distlog.create(str(tmp_path / "t"), config={"message.timestamp.type": "LogAppendTime"})
    for _ in range(3):
        topic.append([{"value": b"v", "timestamp": 5}] * 3)
    time = topic.snapshot.partitions[0].segments[1].append_time_ms
    assert time > 5
    assert [(entry.timestamp, entry.timestamp_type) for entry in topic.records(0, 4, 1)] == [(time, 1)]
    assert topic.offsets_for_times(time)[0] == (3, time)


@pytest.mark.parametrize("limit", [1, 63, 64, 65, 200, None])
def test_a_scan_continues_after_a_point_read(tmp_path: Path, limit: int | None) -> None:
    topic = appended(str(tmp_path / "t"), 90, 120)
    expected = log_of(topic).expected
    for start in (0, 50, 85, 205, 210):
        assert rows_from(topic, start, limit) == expected_rows_from(expected, start, limit)


def test_more_records_than_a_few_are_left_to_a_scan(tmp_path: Path) -> None:
    topic = appended(str(tmp_path / "t"), 200)
    (segment,) = topic.snapshot.partitions[0].segments
    assert len(lookup.first_records(topic.reader, segment, 3, 1000)) == lookup.MAX_RECORDS


def test_a_remote_log_is_scanned(memory_url: Any) -> None:
    topic = appended(memory_url.url, 20)
    (segment,) = topic.snapshot.partitions[0].segments
    assert lookup.first_records(topic.reader, segment, 3, 1) == []
    assert rows_from(topic, 3) == expected_rows_from(rows(topic.scan().to_table()), 3)


def test_a_record_of_an_active_segment_is_read_with_little_more_than_its_batch(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    with topic.writer() as writer:
        for number in range(8000):
            writer.append(b"%0100d" % number, partition=0)
        writer.flush()
        reopened = distlog.open(topic.url)

        old_bytes_read = reopened.storage.counters.bytes_read
        (record,) = reopened.records(0, start=10, limit=1)
        assert record.value == b"%0100d" % 10
        assert reopened.storage.counters.bytes_read - old_bytes_read < 640 << 10


#: One record of this number is read for each changed byte.
APART = 10 if FACTOR == 1 else 4


def right_or_refused(log: Log, offset: int) -> bool:
    """Return whether a record and its time are found; a wrong record or an error without position fails the test."""
    time = START + 10 * offset
    try:
        assert rows_from(log.topic, offset) == expected_rows_from(log.expected, offset)
        assert log.topic.offsets_for_times(time)[0] == (offset, time)
    except CorruptRecordError as error:
        refused = error.details
    else:
        return True
    assert refused["file"] == log.topic.reader.name(log.segments[0])
    assert refused["partition"] == 0
    assert 0 <= refused["position"] <= log.segments[0].log_bytes
    return False


@pytest.mark.long
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("codec", ["uncompressed", "lz4"])
def test_no_changed_byte_of_a_log_gives_a_wrong_record(tmp_path: Path, codec: str) -> None:
    log = log_of(appended(str(tmp_path / "t"), 20, **{"compression.type": codec}))
    data, refused = log.file().read_bytes(), 0
    base_offsets = {start + number for start in read_headers(data)["position"].tolist() for number in range(8)}
    for position, wrong in each_byte_changed(data):
        log.file().write_bytes(wrong)
        for offset in range(20) if position in base_offsets else range(position % APART, 20, APART):
            refused += not right_or_refused(log, offset)
    assert refused > len(data) // 3


@pytest.mark.usefixtures("either_way")
def test_no_changed_byte_of_an_active_segment_gives_a_wrong_record(tmp_path: Path) -> None:
    log = log_of(active(str(tmp_path / "t"), 12))
    data, refused = log.file().read_bytes(), 0
    for position, wrong in each_byte_changed(data):
        log.file().write_bytes(wrong)
        refused += not right_or_refused(log, position % 12)
    assert refused > len(data) // 10


@pytest.mark.usefixtures("by_index")
def test_no_changed_byte_of_an_index_gives_a_wrong_record(tmp_path: Path) -> None:
    log = log_of(appended(str(tmp_path / "t"), 60))
    for suffix in (".index", ".timeindex"):
        data = log.file(suffix=suffix).read_bytes()
        for position, wrong in each_byte_changed(data):
            log.file(suffix=suffix).write_bytes(wrong)
            for offset in (position % 60, 59):
                assert right_or_refused(log, offset)
        log.file(suffix=suffix).write_bytes(data)


STORIES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "the first two swapped": lambda batches: [batches[1], batches[0], *batches[2:]],
    "the last two swapped": lambda batches: [*batches[:-2], batches[-1], batches[-2]],
    "backwards": lambda batches: batches[::-1],
    "one twice": lambda batches: [*batches[:3], batches[2], *batches[3:]],
    "one in place of another": lambda batches: [*batches[:2], batches[3], *batches[3:]],
    "without the first": lambda batches: batches[1:],
    "without the third": lambda batches: [*batches[:2], *batches[3:]],
}


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("story", STORIES)
def test_misplaced_batches_give_no_wrong_record(tmp_path: Path, story: str) -> None:
    log = log_of(appended(str(tmp_path / "t"), 60))
    data = log.file().read_bytes()
    wrong = b"".join(STORIES[story](batches_of(data)))
    log.file().write_bytes(wrong + bytes(max(0, len(data) - len(wrong))))
    answers = [right_or_refused(log, offset) for offset in range(60)]
    assert not all(answers)


def test_an_active_segment_that_was_cut_or_replaced_gives_an_error(tmp_path: Path) -> None:
    log = log_of(active(str(tmp_path / "t"), 60))
    other = log_of(active(str(tmp_path / "u"), 61, 11)).file().read_bytes()
    data = log.file().read_bytes()
    for wrong in (data[:-1], data[: len(data) // 2], b"", other):
        log.file().write_bytes(wrong)
        with pytest.raises(distlog.DistlogError):
            rows_from(log.topic, 59)


def test_records_after_the_requested_ones_are_not_decoded(tmp_path: Path) -> None:
    right = with_indexes(batch([record(0), record(1, 0, b"key"), record(2)]), 0)
    topic = forget_fields(adopt(str(tmp_path / "t"), [(0, right)], 3))
    (segment,) = topic.snapshot.partitions[0].segments
    # as a faulty writer would leave it, with a right checksum
    records = record(0) + record(1, 0, b"key")
    section = records + bytes(segment.log_bytes - HEADER_SIZE - len(records))
    put(topic, segment, {".log": batch([], section=section, count=3, last_delta=2)})
    assert [entry.key for entry in topic.records(0, 0, 2)] == [None, b"key"]
    with pytest.raises(CorruptRecordError, match=r"file=.*\.log position=0 offset=0 record=2 partition=0"):
        list(topic.records(0, 0, 3))
