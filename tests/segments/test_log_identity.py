"""The log of another segment of the same shape is detected by every partial read."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from adopted import forget_fields
from compacting import CompactedTopic
from logs import batches_of, full_slice, read

import distlog
from distlog import CorruptRecordError, Topic
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.maintain.merge import merge
from distlog.core.maintain.verify import rebuild_segment
from distlog.core.segments import segment_parts, segment_reader
from distlog.core.segments.segment_parts import IdentifiedLogs

NOW = 1_700_000_000_000
ROWS = 60
MESSAGE = r"the log of another segment.*file=.*\.log position=\d+ partition=0"


def topic_at(url: str, segments: int = 2) -> Topic:
    """Return segments of one shape: equal batches at equal positions and offsets, with other values."""
    topic = distlog.create(url, config={"batch.bytes": 100, "index.interval.bytes": 300, "retention.ms": -1})
    for number in range(segments):
        topic.append([{"value": b"%d" % number * 40, "timestamp": NOW + row} for row in range(ROWS)])
    return topic


def segments_of(topic: Topic) -> list[SegmentInfo]:
    return list(topic.snapshot.partitions[0].segments)


def swapped(topic: Topic) -> Topic:
    first, second = (topic.reader.name(segment) for segment in segments_of(topic)[:2])
    topic.storage.put(second, topic.storage.read(first))
    return topic


@pytest.fixture
def by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "INDEX_WORTH_BYTES", 0)


WAYS: dict[str, Callable[[Topic], Any]] = {
    "scan": lambda topic: topic.scan().to_table(),
    "part": lambda topic: topic.scan(start=ROWS + 30, end=ROWS + 31).to_table(),
    "record": lambda topic: list(topic.records(0, ROWS + 30, 1)),
    "last record": lambda topic: list(topic.records(0, 2 * ROWS - 1, 1)),
    "fetch": lambda topic: topic.read(0, ROWS + 30, max_bytes=1),
    "chunks": lambda topic: read(topic, full_slice(segments_of(topic)[1]), step=1),
}


@pytest.mark.parametrize("where", ["local", "remote"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("indexed", [True, False])
def test_every_reader_refuses_the_log_of_another_segment(
    request: pytest.FixtureRequest, tmp_path: Any, way: str, where: str, indexed: bool
) -> None:
    if indexed:
        request.getfixturevalue("by_index")
    topic = swapped(topic_at(str(tmp_path / "t") if where == "local" else f"memory://{tmp_path.name}/t"))
    with pytest.raises(CorruptRecordError, match=MESSAGE):
        WAYS[way](topic)


def test_a_log_with_an_equal_start_is_refused_at_its_end(tmp_path: Any) -> None:
    topic = topic_at(str(tmp_path / "t"))
    first, second = (topic.reader.name(segment) for segment in segments_of(topic))
    theirs, ours = (batches_of(topic.storage.read(name)) for name in (first, second))
    topic.storage.put(second, b"".join([*ours[:-1], theirs[-1]]))
    with pytest.raises(CorruptRecordError, match=rf"another segment.*position={sum(map(len, ours[:-1]))} "):
        topic.scan().to_table()


@pytest.mark.usefixtures("by_index")
def test_the_start_of_a_log_is_checked_once(memory_url: Any) -> None:
    topic = topic_at(memory_url.url)
    storage = topic.storage

    def gets(offset: int) -> int:
        storage.counters.gets = 0
        assert topic.read(0, offset, max_bytes=1).next_offset > offset
        return storage.counters.gets

    gets(3)
    storage.counters.bytes_read = 0
    assert gets(ROWS + 40) == 2, "the index; the log, with where it begins, which is near"
    assert storage.counters.bytes_read > segments_of(topic)[1].log_bytes // 2
    storage.counters.bytes_read = 0
    assert [gets(ROWS + 50), gets(ROWS + 30)] == [1, 1]
    assert gets(40) == 1, "the log was read from its beginning before"


def test_no_more_than_some_logs_are_remembered_and_none_by_a_copy(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_parts, "REMEMBERED", 2)
    logs, segments = IdentifiedLogs(), segments_of(topic_at(str(tmp_path / "t"), 3))
    for segment in segments:
        logs.add(segment)
    assert [logs.is_identified(segment) for segment in segments] == [False, False, True]
    assert not any(pickle.loads(pickle.dumps(logs)).is_identified(segment) for segment in segments)


@pytest.mark.parametrize("is_known", [True, False])
def test_merging_refuses_the_log_of_another_segment(tmp_path: Any, is_known: bool) -> None:
    topic = topic_at(str(tmp_path / "t"))
    if not is_known:
        forget_fields(topic)
    swapped(topic)
    version = topic.version
    report, _ = merge(dataclasses.replace(topic.handle, clock=lambda: NOW), topic.snapshot)
    (failed,) = report.failed
    assert (failed.partition, report.ok) == (0, False)
    assert topic.refresh().version == version


@pytest.mark.parametrize("is_known", [True, False])
def test_compaction_refuses_the_log_of_another_segment(tmp_path: Any, is_known: bool) -> None:
    log = CompactedTopic(str(tmp_path / "log"))
    for number in range(3):
        log.append(*((b"%d" % row, b"%d" % number) for row in range(5)))
    topic = log.topic()
    if not is_known:
        forget_fields(topic)
    swapped(topic)
    old_segments = log.segments()
    report = log.compact()
    assert report is not None
    assert topic.reader.name(old_segments[1]) in (report.error or "")
    assert log.segments() == old_segments


@pytest.mark.parametrize("is_known", [True, False])
def test_an_index_rebuild_refuses_the_log_of_another_segment(tmp_path: Any, is_known: bool) -> None:
    topic = topic_at(str(tmp_path / "t"))
    if not is_known:
        forget_fields(topic)
    segment = segments_of(swapped(topic))[1]
    topic.storage.delete([topic.reader.name(segment, ".index")])
    rebuilt = rebuild_segment(topic.reader, segment, topic.config)
    assert rebuilt.error
    assert rebuilt.written == rebuilt.fields == {}
