"""Rebuilds and the checksums of indexes that commits tell."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from adopted import adopt_golden, forget_facts
from rebuilding import (
    GOLDEN,
    SUFFIXES,
    contents,
    damage,
    name_of,
    rebuilt,
    segments_of,
    topic_at,
)

from distlog import Topic
from distlog.core.commits.actions import Add, Remove
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.reading import pipeline, segment_reader
from distlog.core.segments.segment_parts import INDEX_FIELDS, index_facts


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return topic_at(tmp_path)


# Checksums


def checksums(topic: Topic) -> list[tuple[int, int]]:
    return [(segment.offset_index_crc32c, segment.time_index_crc32c) for segment in segments_of(topic)]


@pytest.fixture
def by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of a part use the index of a small segment too."""
    monkeypatch.setattr(segment_reader, "INDEX_WORTH_BYTES", 0)
    monkeypatch.setattr(pipeline, "INDEX_WORTH_BYTES", 0)


def part_of(topic: Topic, segment: SegmentInfo) -> list[int]:
    """The segment's last offset alone, as a scan reads it."""
    return topic.scan(start=segment.next_offset - 1, end=segment.next_offset).to_table()["offset"].to_pylist()


@pytest.mark.usefixtures("by_index")
def test_the_checksums_of_rebuilt_indexes_are_told(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    topic.alter_config({"index.interval.bytes": 0})
    rebuilt(topic, force=True)
    for segment in segments_of(topic):
        files = {suffix: topic.storage.read(topic.reader.name(segment, suffix)) for suffix in SUFFIXES}
        facts = index_facts(files)
        assert facts == {name: getattr(segment, name) for name in facts}
        assert part_of(topic, segment) == [segment.next_offset - 1]
    assert caplog.text == ""


@pytest.mark.usefixtures("by_index")
def test_between_the_files_and_the_commit_readers_scan(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    """A rebuild whose indexes are as large as before, but other ones."""
    before = contents(topic)
    name = name_of(topic, ".index")
    other = bytearray(before[name])
    other[-1] += 1
    topic.storage.put(name, other)
    segment = segments_of(topic)[0]
    assert part_of(topic, segment) == [segment.next_offset - 1]
    assert "rebuild the indexes to be fast again" in caplog.text
    assert topic.scan(start=30, end=31).to_table().num_rows == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_index_that_fits_but_is_not_the_one_that_was_committed_is_made_anew(topic: Topic, suffix: str) -> None:
    """A crash between the files and the commit may leave indexes of another interval, and of the same size."""
    segment = segments_of(topic)[0]
    field = INDEX_FIELDS[suffix].checksum
    known = getattr(segment, field)
    facts: dict[str, Any] = {field: known ^ 1}
    wrong = dataclasses.replace(segment, **facts)
    _, after = topic.log.commit(topic.snapshot, "rebuild", lambda _: [Remove(0, segment.stem), Add(wrong)])
    topic.advance(after)
    assert topic.verify().ok is False
    report = rebuilt(topic)
    assert report.segments[0].found[suffix] == "corrupted"
    assert report.ok
    assert getattr(segments_of(topic)[0], field) == known
    assert topic.verify().ok


@pytest.mark.parametrize("force", [True, False])
def test_a_missing_index_that_should_be_empty_now_is_forgotten(topic: Topic, force: bool) -> None:
    topic.alter_config({"index.interval.bytes": 100_000})
    damage(topic, ".index", "missing")
    report = rebuilt(topic, force=force)
    assert report.ok
    assert segments_of(topic)[0].offset_index_bytes == 0
    assert topic.verify().ok
    assert not rebuilt(topic, force=force).rebuilt


def test_a_dry_run_tells_nothing_either(topic: Topic) -> None:
    forget_facts(topic)
    version = topic.version
    rebuilt(topic, dry_run=True)
    assert topic.refresh().version == version


def test_a_transaction_index_of_another_checksum_is_reported(tmp_path: Path) -> None:
    topic = adopt_golden(str(tmp_path / "log"), GOLDEN["first.txn-0"])
    name = name_of(topic, ".txnindex")
    data = bytearray(topic.storage.read(name))
    # the first offset of a transaction, which no check of the file alone can tell
    data[17] ^= 1
    topic.storage.put(name, data)
    assert not topic.verify().ok
    report = rebuilt(topic)
    assert report.segments[0].found[".txnindex"] == "corrupted"
    assert report.ok
    assert topic.verify().ok
