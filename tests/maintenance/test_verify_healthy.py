"""Verify finds nothing wrong with a healthy topic, whatever was done to it, but finds headers with wrong times."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from compacting import NOW, CompactedTopic
from hypothesis import given
from hypothesis import strategies as st
from producers import Producers
from raw_batches import batch, record
from searches import examples

from distlog.core.batches import compression
from distlog.core.batches.record_batch import APPEND_TIME, CONTROL, TRANSACTIONAL

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def log() -> CompactedTopic:
    return topic()


def topic(**config: Any) -> CompactedTopic:
    return CompactedTopic(f"memory://{uuid.uuid4().hex}/log", **config)


def found(log: CompactedTopic) -> list[tuple[str, int | None, int | None]]:
    """What is wrong: the word, the position, the offset."""
    return [(each.word, each.position, each.offset) for each in log.topic().verify().anomalies]


def packed(codec: int, rows: list[bytes], **options: Any) -> bytes:
    """A batch of records at NOW that a codec compressed."""
    section = bytes(compression.compress(codec, b"".join(rows)))
    times = {"base_timestamp": NOW, "max_timestamp": NOW}
    facts = {"section": section, "attributes": codec, **times, **options}
    return batch(rows, **facts)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("wrong_by", [-1, 1])
def test_a_header_with_a_time_that_no_record_has_is_found(log: CompactedTopic, codec: int, wrong_by: int) -> None:
    rows = [record(0, 0, b"a"), record(1, 70, b"b"), record(2, 5, b"c")]
    first = packed(codec, rows, max_timestamp=NOW + 70)
    log.add(first + packed(codec, rows, base_offset=3, max_timestamp=NOW + 70 + wrong_by))
    assert [one for one in found(log) if one[0] == "timestamp_mismatch"] == [("timestamp_mismatch", len(first), 3)]
    (message,) = [str(each) for each in log.topic().verify().anomalies if each.word == "timestamp_mismatch"]
    assert f"{NOW + 70 + wrong_by} in the header of a batch, {NOW + 70} in its records" in message


def test_a_marker_with_a_time_that_its_record_has_not_is_found(log: CompactedTopic) -> None:
    marker = batch([record(0, 0, b"")], base_offset=1, attributes=CONTROL | TRANSACTIONAL, max_timestamp=5)
    log.add(batch([record(0, 0, b"a")]) + marker)
    assert "timestamp_mismatch" in [word for word, _, _ in found(log)]


def test_what_is_right_before_a_damaged_batch_is_compared_all_the_same(log: CompactedTopic) -> None:
    wrong = batch([record(0, 0, b"a")], max_timestamp=1001)
    log.add(wrong + batch([record(0, 0, b"b")], base_offset=1))
    (segment,) = log.segments()
    name = f"{log.topic().name}-0/{segment.stem}.log"
    log.storage.put(name, wrong + batch([record(7, 0, b"b")], base_offset=1))
    assert [word for word, _, _ in found(log)] == ["non_monotonical_delta", "timestamp_mismatch"]


def test_by_append_time_no_record_needs_to_have_the_time_of_its_header(log: CompactedTopic) -> None:
    log.add(batch([record(0, -70, b"a")], base_timestamp=NOW, max_timestamp=NOW + 5, attributes=APPEND_TIME))
    assert found(log) == []


@pytest.mark.parametrize("codec", range(1, 5))
def test_an_emptied_batch_has_no_codec(log: CompactedTopic, codec: int) -> None:
    log.add(packed(codec, [record(0, 0, b"a")], producer=(7, 0, 0)))
    log.add(packed(codec, [record(0, 0, b"a")], base_offset=1))
    log.compact()
    assert log.batches()["record_count"].tolist() == [0, 1]
    assert found(log) == []


def test_a_marker_may_be_the_first_to_have_the_largest_timestamp(log: CompactedTopic) -> None:
    producers = Producers(log)
    log.clock.now -= 5
    producers.send(1, 1)
    log.clock.now += 5
    producers.commit(1).plain(2).plain(1).roll()
    log.compact()
    assert log.segments()[0].offset_of_max_timestamp == 1
    assert found(log) == []


#: So that a few operations meet rolls, groups of several segments, several index entries, and horizons that pass.
SETTINGS = {
    "internal_segment_bytes": 1200,
    "batch_bytes": 200,
    "index_interval_bytes": 150,
    "delete_retention_ms": 1000,
    "retention_ms": 50_000,
    "segment_ms": 20_000,
}
MOVES = {
    "cleanup.policy": st.sampled_from(["compact", "delete", "compact,delete"]),
    "compression.type": st.sampled_from(CODECS),
    "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
    "min.compaction.lag.ms": st.sampled_from([0, 2000]),
}
keys = st.lists(st.integers(0, 3), min_size=1, max_size=4)
change = st.sampled_from(sorted(MOVES)).flatmap(lambda name: st.tuples(st.just("config"), st.just(name), MOVES[name]))
operation = st.one_of(
    st.tuples(st.just("append"), keys, st.lists(st.integers(-3000, 3000) | st.just(None), min_size=1, max_size=3)),
    st.tuples(st.just("send"), st.lists(st.tuples(st.integers(1, 3), keys, st.sampled_from("dca")), max_size=5)),
    st.tuples(st.just("idempotent"), st.integers(4, 5), keys, st.integers(0, 4)),
    st.tuples(st.just("delete_records"), st.integers(0, 30)),
    st.tuples(st.just("rebuild"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([1, 999, 30_000, 200_000_000])),
    st.tuples(st.just("compact")),
    st.tuples(st.just("compact")),
    st.tuples(st.just("retention")),
    change,
)


class Life:
    """What may happen to a topic of one partition, one operation after the other."""

    def __init__(self) -> None:
        self.log = topic(**SETTINGS)
        self._sequence = 0

    def append(self, keys: list[int], shifts: list[int | None]) -> None:
        """Records of some keys, of which every third is a tombstone; without a time, or near now."""
        rows = [
            {
                "key": b"%d" % key,
                "value": None if number % 3 == 2 else b"value %d" % number * key,
                "timestamp": -1 if shift is None else self.log.clock.now + shift,
            }
            for number, key in enumerate(keys)
            for shift in [shifts[number % len(shifts)]]
        ]
        self.log.topic().append(rows)

    def send(self, sent: list[tuple[int, list[int], str]]) -> None:
        """Transactions of which all end in their segment: after some data, committed, or aborted."""
        producers = Producers(self.log, offset=self._end())
        opened = set[int]()
        for producer, keys, kind in sent:
            producers.send(producer, *keys)
            opened.add(producer)
            self.log.clock.now += 1
            if kind != "d":
                opened.remove(producer)
                producers.end(producer, commit=kind == "c")
        for producer in opened:
            producers.end(producer, commit=producer > 1)
        if sent:
            producers.roll()

    def idempotent(self, producer: int, keys: list[int], codec: int) -> None:
        """A batch of a producer, compressed."""
        rows = [record(delta, -delta, b"%d" % key) for delta, key in enumerate(keys)]
        times = {"base_timestamp": self.log.clock.now, "max_timestamp": self.log.clock.now}
        facts = {"base_offset": self._end(), "producer": (producer, 0, self._sequence), **times}
        self._sequence += len(keys)
        self.log.add(packed(codec, rows, **facts))

    def delete_records(self, count: int) -> None:
        """Move the log start, where that may be."""
        topic = self.log.topic()
        if "delete" in topic.config.cleanup_policy:
            topic.delete_records({0: min(topic.start_offsets()[0] + count, self._end())})

    def rebuild(self, force: bool) -> None:
        """Make the indexes anew."""
        self.log.topic().rebuild_indexes(force=force)

    def wait(self, milliseconds: int) -> None:
        """Let time pass."""
        self.log.clock.now += milliseconds

    def compact(self) -> None:
        """Compact, or merge where nothing is to be compacted."""
        self.log.topic().compact()

    def retention(self) -> None:
        """Delete what is old."""
        self.log.topic().retention()

    def config(self, name: str, value: object) -> None:
        """Change a setting."""
        self.log.topic().alter_config({name: value})

    def _end(self) -> int:
        return int(self.log.topic().end_offsets()[0])


@pytest.mark.long
@examples(15)
@given(st.lists(operation, min_size=3, max_size=25))
def test_whatever_is_done_to_a_topic_leaves_nothing_wrong(operations: list[tuple[Any, ...]]) -> None:
    life = Life()
    for name, *arguments in operations:
        getattr(life, name)(*arguments)
        report = life.log.topic().verify()
        assert report.ok, f"after {name}: {[str(each) for each in report.anomalies]}"
