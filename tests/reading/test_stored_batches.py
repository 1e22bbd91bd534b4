"""Batches that are found by their headers only, and sent as stored."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

import golden
import numpy as np
import pytest
from adopted import adopt_golden
from logs import appended, changed
from partition_logs import Process, append, new_topic

from distlog import Topic
from distlog.core.commits.snapshot import PartitionState
from distlog.core.errors import StorageError
from distlog.core.format.indexes import OFFSET_ENTRY
from distlog.core.format.kernels.native import COMPILED
from distlog.core.log.live_snapshot import with_tails
from distlog.core.read.fetch import fetch_stored
from distlog.core.segments.chunks import StoredBatches

pytestmark = pytest.mark.skipif(not COMPILED, reason="headers are found by compiled code")


def with_direct_appends(folder: Path) -> Topic:
    """Return a topic with an active segment, large enough for its index, with batches of 70 bytes to 120 KB."""
    process, sizes = Process(new_topic(folder / "events")), random.Random(1)
    for number in range(60):
        size = sizes.choice([1, 100, 4000, 20_000])
        append(process[0], *[b"%d" % number * size] * sizes.randint(1, 3))
    return Topic(process.handle, process.head())


LOGS: dict[str, Callable[[Path], Topic]] = {
    "active": with_direct_appends,
    **{
        name: lambda folder, name=name: adopt_golden(str(folder / "t"), golden.partitions()[name])  # type: ignore[misc]
        for name in ("cleaned.compact-none-0", "cleaned.compact-txn-0", "first.deleted-records-0")
    },
}


def state_of(topic: Topic) -> PartitionState:
    return with_tails(topic.handle, topic.snapshot).partitions[0]


def stored(topic: Topic, offset: int, end_offset: int, size: int) -> StoredBatches | None:
    return fetch_stored(topic.reader, state_of(topic), offset, end_offset, size)


def with_batches(folder: Path, count: int) -> tuple[Topic, StoredBatches]:
    """Return a topic with `count` batches of a record each, and their positions."""
    process = Process(new_topic(folder / "events"))
    for number in range(count):
        append(process[0], b"%d" % number)
    topic = Topic(process.handle, process.head())
    batches = stored(topic, 0, count, 1 << 20)
    assert batches is not None
    return topic, batches


@pytest.mark.parametrize("kind", LOGS)
def test_the_batches_equal_a_fetch(tmp_path: Path, kind: str) -> None:
    topic = LOGS[kind](tmp_path)
    state, batch_count = state_of(topic), 0
    ends = {state.log_end_offset, (state.log_start_offset + state.log_end_offset) // 2}
    for offset in range(state.log_start_offset, state.log_end_offset):
        for size in (1, 100_000):
            for end_offset in (end for end in ends if end > offset):
                batches = stored(topic, offset, end_offset, size)
                if batches is not None:
                    batch_count += 1
                    fetched = topic.read(0, offset, size)
                    if end_offset == state.log_end_offset:
                        assert bytes(batches) == bytes(fetched)
                        assert batches.next_offset == fetched.next_offset
                    else:
                        assert bytes(fetched).startswith(bytes(batches))
                        assert offset < batches.next_offset
    assert batch_count


def test_batches_with_moved_offsets_or_times_are_not_returned(tmp_path: Path) -> None:
    moved = appended(str(tmp_path / "moved"), 7, 60)
    assert moved.read(0, 7).moved
    assert stored(moved, 7, 67, 1 << 20) is None
    timed = appended(str(tmp_path / "timed"), 60, **{"message.timestamp.type": "LogAppendTime"})
    assert stored(timed, 0, 60, 1 << 20) is None


FIELDS = {"base offset": 7, "length": 9, "format": 16, "last offset delta": 23, "record count": 57}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("is_first", [True, False])
def test_an_impossible_header_is_left_to_the_fetch(tmp_path: Path, field: str, is_first: bool) -> None:
    topic, batches = with_batches(tmp_path, 3)
    file = Path(topic.storage.local_path(batches.name))
    data = file.read_bytes()
    file.write_bytes(changed(data, FIELDS[field] + (0 if is_first else len(batches) // 3), 0x80))
    assert stored(topic, 0, 3, 1 << 20) is None


def test_the_log_of_another_segment_is_left_to_the_fetch(tmp_path: Path) -> None:
    topic, batches = with_batches(tmp_path, 1)
    file, checksum_at = Path(topic.storage.local_path(batches.name)), 17
    file.write_bytes(changed(file.read_bytes(), checksum_at, 1))
    assert stored(topic, 0, 1, 1 << 20) is None
    file.unlink()
    assert stored(topic, 0, 1, 1 << 20) is None


def test_a_log_that_ends_within_a_batch_is_left_to_the_fetch(tmp_path: Path) -> None:
    topic, batches = with_batches(tmp_path, 3)
    os.truncate(topic.storage.local_path(batches.name), len(batches) - 1)
    assert stored(topic, 0, 3, 1 << 20) is None
    assert len(stored(topic, 0, 3, 1) or b"") == len(batches) // 3


def test_an_index_past_the_batches_is_not_followed(tmp_path: Path) -> None:
    topic = with_direct_appends(tmp_path)
    (index,) = (tmp_path / "events").glob("*/*.index")
    entries = np.frombuffer(index.read_bytes(), OFFSET_ENTRY).copy()
    entries["position"][:-1] = entries["position"][1:]
    index.write_bytes(entries.tobytes())
    state = state_of(topic)
    for offset in range(state.log_end_offset):
        batches = stored(topic, offset, state.log_end_offset, 5000)
        assert batches is None or bytes(batches) == bytes(topic.read(0, offset, 5000))


def test_a_slow_socket_gets_all_bytes(tmp_path: Path) -> None:
    topic = with_direct_appends(tmp_path)
    batches = stored(topic, 0, state_of(topic).log_end_offset, 1 << 20)
    assert batches is not None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        received, remaining, calls = bytearray(), batches, 0
        while len(remaining):
            count = remaining.send(ours.fileno())
            remaining, calls = remaining[count:], calls + 1
            while len(received) < len(batches) - len(remaining):
                received += theirs.recv(1 << 20)
    assert bytes(received) == bytes(batches)
    assert calls > 1


def test_a_truncated_log_fails(tmp_path: Path) -> None:
    topic = with_direct_appends(tmp_path)
    batches = stored(topic, 0, state_of(topic).log_end_offset, 1 << 20)
    assert batches is not None
    os.truncate(topic.storage.local_path(batches.name), batches.begin + 1000)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(StorageError, match="was cut during the fetch"):
        batches.send(ours.fileno())
    with pytest.raises(StorageError, match="was cut during the fetch"):
        bytes(batches)
