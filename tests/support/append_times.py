"""Topics of LogAppendTime, and what their readers see."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from topics import NOW, Clock, stored, topic_on

import distlog
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.format.record_batch import check_crcs, read_headers
from distlog.core.format.record_decoder import decode
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

DAY = 86_400_000
LOG_APPEND = {"message.timestamp.type": "LogAppendTime"}


def topic_of(clock: Clock, url: str | None = None, **config: object) -> Topic:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    return written_wrong(
        topic_on(Storage(url or f"memory://{uuid.uuid4().hex}"), 1, {**LOG_APPEND, **settings}, clock)
    )


def written_wrong(topic: Topic) -> Topic:
    """The topic with a clock for its batches that is a day older than the commits' clock and runs backwards."""
    clock = topic.handle.clock
    topic.handle = dataclasses.replace(topic.handle, clock=lambda: 2 * NOW - DAY - clock())
    return topic


def rows(*values: str) -> list[dict[str, Any]]:
    return [{"key": value[:1], "value": value} for value in values]


def segment(topic: Topic, number: int = 0) -> SegmentInfo:
    return topic.snapshot.partitions[0].segments[number]


def records_seen(topic: Topic) -> list[tuple[int, int, bytes]]:
    """(offset, timestamp, value) of all records, by a scan."""
    return [
        (row["offset"], row["timestamp"], row["value"])
        for row in stored(topic.scan(columns=["offset", "timestamp", "value"]).to_table())
    ]


def fetched(topic: Topic) -> list[tuple[int, int, bytes]]:
    """(offset, timestamp, value) of all records, from the bytes that a broker would send; their checksums hold."""
    records: list[tuple[int, int, bytes]] = []
    offset = topic.start_offsets()[0]
    while offset < topic.end_offsets()[0]:
        part = topic.read(0, offset, max_bytes=200)
        data = bytes(part)
        batches = read_headers(data)
        check_crcs(data, batches)
        columns = decode(data, batches, columns=["offset", "timestamp", "value"], start_offset=offset)
        records += zip(
            columns["offset"].to_pylist(),
            columns["timestamp"].cast("int64").to_pylist(),
            columns["value"].to_pylist(),
            strict=True,
        )
        offset = part.next_offset
    return records


def check_readers(topic: Topic) -> list[tuple[int, int, bytes]]:
    """Return the records of a scan, and check that every reader gets them, with timestamps in order."""
    reads = records_seen(topic)
    times = [time for _, time, _ in reads]
    assert times == sorted(times)
    assert fetched(topic) == reads
    records = list(topic.records(0))
    assert [(record.offset, record.timestamp, record.value) for record in records] == reads
    for time in {*times, *(time - 1 for time in times), *(time + 1 for time in times)}:
        first = next(((offset, own_times) for offset, own_times, _ in reads if own_times >= time), None)
        assert topic.offsets_for_times(time)[0] == first
    largest = max(times, default=None)
    expected = next(((offset, own_times) for offset, own_times, _ in reads if own_times == largest), None)
    assert topic.offsets_for_times(distlog.MAX_TIMESTAMP)[0] == expected
    for row in topic.snapshot.partitions[0].segments:
        own_times = [time for offset, time, _ in reads if row.base_offset <= offset < row.next_offset]
        if own_times:
            assert (row.first_timestamp, row.max_timestamp) == (own_times[0], max(own_times))
            assert row.min_timestamp <= own_times[0]
    return reads
