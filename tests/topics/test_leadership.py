"""Leaders of partitions: a former leader can append nothing, however late its appends arrive."""

from __future__ import annotations

import os
import pickle
import threading
from contextlib import closing
from pathlib import Path

import pytest
from topics import contents

import distlog
from distlog.core import paths
from distlog.core.errors import LeaderFencedError, StorageError
from distlog.core.storage.locks_and_pages import FileLock
from distlog.core.write.writer import RecordSender, Writer
from distlog.gateway import cluster
from distlog.gateway.cluster import Leadership


class Leader:
    def __init__(self, topic: distlog.Topic, *partitions: int) -> None:
        self.topic: distlog.Topic = pickle.loads(pickle.dumps(topic))
        self.leadership = Leadership(self.topic.handle, self.topic.current)
        self.leadership.begin(partitions)
        self.begin_writing()

    def begin_writing(self) -> None:
        topic = self.topic
        sender = RecordSender(topic.handle, topic.current, topic.engine(), fence=self.leadership)
        self.writer = Writer(sender, linger_ms=0)

    def append(self, value: bytes, partition: int = 0) -> None:
        self.writer.append(value, partition=partition)
        self.writer.flush()


def test_a_leader_appends_only_to_its_partitions(topic: distlog.Topic) -> None:
    leader = Leader(topic, 1)
    leader.append(b"mine", 1)
    with pytest.raises(LeaderFencedError, match="partition=0"):
        leader.append(b"not mine", 0)
    assert contents(topic.refresh()) == {0: [], 1: [b"mine"]}


def test_a_former_leader_appends_nothing_and_keeps_its_other_partitions(topic: distlog.Topic) -> None:
    old_leader = Leader(topic, 0, 1)
    old_leader.append(b"first")
    after = Leader(topic, 0)
    with pytest.raises(LeaderFencedError, match="newest=1"):
        old_leader.append(b"too late")
    assert old_leader.leadership.lost_partitions() == {0}
    old_leader.leadership.end([0])
    old_leader.begin_writing()
    old_leader.append(b"still mine", 1)
    after.append(b"second")
    assert contents(topic.refresh()) == {0: [b"first", b"second"], 1: [b"still mine"]}


def test_a_new_direct_leader_waits_for_appends_in_flight(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "events"))
    Leader(topic, 0).append(b"first")
    path = os.path.join(topic.storage.local_path(paths.partition_dir("events", 0)), paths.LOCK_FILE)
    leading = threading.Thread(target=Leader, args=(topic, 0))
    with closing(FileLock(path)) as lock, lock.held():
        leading.start()
        leading.join(0.3)
        assert leading.is_alive()
    leading.join(120)
    assert not leading.is_alive()


def test_no_leader_starts_while_a_stalled_process_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = distlog.create(str(tmp_path / "events"))
    Leader(topic, 0).append(b"first")
    path = os.path.join(topic.storage.local_path(paths.partition_dir("events", 0)), paths.LOCK_FILE)
    monkeypatch.setattr(cluster, "_LOCK_WAIT_S", 0.05)
    leadership = Leadership(topic.handle, topic.current)
    with closing(FileLock(path)) as lock, lock.held(), pytest.raises(StorageError):
        leadership.begin([0])
    assert not leadership.partitions
    leadership.begin([0])
    assert leadership.partitions == {0}


def test_a_fenced_leader_starts_no_epoch(topic: distlog.Topic) -> None:
    leader, version = Leader(topic, 0), topic.refresh().version

    def lapsed() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        Leadership(topic.handle, topic.current).begin([0], lapsed)
    leader.append(b"still mine")
    assert contents(topic.refresh())[0] == [b"still mine"]
    assert version <= topic.version


def test_programs_and_maintenance_append_concurrently_with_a_leader(topic: distlog.Topic) -> None:
    leader = Leader(topic, 0)
    leader.append(b"led")
    topic.refresh().append([{"value": b"free", "partition": 0}])
    topic.compact()
    leader.append(b"led again")
    assert contents(topic.refresh())[0] == [b"led", b"free", b"led again"]
