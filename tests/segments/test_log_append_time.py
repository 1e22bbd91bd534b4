"""LogAppendTime: the commit gives the time, and every reader sees it, in the order of the offsets."""

from __future__ import annotations

import dataclasses
import random
import socket
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from append_times import DAY, check_readers, records_seen, rows, segment, topic_of, written_wrong
from commits import put_commit
from hypothesis import given
from hypothesis import strategies as st
from searches import examples
from topics import NOW, Clock, topic_on

import distlog
from distlog.core.commits.actions import Add, Remove
from distlog.core.commits.segment_table import TIME_OF_COMMIT
from distlog.core.errors import CommitConflictError
from distlog.core.format.record_batch import LOG_APPEND_TIME, check_crcs, read_headers
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


def test_the_second_commit_has_the_later_time() -> None:
    """1. A transaction writes its rows. 2. Another one writes and commits. 3. The first one commits."""
    clock = Clock(NOW)
    topic = topic_of(clock)
    first = topic.transaction()
    first.append(rows("early"))
    clock.now_ms += 1000
    with topic.transaction() as second:
        second.append(rows("late"))
    clock.now_ms += 1000
    first.commit()
    assert check_readers(topic) == [(0, NOW + 1000, b"late"), (1, NOW + 2000, b"early")]


def test_the_time_is_the_time_of_the_commit() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock)
    for wait in (0, 0, 500, -800):
        clock.now_ms += wait
        topic.append([{"value": "v", "timestamp": 5}])
    commits = topic.history()["timestamp"].cast("int64").to_pylist()[::-1][1:]
    assert [time for _, time, _ in check_readers(topic)] == commits
    assert topic.scan(columns=["timestamp_type"]).to_table()[0].to_pylist() == [LOG_APPEND_TIME] * 4


def test_a_lost_race_gives_the_time_of_the_commit_that_won_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(NOW)
    topic = topic_of(clock)
    other = written_wrong(topic_on(topic.storage, clock=clock))
    with topic.transaction() as transaction:
        transaction.append(rows("a"))
        clock.now_ms += 5000
        other.append(rows("b"))
        assert topic.snapshot.version < other.snapshot.version
    assert [value for _, _, value in check_readers(topic)] == [b"b", b"a"]
    assert segment(topic, 1).append_time_ms == topic.snapshot.timestamp_ms


def test_retention_uses_the_time_in_the_metadata() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, retention_ms=DAY)
    transaction = topic.transaction()
    transaction.append(rows("slow"))
    clock.now_ms += 10 * DAY
    transaction.commit()
    topic.handle = dataclasses.replace(topic.handle, clock=clock)
    topic.retention()
    assert len(records_seen(topic)) == 1
    clock.now_ms += DAY + 1
    topic.retention()
    assert records_seen(topic) == []


def test_an_append_has_one_time_in_all_of_its_segments_and_batches() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, internal_segment_bytes=400, batch_bytes=100)
    with topic.transaction() as transaction:
        for number in range(30):
            transaction.append(rows(f"value {number}"))
            clock.now_ms += DAY
    assert topic.segments().num_rows == 3
    assert {time for _, time, _ in check_readers(topic)} == {topic.snapshot.timestamp_ms}


def test_with_create_time_nothing_changes() -> None:
    topic = topic_on(Storage(f"memory://{uuid.uuid4().hex}"), 1, {}, Clock(NOW))
    topic.append([{"value": "v", "timestamp": 7}])
    assert segment(topic).append_time_ms == -1


def test_commit_times_never_decrease() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock)
    topic.append(rows("a"))
    topic.append(rows("b"))
    last = segment(topic, 1)
    earlier = last.appended_at(last.append_time_ms - 2)
    for actions in (
        [Add(dataclasses.replace(earlier, stem=f"v{0:020d}-{uuid.uuid4().hex}").moved_to(2))],
        [Remove(0, last.stem), Add(earlier)],
    ):
        with pytest.raises(CommitConflictError, match="appended before"):
            put_commit(topic.log, topic.snapshot, "append", lambda _, selected=actions: selected)  # type: ignore[misc]


def test_no_segment_that_waits_for_its_time_is_stored() -> None:
    topic = topic_of(Clock(NOW))
    topic.append(rows("a"))
    waiting = dataclasses.replace(
        segment(topic), append_time_ms=TIME_OF_COMMIT, stem=f"v{0:020d}-{uuid.uuid4().hex}"
    ).moved_to(1)
    commit, _ = put_commit(topic.log, topic.snapshot, "append", lambda _: [Add(waiting)])
    assert commit is not None
    (action,) = commit.actions
    assert isinstance(action, Add)
    assert action.segment.append_time_ms == commit.timestamp_ms


def test_times_that_contradict_the_append_time_are_refused() -> None:
    topic = topic_of(Clock(NOW))
    topic.append(rows("a"))
    wrong = dataclasses.replace(segment(topic), max_timestamp=NOW - 7)
    with pytest.raises(ValueError, match="other times"):
        wrong.check()


def test_bytes_sent_to_a_socket_have_the_time_of_the_commit(tmp_path: Path) -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, str(tmp_path / "clicks"))
    with topic.transaction() as transaction:
        transaction.append(rows("a", "b"))
        clock.now_ms += 1000
    batches = topic.read(0, 0)
    sender, receiver = socket.socketpair()
    with sender, receiver:
        thread = threading.Thread(target=lambda: (batches.send_to(sender), sender.close()))
        thread.start()
        data = b"".join(iter(lambda: receiver.recv(4096), b""))
        thread.join()
    assert data == bytes(batches)
    headers = read_headers(data)
    check_crcs(data, headers)
    assert headers["max_timestamp"].tolist() == [topic.snapshot.timestamp_ms]
    assert headers["max_timestamp"].tolist() == [NOW + 1000]


def test_the_kernel_writes_the_checksums_that_readers_compare() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, batch_bytes=1)
    with topic.transaction() as transaction:
        transaction.append([{"value": bytes(size)} for size in (0, 1, 7, 8, 100, 5000, 70_000)])
        clock.now_ms += 1
    data = bytes(topic.read(0, 0))
    batches = read_headers(data)
    assert len(batches) == 7
    check_crcs(data, batches)
    assert np.unique(batches["max_timestamp"]).tolist() == [NOW + 1]


def late_appends(topic: Topic, clock: Clock, count: int) -> None:
    """Append `count` times, each at another time than the one in its batches."""
    for number in range(count):
        with topic.transaction() as transaction:
            transaction.append(rows(f"a{number}", f"{number}b"))
            clock.now_ms += 1000


def test_a_merged_segment_has_the_times_of_its_parts_in_its_batches() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock)
    late_appends(topic, clock, 8)
    old_reads = check_readers(topic)
    topic.compact()
    (merged,) = topic.snapshot.partitions[0].segments
    assert merged.append_time_ms == -1
    assert check_readers(topic) == old_reads
    data = topic.storage.read(topic.reader.name(merged))
    headers = read_headers(data)
    check_crcs(data, headers)
    assert headers["max_timestamp"].tolist() == sorted({time for _, time, _ in old_reads})
    assert topic.verify().ok


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_compacted_segments_have_the_times_of_their_parts_in_their_batches(codec: str) -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    for number in range(6):
        with topic.transaction(compression=codec) as transaction:
            # the first loses a record; the second loses nothing, and is copied unchanged
            transaction.append(rows(f"a{number}", f"{number} stays") if number % 2 else rows(f"{number} stays"))
            clock.now_ms += 1000
    old_reads = check_readers(topic)
    topic.compact()
    after = check_readers(topic)
    assert set(after) < set(old_reads)
    assert [value for _, _, value in after if b"stays" in value] == [
        value for _, _, value in old_reads if b"stays" in value
    ]
    assert {info.append_time_ms for info in topic.snapshot.partitions[0].segments} == {-1}
    assert topic.verify().ok


def test_a_compaction_that_changes_nothing_keeps_the_segment_and_its_time() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    late_appends(topic, clock, 1)
    old_reads = check_readers(topic)
    topic.compact()
    assert segment(topic).append_time_ms == NOW + 1000
    assert check_readers(topic) == old_reads


def test_rebuilt_indexes_equal_the_written_ones(tmp_path: Path) -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, str(tmp_path / "clicks"), index_interval_bytes=0, batch_bytes=1)
    with topic.transaction() as transaction:
        for number in range(20):
            transaction.append(rows(f"{number}"))
        clock.now_ms += 5000
    old_reads = check_readers(topic)
    assert topic.verify().ok
    assert topic.rebuild_indexes().rebuilt == ()
    paths = [tmp_path / "clicks" / topic.reader.name(segment(topic), suffix) for suffix in (".index", ".timeindex")]
    written = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    topic.rebuild_indexes()
    assert [path.read_bytes() for path in paths] == written
    assert segment(topic).append_time_ms == NOW + 5000
    assert check_readers(topic) == old_reads
    assert topic.verify().ok


def test_a_lookup_by_time_in_a_large_segment_reads_no_time_index(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, str(tmp_path / "clicks"), batch_bytes=1000)
    for _ in range(2):
        with topic.transaction() as transaction:
            transaction.append([{"value": bytes(500)} for _ in range(1000)])
            clock.now_ms += 5000
    (tmp_path / "clicks" / topic.reader.name(segment(topic, 1), ".timeindex")).unlink()
    assert topic.offsets_for_times(NOW + 1)[0] == (0, NOW + 5000)
    assert topic.offsets_for_times(NOW + 5001)[0] == (1000, NOW + 10_000)
    assert topic.offsets_for_times(NOW + 10_001)[0] is None
    # reading the index would fail, since it is wrong or missing
    assert caplog.messages == []


def test_a_scan_by_time_starts_at_the_time_of_the_commit() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock)
    late_appends(topic, clock, 4)
    table = topic.scan(start_time=NOW + 2000, end_time=NOW + 4000, columns=["offset"]).to_table()
    assert table["offset"].to_pylist() == [2, 3, 4, 5]


def test_a_damaged_batch_is_found_before_its_time_is_rewritten(tmp_path: Path) -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, str(tmp_path / "clicks"))
    late_appends(topic, clock, 2)
    path = tmp_path / "clicks" / topic.reader.name(segment(topic))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    topic = topic_on(topic.storage, clock=clock)
    for attempt in (lambda: topic.read(0, 0), lambda: topic.scan().to_table()):
        with pytest.raises(distlog.CorruptRecordError, match="checksum"):
            attempt()
    (failed,) = topic.compact().failed
    assert "checksum" in failed.reason
    assert not topic.verify().ok


@pytest.mark.long
@given(st.integers(0, 2**32), st.sampled_from(["delete", "compact"]), st.sampled_from(["none", "lz4"]))
@examples(6)
def test_times_never_step_back_in_any_order_of_commits(seed: int, policy: str, codec: str) -> None:
    order, clock = random.Random(seed), Clock(NOW)
    config = {
        "cleanup_policy": policy,
        "internal_segment_bytes": 600,
        "batch_bytes": 100,
        "min_cleanable_dirty_ratio": 0.0,
    }
    topic = topic_of(clock, index_interval_bytes=0, retention_ms=-1, **config)
    writers = [written_wrong(topic_on(topic.storage, clock=clock)) for _ in range(4)]
    under_way: list[Any] = []
    for number in range(25):
        clock.now_ms += order.randrange(-1000, 3000)
        if len(under_way) < 4 and order.random() < 0.6:
            under_way.append(order.choice(writers).transaction(compression=codec))
        elif under_way and order.random() < 0.5:
            under_way.pop(order.randrange(len(under_way))).commit()
        for transaction in under_way:
            if order.random() < 0.5:
                transaction.append(rows(*(f"{order.randrange(5)} {number}" for _ in range(order.randrange(1, 4)))))
        if order.random() < 0.2:
            old_reads = check_readers(topic.refresh())
            topic.compact()
            after = check_readers(topic)
            assert after == old_reads if policy == "delete" else set(after) <= set(old_reads)
    for transaction in under_way:
        transaction.commit()
    new_reads = check_readers(topic.refresh())
    topic.rebuild_indexes(force=True)
    assert check_readers(topic) == new_reads
    topic.compact()
    assert check_readers(topic) == new_reads if policy == "delete" else set(check_readers(topic)) <= set(new_reads)
    report = topic.verify()
    assert report.ok, str(report)
