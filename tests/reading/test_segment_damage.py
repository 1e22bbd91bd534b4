"""Damage to a log is reported with file, position and partition; no wrong record is ever read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest
from adopted import adopt, adopt_golden, commit, describe, offsets, put, rows
from logs import START, Log, appended, batches_of, changed, each_byte_changed, full_slice, log_of, read

import distlog
from distlog import CorruptRecordError, SnapshotTooOldError, Topic
from distlog.core.commits.segment_table import UNKNOWN
from distlog.core.format.record_batch import read_headers
from distlog.core.read import fetch as fetch_module
from distlog.core.segments import segment_reader


def fetched(topic: Topic) -> None:
    offset = 0
    while batch := topic.read(0, offset, max_bytes=1 << 20, check_crcs=True):
        offset = batch.next_offset


WAYS: dict[str, Callable[[Topic], Any]] = {
    "scan": lambda topic: topic.scan().to_table(),
    "chunks": lambda topic: [read(topic, full_slice(segment)) for segment in topic.snapshot.partitions[0].segments],
    "fetch": fetched,
    "times": lambda topic: topic.offsets_for_times(START + 590),
}


def met(log: Log, read_all: Callable[[], list[dict[str, Any]]]) -> CorruptRecordError | None:
    """Return the error of a read, or None when it returns the right records."""
    try:
        assert read_all() == log.expected, "wrong records were read"
    except CorruptRecordError as error:
        return error
    return None


def errors(log: Log) -> list[CorruptRecordError]:
    """Return the errors of reading segment 0, whole and in steps; each must name its position and partition."""
    ways = (lambda: rows(log.topic.scan().to_table()), lambda: read(log.topic, full_slice(log.segments[0])))
    all_errors = [error for way in ways if (error := met(log, way))]
    for error in all_errors:
        assert error.details["file"] == log.topic.reader.name(log.segments[0])
        assert error.details["partition"] == 0
        assert 0 <= error.details["position"] <= log.segments[0].log_bytes
    return all_errors


def fields(data: bytes, *locations: range) -> set[int]:
    """Return the positions of the bytes at `locations` in each batch."""
    return {
        start + position
        for start in read_headers(data)["position"].tolist()
        for location in locations
        for position in location
    }


BASE_OFFSET, LEADER_EPOCH = range(8), range(12, 16)


@pytest.mark.long
@pytest.mark.parametrize("codec", ["uncompressed", "lz4"])
def test_every_changed_byte_except_the_leader_epoch_is_detected(tmp_path: Path, codec: str) -> None:
    log = log_of(appended(str(tmp_path / "t"), 20, **{"compression.type": codec}))
    data = log.file().read_bytes()
    assert len(batches_of(data)) >= 3
    unseen = set()
    for position, wrong in each_byte_changed(data):
        log.file().write_bytes(wrong)
        all_errors = errors(log)
        assert len(all_errors) in (0, 2)
        if not all_errors:
            unseen.add(position)
    assert unseen == fields(data, LEADER_EPOCH)


def test_an_error_of_a_moved_segment_has_the_readers_offset(tmp_path: Path) -> None:
    log = log_of(appended(str(tmp_path / "t"), 1000, 20))
    data = log.file(1).read_bytes()
    batch = read_headers(data)[1]
    position, offset = int(batch["position"]), 1000 + int(batch["base_offset"])
    for number in (17, 100):
        log.file(1).write_bytes(changed(data, position + number, 1))
        with pytest.raises(CorruptRecordError, match=f"position={position} offset={offset}"):
            log.topic.scan().to_table()


@pytest.mark.long
@pytest.mark.parametrize("name", ["logs.v1-append-none-0", "logs.v1-lz4-0", "logs.v0-gzip-0", "logs.mixed-0"])
def test_changed_bytes_of_formats_0_and_1_are_detected(tmp_path: Path, name: str) -> None:
    partition = golden.partitions()[name]
    log = log_of(adopt_golden(str(tmp_path / "t"), partition))
    data = log.file().read_bytes()
    headers = read_headers(data)
    for position in range(0, len(data), 41):
        log.file().write_bytes(changed(data, position, 0x10))
        if not errors(log):
            batch = headers[np.searchsorted(headers["position"], position, side="right") - 1]
            # a compressed message of format 0 has the offsets inside, so its own offset is unused
            free = {0: BASE_OFFSET, 1: range(0), 2: LEADER_EPOCH}[int(batch["magic"])]
            assert position - batch["position"] in free


def test_changed_bytes_of_a_log_with_gaps_are_detected(tmp_path: Path) -> None:
    data = golden.partitions()["cleaned.compact-lz4-0"].logs[1].read_bytes()
    log = log_of(adopt(str(tmp_path / "t"), [(204, {".log": data})], 414))
    values = [row["value"] for row in log.expected]
    for position in range(0, len(data), 5):
        log.file().write_bytes(changed(data, position, 0x40))
        try:
            table = log.topic.scan().to_table()
        except CorruptRecordError:
            continue
        assert position in fields(data, BASE_OFFSET, LEADER_EPOCH)
        assert table["value"].to_pylist() == values


def test_a_fetch_reports_a_wrong_offset_at_the_end_of_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(adopt_golden(str(tmp_path / "t"), golden.partitions()["cleaned.compact-none-0"]))
    number = next(row for row, info in enumerate(log.segments) if info.log_bytes == 4577)
    batch = next(header for header in read_headers(log.file(number).read_bytes()) if header["position"] == 2327)
    assert batch["base_offset"] + batch["last_offset_delta"] < batch["base_offset"] ^ 8
    log.file(number).write_bytes(changed(log.file(number).read_bytes(), 2327 + 7, 8))
    monkeypatch.setattr(fetch_module, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(segment_reader, "INDEX_WORTH_BYTES", 0)
    with pytest.raises(CorruptRecordError, match="is not at the offsets"):
        fetched(log.topic)


@pytest.mark.parametrize("codec", ["uncompressed", "snappy"])
def test_every_truncation_is_detected(tmp_path: Path, codec: str) -> None:
    log = log_of(appended(str(tmp_path / "t"), 20, **{"compression.type": codec}))
    data = log.file().read_bytes()
    for size in range(len(data)):
        log.file().write_bytes(data[:size])
        assert [error.details["position"] <= size for error in errors(log)] == [True, True]


@pytest.mark.parametrize("way", WAYS)
def test_every_reader_detects_a_truncated_file(dense: Log, way: str) -> None:
    data = dense.file().read_bytes()
    for size in (0, 1, 100, len(data) - 1):
        dense.file().write_bytes(data[:size])
        with pytest.raises(CorruptRecordError, match=rf"position={size} partition=0"):
            WAYS[way](dense.topic)


def test_bytes_past_the_end_of_a_segment_are_ignored(dense: Log) -> None:
    dense.file().write_bytes(dense.file().read_bytes() + bytes(100))
    assert errors(dense) == []


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(lambda batches: [batches[1], batches[0], *batches[2:]], id="the first two swapped"),
        pytest.param(lambda batches: [*batches[:-2], batches[-1], batches[-2]], id="the last two swapped"),
        pytest.param(lambda batches: batches[::-1], id="backwards"),
        pytest.param(lambda batches: [*batches[:3], batches[2], *batches[3:]], id="one twice"),
        pytest.param(lambda batches: [*batches[:2], batches[3], *batches[3:]], id="one in place of another"),
        pytest.param(lambda batches: batches[1:], id="without the first"),
        pytest.param(lambda batches: [*batches[:2], *batches[3:]], id="without the third"),
        pytest.param(lambda batches: batches[:-1], id="without the last"),
        pytest.param(lambda batches: [], id="without any"),
    ],
)
@pytest.mark.parametrize("known_size", [True, False], ids=["the size agrees", "the size differs"])
@pytest.mark.parametrize("step", [1, 700, 4 << 20])
def test_misplaced_batches_are_detected(
    dense: Log, story: Callable[[list[bytes]], list[bytes]], known_size: bool, step: int
) -> None:
    (segment,) = dense.segments
    wrong = b"".join(story(batches_of(dense.file().read_bytes())))
    dense.file().write_bytes(wrong)
    if known_size and wrong:
        segment = replace(segment, log_bytes=len(wrong))
    with pytest.raises(CorruptRecordError, match=r"file=t-0/v.*\.log position=\d+ .*partition=0"):
        read(dense.topic, full_slice(segment), step)


@pytest.mark.parametrize("step", [1, 4 << 20])
def test_a_batch_past_the_last_offset_is_detected(dense: Log, step: int) -> None:
    data = dense.file().read_bytes()
    data += batches_of(data)[-1]
    dense.file().write_bytes(data)
    with pytest.raises(CorruptRecordError, match="not at the offsets"):
        read(dense.topic, full_slice(replace(dense.segments[0], log_bytes=len(data))), step)


@pytest.mark.parametrize("step", [1, 4 << 20])
def test_invalid_bytes_at_the_end_of_a_segment_are_detected(dense: Log, step: int) -> None:
    (segment,) = dense.segments
    data = dense.file().read_bytes()
    for size in range(1, 20):
        dense.file().write_bytes(data + bytes(size))
        longer = replace(segment, log_bytes=len(data) + size, next_offset=100)
        with pytest.raises(CorruptRecordError, match=f"position={len(data)} partition=0"):
            read(dense.topic, full_slice(longer), step)


@pytest.mark.parametrize("step", [1, 4 << 20])
@pytest.mark.parametrize("order", [(1, 0, 2), (0, 0, 1, 2), (2, 1, 0)])
def test_batches_of_a_log_with_gaps_must_ascend(tmp_path: Path, step: int, order: tuple[int, ...]) -> None:
    batches = batches_of(golden.partitions()["cleaned.compact-lz4-0"].logs[1].read_bytes())
    last = len(batches) - 1
    files = {".log": b"".join(batches[min(number, last)] for number in order)}
    sizes = {"log_bytes": len(files[".log"]), "first_batch_crc": UNKNOWN, "last_batch_crc": UNKNOWN}
    segment = replace(describe({".log": b"".join(batches)}, 204, 414), **sizes)
    topic = distlog.create(str(tmp_path / "t"))
    put(topic, segment, files)
    with pytest.raises(CorruptRecordError, match="not at the offsets"):
        read(topic, full_slice(segment), step)


def test_the_file_of_another_segment_is_detected(tmp_path: Path) -> None:
    log = log_of(appended(str(tmp_path / "t"), 20, 21, 20))
    other = log.file(1).read_bytes()
    # one with an equal number of records differs only in the checksum of the file, which `verify` compares
    for number, start in ((0, 0), (2, 41)):
        log.file(number).write_bytes(other)
        with pytest.raises(CorruptRecordError):
            log.topic.scan(start=start, end=start + 20).to_table()


def test_a_file_of_another_adopted_partition_is_detected(tmp_path: Path) -> None:
    log = log_of(adopt_golden(str(tmp_path / "t"), golden.partitions()["first.codec-none-0"]))
    log.file(0).write_bytes(log.file(2).read_bytes())
    with pytest.raises(CorruptRecordError):
        log.topic.scan(end=10).to_table()


@pytest.mark.parametrize(
    "lie",
    [
        {"log_bytes": 1},
        {"log_bytes": -1},
        {"log_bytes": 10**12},
        {"next_offset": 1, "record_count": 1},
        {"next_offset": -1, "record_count": -1},
        {"stored_base_offset": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("way", ["scan", "chunks", "fetch"])
def test_wrong_metadata_is_detected(dense: Log, lie: dict[str, int], way: str) -> None:
    (segment,) = dense.segments
    fields = {name: getattr(segment, name) + change for name, change in lie.items()}
    wrong = replace(segment, offset_of_max_timestamp=-1, **fields)
    topic = distlog.create(str(Path(dense.topic.url).parent / "liar"))
    put(topic, wrong, {suffix: dense.file(suffix=suffix).read_bytes() for suffix in (".log", ".index", ".timeindex")})
    commit(topic, [wrong])
    with pytest.raises(CorruptRecordError, match="partition=0"):
        WAYS[way](topic)


@pytest.mark.parametrize("way", WAYS)
def test_a_missing_file_is_an_outdated_snapshot(dense: Log, way: str) -> None:
    dense.file().unlink()
    with pytest.raises(SnapshotTooOldError, match=r"refresh the topic .*file=t-0/v.*\.log partition=0"):
        WAYS[way](dense.topic)


def test_an_expected_missing_file_is_not_found() -> None:
    assert issubclass(SnapshotTooOldError, FileNotFoundError)


@pytest.mark.parametrize("way", WAYS)
def test_a_short_or_missing_remote_file_is_reported(memory_url: Any, way: str) -> None:
    topic = appended(memory_url.url, 60)
    (segment,) = topic.snapshot.partitions[0].segments
    name = topic.reader.name(segment)
    topic.storage.put(name, topic.storage.read(name)[:500])
    with pytest.raises(CorruptRecordError, match="position=500 partition=0"):
        WAYS[way](topic)
    topic.storage.delete([name])
    with pytest.raises(SnapshotTooOldError):
        WAYS[way](topic)


def test_only_one_of_many_small_segments_is_named(tmp_path: Path) -> None:
    log = log_of(appended(str(tmp_path / "t"), *[5] * 30))
    data = log.file(17).read_bytes()
    for wrong in (data[:-1], changed(data, 10, 1), changed(data, 7, 1), changed(data, 70, 1), data + data):
        log.file(17).write_bytes(wrong)
        if len(wrong) > len(data):
            assert offsets(log.topic.scan().to_table()) == list(range(150))
            continue
        with pytest.raises(CorruptRecordError) as caught:
            log.topic.scan().to_table()
        assert caught.value.details["file"] == log.topic.reader.name(log.segments[17])
        assert caught.value.details.get("offset", 85) >= 85
    log.file(17).unlink()
    with pytest.raises(SnapshotTooOldError, match=log.segments[17].stem):
        log.topic.scan().to_table()
