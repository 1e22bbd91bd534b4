"""Verify reports nothing for a healthy topic after any operation, except headers with wrong times."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from compacting import NOW, CompactedTopic
from producers import Producers
from raw_batches import batch, record

from distlog.core.format import compression
from distlog.core.format.record_batch import APPEND_TIME, CONTROL, TRANSACTIONAL


@pytest.fixture
def log() -> CompactedTopic:
    return topic()


def topic(**config: Any) -> CompactedTopic:
    return CompactedTopic(f"memory://{uuid.uuid4().hex}/log", **config)


def anomalies_of(log: CompactedTopic) -> list[tuple[str, int | None, int | None]]:
    """Return the kind, the position and the offset of each anomaly."""
    return [(anomaly.word, anomaly.position, anomaly.offset) for anomaly in log.topic().verify().anomalies]


def packed(codec: int, rows: list[bytes], **options: Any) -> bytes:
    section = bytes(compression.compress(codec, b"".join(rows)))
    times = {"base_timestamp": NOW, "max_timestamp": NOW}
    fields = {"section": section, "attributes": codec, **times, **options}
    return batch(rows, **fields)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("wrong_by", [-1, 1])
def test_a_header_with_a_wrong_time_is_reported(log: CompactedTopic, codec: int, wrong_by: int) -> None:
    rows = [record(0, 0, b"a"), record(1, 70, b"b"), record(2, 5, b"c")]
    first = packed(codec, rows, max_timestamp=NOW + 70)
    log.add(first + packed(codec, rows, base_offset=3, max_timestamp=NOW + 70 + wrong_by))
    assert [anomaly for anomaly in anomalies_of(log) if anomaly[0] == "timestamp_mismatch"] == [
        ("timestamp_mismatch", len(first), 3)
    ]
    (message,) = [str(anomaly) for anomaly in log.topic().verify().anomalies if anomaly.word == "timestamp_mismatch"]
    assert f"{NOW + 70 + wrong_by} in the header of a batch, {NOW + 70} in its records" in message


def test_a_marker_with_a_wrong_time_is_reported(log: CompactedTopic) -> None:
    marker = batch([record(0, 0, b"")], base_offset=1, attributes=CONTROL | TRANSACTIONAL, max_timestamp=5)
    log.add(batch([record(0, 0, b"a")]) + marker)
    assert "timestamp_mismatch" in [word for word, _, _ in anomalies_of(log)]


def test_sound_batches_before_a_damaged_one_are_compared(log: CompactedTopic) -> None:
    wrong = batch([record(0, 0, b"a")], max_timestamp=1001)
    log.add(wrong + batch([record(0, 0, b"b")], base_offset=1))
    (segment,) = log.segments()
    name = f"{log.topic().name}-0/{segment.stem}.log"
    log.storage.put(name, wrong + batch([record(7, 0, b"b")], base_offset=1))
    assert [word for word, _, _ in anomalies_of(log)] == ["non_monotonical_delta", "timestamp_mismatch"]


def test_with_append_time_the_header_time_may_be_of_no_record(log: CompactedTopic) -> None:
    log.add(batch([record(0, -70, b"a")], base_timestamp=NOW, max_timestamp=NOW + 5, attributes=APPEND_TIME))
    assert anomalies_of(log) == []


@pytest.mark.parametrize("codec", range(1, 5))
def test_an_emptied_batch_has_no_codec(log: CompactedTopic, codec: int) -> None:
    log.add(packed(codec, [record(0, 0, b"a")], producer=(7, 0, 0)))
    log.add(packed(codec, [record(0, 0, b"a")], base_offset=1))
    log.compact()
    assert log.batches()["record_count"].tolist() == [0, 1]
    assert anomalies_of(log) == []


def test_a_marker_may_be_the_first_to_have_the_largest_timestamp(log: CompactedTopic) -> None:
    producers = Producers(log)
    log.clock.now -= 5
    producers.send(1, 1)
    log.clock.now += 5
    producers.commit(1).plain(2).plain(1).roll()
    log.compact()
    assert log.segments()[0].offset_of_max_timestamp == 1
    assert anomalies_of(log) == []
