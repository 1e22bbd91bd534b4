"""The writer commits its records by size, by time, on flush and on close, or raises an error."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from gated_writer import Send, replace_sends, small, somewhere
from topics import NOW, Clock, contents, topic_on
from waiting import until

from distlog.core.errors import InvalidConfigError, InvalidRecordError, StorageError
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.engine import Appends
from distlog.core.write.writer import Delivery, Writer

NEVER_MS = 10**7


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["in place", "commits"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return somewhere(request.param, tmp_path)


@pytest.fixture
def topic(storage: Storage, clock: Clock) -> Topic:
    return topic_on(storage, 2, clock=clock)


@pytest.fixture
def writer(topic: Topic) -> Iterator[Writer]:
    writer = topic.writer(linger_ms=NEVER_MS)
    yield writer
    try:
        writer.close()
    except (InvalidRecordError, StorageError):
        return


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException | None = None) -> list[int]:
    """Make the sends of all writers fail, and add each to the list."""
    failed: list[int] = []

    def send(destination: Any, records: pa.RecordBatch) -> Appends:
        failed.append(1)
        raise error or StorageError("cannot put: No space left on device")

    replace_sends(monkeypatch, lambda real: send)
    return failed


def test_nothing_is_visible_before_a_flush_and_all_after_it(topic: Topic, writer: Writer) -> None:
    for number in range(10):
        writer.append(b"%d" % number, partition=1)
    assert topic.refresh().version == 0
    assert writer.flush() is writer.result
    assert writer.result.offsets == {1: (0, 10)}
    assert contents(topic)[1] == [b"%d" % number for number in range(10)]
    assert writer.flush().offsets == {1: (0, 10)}
    assert topic.refresh().end_offsets() == {0: 0, 1: 10}


def test_close_commits_pending_records_and_can_be_repeated(topic: Topic, writer: Writer) -> None:
    writer.append("a", partition=0)
    writer.close()
    writer.close()
    assert contents(topic)[0] == [b"a"]
    for call in (lambda: writer.append(b""), writer.flush):
        with pytest.raises(InvalidRecordError, match="the writer is closed: create another one"):
            call()


def test_a_full_buffer_is_committed(topic: Topic) -> None:
    deliveries: list[Delivery] = []
    with small(topic, buffer_bytes=1000, on_delivery=deliveries.append) as writer:
        for number in range(100):
            writer.append(b"%90d" % number, partition=0)
        until(lambda: topic.end_offsets()[0] > 90)
    assert 5 < len(deliveries) < 20
    assert [int(value or b"") for value in contents(topic)[0]] == list(range(100))


@pytest.mark.parametrize("field", ["key", "headers"])
def test_keys_and_headers_count_as_bytes(topic: Topic, field: str) -> None:
    large = b"x" * 400
    record: dict[str, Any] = {"key": large} if field == "key" else {"headers": [("h", large), ("h", None)]}
    with small(topic, buffer_bytes=1000) as writer:
        for _ in range(3):
            writer.append(b"", **record)
        until(lambda: sum(topic.end_offsets().values()) > 0)


def test_lingering_records_are_committed_in_the_background(topic: Topic) -> None:
    deliveries: list[Delivery] = []
    with topic.writer(linger_ms=1, on_delivery=deliveries.append) as writer:
        for number in range(3):
            writer.append(b"%d" % number, partition=0)
            until(lambda: topic.end_offsets()[0] == number + 1)  # noqa: B023 - called at once
    assert len(deliveries) == 3


def test_a_block_that_raises_commits_as_kafkas_producer_does(topic: Topic) -> None:
    def break_off() -> None:
        with topic.writer(linger_ms=NEVER_MS) as writer:
            writer.append(b"taken", partition=0)
            raise KeyError("something else broke")

    with pytest.raises(KeyError):
        break_off()
    assert contents(topic)[0] == [b"taken"]


def test_no_timer_outlives_its_writer(topic: Topic) -> None:
    old_active_count = threading.active_count()
    for _ in range(5):
        with topic.writer(linger_ms=NEVER_MS) as writer:
            writer.append(b"")
            writer.flush()
            writer.append(b"")
    until(lambda: threading.active_count() <= old_active_count)


def test_a_record_has_all_its_fields(topic: Topic, clock: Clock) -> None:
    moment = datetime(2023, 1, 2, tzinfo=timezone.utc)
    with topic.writer(linger_ms=NEVER_MS) as writer:
        writer.append(b"value", key=b"k", timestamp=5, headers=[("h", b"v"), ("h", None)], partition=1)
        clock.now_ms = NOW + 7
        writer.append("é", partition=1)
        writer.append(None, key="k", timestamp=-1, headers=[], partition=1)
        writer.append(bytearray(b"x"), timestamp=moment, headers=iter([("é", "é")]), partition=1)  # type: ignore
        clock.now_ms = NOW + 9
    rows = [(row.timestamp, row.key, row.value, row.headers) for row in topic.records(1)]
    assert rows == [
        (5, b"k", b"value", [("h", b"v"), ("h", None)]),
        (NOW + 7, None, "é".encode(), []),
        (-1, b"k", None, []),
        (1_672_617_600_000, None, b"x", [("é", "é".encode())]),
    ]


@pytest.mark.parametrize("back_ms", [1, 3_600_001, 86_400_000])
def test_records_without_a_time_survive_a_clock_set_back(topic: Topic, clock: Clock, back_ms: int) -> None:
    with topic.writer(linger_ms=NEVER_MS) as writer:
        writer.append(b"quick", partition=1)
        writer.append("checked", headers=[("h", b"v")], partition=1)
        clock.now_ms = NOW - back_ms
        writer.append(b"later", partition=1)
        clock.now_ms += 1
    times = [row.timestamp for row in topic.records(1)]
    assert times == [NOW - back_ms + 1, NOW - back_ms + 1, NOW - back_ms] if back_ms > 1 else [NOW, NOW, NOW - 1]


def test_keys_go_where_an_append_sends_them(topic: Topic, writer: Writer) -> None:
    rows = [{"key": b"k%d" % number, "value": b"%d" % number} for number in range(50)]
    topic.append(rows)
    for row in rows:
        writer.append(row["value"], key=row["key"])
    writer.flush()
    for partition, values in contents(topic).items():
        half = len(values) // 2
        assert values[:half] == values[half:], partition


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"value": 5}, "value must be bytes"),
        ({"key": 5}, "key must be bytes"),
        ({"value": "\ud800"}, "lone surrogate"),
        ({"timestamp": -2}, "a timestamp is a whole number"),
        ({"timestamp": NOW - 1001}, "a timestamp must be .*after.max.ms"),
        ({"timestamp": NOW + 101}, "a timestamp must be .*after.max.ms"),
        ({"timestamp": "now"}, "a timestamp must be ms"),
        ({"partition": 2}, r"the partition does not exist: give one from 0 to 1 \(partition=2"),
        ({"partition": -1}, "partition must be"),
        ({"partition": "0"}, "partition must be"),
        ({"headers": [("h",)]}, "a header must be"),
        ({"headers": b"h"}, "headers must be"),
        ({"value": b"x" * 1000}, "to fit max.message.bytes.*limit=1000"),
        ({"key": b"x" * 1000}, "to fit max.message.bytes"),
        ({"headers": [("h", b"x" * 500), ("i", b"x" * 500)]}, "to fit max.message.bytes"),
        ({"key": None}, "a compacted topic needs a key"),
    ],
)
def test_an_invalid_record_is_refused_at_once(
    record: dict[str, Any], message: str, topic: Topic, writer: Writer
) -> None:
    limits = {
        "max.message.bytes": 1000,
        "message.timestamp.before.max.ms": 1000,
        "message.timestamp.after.max.ms": 100,
    }
    topic.alter_config({**limits, "cleanup.policy": "compact"})
    writer.append(b"before", key=b"k", partition=0)
    with pytest.raises(InvalidRecordError, match=message):
        writer.append(**{"value": b"", "key": b"k", **record})
    writer.append(b"after", key=b"k", partition=0)
    writer.flush()
    assert contents(topic)[0] == [b"before", b"after"]


def test_timestamps_have_no_limits_with_append_time(topic: Topic, clock: Clock, writer: Writer) -> None:
    topic.alter_config({"message.timestamp.type": "LogAppendTime", "message.timestamp.after.max.ms": 0})
    writer.append(b"", timestamp=2**63 - 1, partition=0)
    clock.now_ms = NOW + 10
    writer.flush()
    assert next(topic.records(0)).timestamp == NOW + 10


@pytest.mark.long
@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("limit", [300, 3000, 300_000])
def test_an_accepted_record_can_always_be_committed(codec: str, limit: int, topic: Topic) -> None:
    topic.alter_config({"compression.type": codec, "max.message.bytes": limit})
    source = random.Random(limit)
    writer = topic.writer(linger_ms=NEVER_MS)
    sizes = range(max(0, limit - 1000), limit, 7)
    taken_ranges = [_accepts(writer, source.randbytes(size)) for size in sizes]
    writer.close()
    assert sum(topic.end_offsets().values()) == sum(taken_ranges) > 3
    assert taken_ranges == sorted(taken_ranges, reverse=True)
    assert taken_ranges[-1] is False


def _accepts(writer: Writer, value: bytes) -> bool:
    try:
        writer.append(value)
    except InvalidRecordError:
        return False
    return True


def test_an_invalid_linger_is_refused(topic: Topic) -> None:
    with pytest.raises(InvalidConfigError, match="linger_ms must be at least 0"):
        topic.writer(linger_ms=-1)


@pytest.fixture
def restless_threads() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless_threads")
def test_threads_may_share_a_writer(topic: Topic) -> None:
    writer = small(topic, linger_ms=1, buffer_bytes=2000)

    def work(thread: int) -> None:
        for number in range(300):
            writer.append(b"%d %d" % (thread, number), partition=0)
            if number % 100 == 99:
                writer.flush()

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    pairs = [tuple(map(int, (value or b"").split())) for value in contents(topic)[0]]
    assert sorted(pairs) == sorted(itertools.product(range(6), range(300)))
    for thread in range(6):
        assert [number for owner, number in pairs if owner == thread] == list(range(300))


def test_a_flush_waits_for_the_commit_in_flight(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    has_started, proceed = threading.Event(), threading.Event()

    def slow(real: Send) -> Send:
        def send(destination: Any, records: pa.RecordBatch) -> Appends:
            has_started.set()
            assert proceed.wait(60)
            return real(destination, records)

        return send

    replace_sends(monkeypatch, slow)
    writer = topic.writer(linger_ms=0)
    writer.append(b"first", partition=0)
    assert has_started.wait(60)
    flushed = threading.Thread(target=writer.flush)
    flushed.start()
    assert flushed.is_alive()
    proceed.set()
    flushed.join()
    assert contents(topic)[0] == [b"first"]
    writer.close()
