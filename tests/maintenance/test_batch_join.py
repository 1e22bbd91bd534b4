"""Merging joins small batches: the same records at the same offsets, in batches of nearly `batch.bytes`."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from adopted import adopt, rows, with_indexes
from hypothesis import given
from hypothesis import strategies as st
from logs import batches_of
from raw_batches import batch, entry, record
from searches import examples
from topics import NOW

import distlog
from distlog.core.format.record_batch import APPEND_TIME, CONTROL, DELETE_HORIZON, HEADER_SIZE, read_headers
from distlog.core.maintain import survivors
from distlog.core.topic import Topic

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def logs(topic: Topic) -> list[bytes]:
    segments = topic.snapshot.partitions[0].segments
    return [bytes(topic.storage.read(topic.reader.name(segment))) for segment in segments]


def records(count: int) -> list[dict[str, Any]]:
    return [
        {
            "key": None if number % 7 == 0 else b"k%d" % number,
            "value": None if number % 5 == 0 else b"v%d" % number * (number % 9),
            "timestamp": NOW + 37 * number - 1000 * (number % 3),
            "headers": [("name", b"%d" % number), ("none", None)] if number % 4 == 0 else [],
        }
        for number in range(count)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_many_small_appends_merge_to_the_bytes_of_one_append(tmp_path: Path, codec: str) -> None:
    config = {"compression.type": "uncompressed" if codec == "none" else codec, "retention.ms": -1}
    rows_of_all = records(300)
    single, merged = (distlog.create(f"{tmp_path}/{name}", config=config) for name in ("whole", "merged"))
    single.append(rows_of_all)
    for start in range(0, 300, 10):
        merged.append(rows_of_all[start : start + 10])
    old_rows = rows(merged.scan().to_table())
    assert merged.compact().ok
    assert logs(merged) == logs(single)
    assert rows(merged.scan().to_table()) == old_rows
    assert merged.offsets_for_times(distlog.MAX_TIMESTAMP) == single.offsets_for_times(distlog.MAX_TIMESTAMP)
    assert merged.verify().ok


@pytest.mark.long
def test_joined_batches_are_nearly_full_and_full_ones_are_not_written_again(tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/log", config={"batch.bytes": 10_000, "retention.ms": -1})
    for number in range(100):
        topic.append([{"value": b"%d" % number * 200, "timestamp": NOW + number}] * 3)
    topic.compact()
    (log,) = logs(topic)
    sizes = [len(data) - HEADER_SIZE for data in batches_of(log)]
    assert all(5000 < size <= 10_000 for size in sizes[:-1])
    old_headers = [(row["crc"], row["record_count"]) for row in read_headers(log)]
    for number in range(100):
        topic.append([{"value": b"%d" % number * 200, "timestamp": NOW + number}] * 3)
    topic.compact()
    after = [(row["crc"], row["record_count"]) for row in read_headers(logs(topic)[0])]
    assert after[: len(old_headers) - 1] == old_headers[:-1]
    assert topic.verify().ok


RECORD = record(0, 0, b"k", b"v")
PLAIN = batch([RECORD])
#: Batches that are never joined, with a plain one or another of their kind.
APART = {
    "an idempotent producer": (batch([RECORD], producer=(7, 0, 0)), batch([RECORD], producer=(7, 0, 1))),
    "a control batch": (batch([RECORD], attributes=CONTROL), batch([RECORD], attributes=CONTROL)),
    "LogAppendTime": (batch([RECORD], attributes=APPEND_TIME), batch([RECORD], attributes=APPEND_TIME)),
    "a delete horizon": (batch([RECORD], attributes=DELETE_HORIZON), batch([RECORD], attributes=DELETE_HORIZON)),
    "another leader epoch": (batch([RECORD], leader_epoch=1), batch([RECORD], leader_epoch=2)),
    "an emptied batch": (batch([], last_delta=0), batch([], last_delta=0)),
    "a batch with a gap": (batch([RECORD], last_delta=1), batch([RECORD], last_delta=1)),
    "an unknown attribute": (batch([RECORD], attributes=1 << 9), batch([RECORD], attributes=1 << 9)),
    "an old format": (entry(1, 0, b"k", b"v"), entry(1, 0, b"k", b"v")),
}


def at_offsets(batches: tuple[bytes, ...]) -> list[tuple[int, bytes]]:
    """Return each batch with its base offset, one after another."""
    positions, offset = [], 0
    for data in batches:
        (row,) = read_headers(data)
        positions.append((offset, offset.to_bytes(8, "big") + data[8:]))
        offset += int(row["last_offset_delta"]) + 1
    return positions


@pytest.mark.parametrize("kind", APART)
def test_batches_of_other_kinds_stay_unchanged(tmp_path: Path, kind: str) -> None:
    first, second = APART[kind]
    placed = at_offsets((PLAIN, first, second, PLAIN))
    segments = [(offset, with_indexes(data, offset)) for offset, data in placed]
    topic = adopt(f"{tmp_path}/log", segments, placed[-1][0] + 1, config={"retention.ms": -1})
    old_rows = rows(topic.scan().to_table())
    assert topic.compact().ok
    assert b"".join(logs(topic)) == b"".join(data for _, data in placed)
    assert rows(topic.scan().to_table()) == old_rows


def test_plain_batches_between_others_are_joined(tmp_path: Path) -> None:
    producer = batch([RECORD], producer=(7, 0, 0))
    placed = at_offsets((PLAIN, PLAIN, producer, PLAIN, PLAIN, PLAIN))
    segments = [(offset, with_indexes(data, offset)) for offset, data in placed]
    topic = adopt(f"{tmp_path}/log", segments, 6, config={"retention.ms": -1})
    old_rows = rows(topic.scan().to_table())
    assert topic.compact().ok
    headers = read_headers(logs(topic)[0])
    assert headers["record_count"].tolist() == [2, 1, 3]
    assert headers["producer_id"].tolist() == [-1, 7, -1]
    assert rows(topic.scan().to_table()) == old_rows
    assert topic.verify().ok


def test_batches_with_distant_times_are_not_joined(tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/log", config={"segment.ms": 2**62, "retention.ms": -1})
    for time in (0, NOW):
        topic.append([{"value": b"", "timestamp": time}] * 100)
    size = sum(len(log) for log in logs(topic))
    assert topic.compact().ok
    assert [len(log) for log in logs(topic)] == [size]


def test_append_times_stay_the_times_of_their_commits(tmp_path: Path) -> None:
    config = {"message.timestamp.type": "LogAppendTime", "retention.ms": -1}
    topic = distlog.create(f"{tmp_path}/log", config=config)
    for number in range(20):
        topic.append([{"value": b"%d" % number}] * 2)
    old_rows = rows(topic.scan().to_table())
    assert len({row["timestamp"] for row in old_rows}) == 20
    assert topic.compact().ok
    assert topic.segments().num_rows == 1
    assert rows(topic.scan().to_table()) == old_rows
    assert topic.verify().ok


def test_compressed_batches_are_opened_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivors, "OPENED_BYTES", 1000)
    topic = distlog.create(f"{tmp_path}/log", config={"compression.type": "zstd", "retention.ms": -1})
    rows_of_all = records(300)
    for start in range(0, 300, 10):
        topic.append(rows_of_all[start : start + 10])
    old_rows = rows(topic.scan().to_table())
    assert topic.compact().ok
    (log,) = logs(topic)
    assert 1 < len(read_headers(log)) < 15
    assert rows(topic.scan().to_table()) == old_rows
    assert topic.verify().ok


@st.composite
def appends(draw: st.DrawFn) -> list[tuple[list[dict[str, Any]], str]]:
    """Draw appends with times in any order, and their codecs."""
    times = st.one_of(st.just(-1), st.integers(0, NOW), st.integers(NOW, NOW + 1000))
    texts = st.one_of(st.none(), st.binary(max_size=40))
    headers = st.lists(st.tuples(st.text(max_size=3), texts), max_size=2)
    row = st.fixed_dictionaries({"timestamp": times, "key": texts, "value": texts, "headers": headers})
    return draw(st.lists(st.tuples(st.lists(row, min_size=1, max_size=12), st.sampled_from(CODECS)), max_size=8))


@pytest.mark.long
@examples(25)
@given(appends(), st.integers(1, 600), st.integers(200, 2000), st.integers(2, 5))
def test_merged_records_are_equal_and_batches_keep_their_limits(
    batches: list[tuple[list[dict[str, Any]], str]], batch_bytes: int, largest: int, every: int
) -> None:
    config = {"batch.bytes": batch_bytes, "max.message.bytes": largest, "segment.ms": 2**62, "retention.ms": -1}
    topic = distlog.create(f"memory://join/{uuid.uuid4().hex}/log", config=config)
    for number, (row_list, codec) in enumerate(batches):
        topic.append(row_list, compression=codec)
        if number % every == 0:
            assert topic.compact().ok
    old_rows, sizes = rows(topic.scan().to_table()), [len(log) for log in logs(topic)]
    assert topic.compact().ok
    assert rows(topic.scan().to_table()) == old_rows
    assert topic.verify().ok
    headers = [read_headers(log) for log in logs(topic)]
    assert sum(int(headers_read["size"].sum()) for headers_read in headers) <= sum(sizes)
    assert all(int(headers_read["size"].max()) <= largest for headers_read in headers)
