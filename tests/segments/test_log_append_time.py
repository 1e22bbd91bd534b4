"""LogAppendTime: the commit gives the time, and every reader sees it, in the order of the offsets."""

from __future__ import annotations

import dataclasses
import socket
import threading
import uuid
from pathlib import Path

import numpy as np
import pytest
from append_times import DAY, check_readers, rows, seen, segment, topic_of, written_wrong
from topics import NOW, Clock, topic_on

from distlog.core.batches.record_batch import LOG_APPEND_TIME, check_crcs, read_headers
from distlog.core.commits.actions import Add, Remove
from distlog.core.commits.segment_info import BY_COMMIT
from distlog.core.errors import CommitConflictError
from distlog.core.storage.storage import Storage


def test_who_encodes_first_and_commits_second_has_the_later_time() -> None:
    """1. A transaction writes its rows. 2. Another one writes and commits. 3. The first one commits behind it."""
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


def test_the_time_is_that_of_the_commit() -> None:
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


def test_metadata_alone_knows_the_time_so_retention_does() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, retention_ms=DAY)
    transaction = topic.transaction()
    transaction.append(rows("slow"))
    clock.now_ms += 10 * DAY
    transaction.commit()
    topic.handle = dataclasses.replace(topic.handle, clock=clock)
    topic.retention()
    assert len(seen(topic)) == 1
    clock.now_ms += DAY + 1
    topic.retention()
    assert seen(topic) == []


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


def test_no_commit_takes_a_time_back() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock)
    topic.append(rows("a"))
    topic.append(rows("b"))
    last = segment(topic, 1)
    earlier = last.appended_at(last.append_time_ms - 2)
    for actions in (
        [Add(dataclasses.replace(earlier, stem=f"v{0:020d}-{uuid.uuid4().hex}").at(2))],
        [Remove(0, last.stem), Add(earlier)],
    ):
        with pytest.raises(CommitConflictError, match="appended before"):
            topic.log.commit(topic.snapshot, "append", lambda _, chosen=actions: chosen)  # type: ignore[misc]


def test_no_segment_that_waits_for_its_time_is_stored() -> None:
    topic = topic_of(Clock(NOW))
    topic.append(rows("a"))
    waiting = dataclasses.replace(segment(topic), append_time_ms=BY_COMMIT, stem=f"v{0:020d}-{uuid.uuid4().hex}").at(
        1
    )
    commit, _ = topic.log.commit(topic.snapshot, "append", lambda _: [Add(waiting)])
    assert commit is not None
    (action,) = commit.actions
    assert isinstance(action, Add)
    assert action.segment.append_time_ms == commit.timestamp_ms


def test_a_segment_whose_times_contradict_its_append_time_is_no_segment() -> None:
    topic = topic_of(Clock(NOW))
    topic.append(rows("a"))
    wrong = dataclasses.replace(segment(topic), max_timestamp=NOW - 7)
    with pytest.raises(ValueError, match="other timestamps"):
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
