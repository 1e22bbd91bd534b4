"""Sending fetched batches: from the page cache, as fast as the receiver reads, and to disconnected receivers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logs import appended
from open_files import open_below

import distlog
from distlog import CorruptRecordError
from distlog.core.format.record_batch import read_headers
from distlog.core.read.fetch import FetchedBatches, Sending, SentPart


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    real = os.sendfile

    def sendfile(receiver: int, file: int, offset: int, count: int) -> int:
        sizes.append(count)
        return real(receiver, file, offset, count)

    monkeypatch.setattr(os, "sendfile", sendfile)
    return sizes


def large(tmp_path: Path) -> FetchedBatches:
    topic = appended(str(tmp_path / "t"), 7, 20_000, **{"batch.bytes": "16384"})
    fetched = topic.read(0, 7, 1 << 30)
    assert fetched.moved
    assert len(fetched) > 300_000
    return fetched


def drained(sending: Sending, ours: socket.socket, theirs: socket.socket) -> tuple[bytes, int]:
    """Return the bytes that arrive through non-blocking sockets, and how often the sender had to wait."""
    ours.setblocking(False)
    theirs.setblocking(False)
    data, waits = bytearray(), 0
    while not sending.send(ours):
        waits += 1
        data += theirs.recv(1 << 20)
    while len(data) < sending.sent:
        data += theirs.recv(1 << 20)
    return bytes(data), waits


def test_a_moved_batch_is_a_prefix_and_one_call(
    tmp_path: Path, ends: tuple[socket.socket, socket.socket], calls: list[int]
) -> None:
    fetched = appended(str(tmp_path / "t"), 7, 60, **{"batch.bytes": "500"}).read(0, 7)
    count = len(fetched.positions)
    assert count > 1
    assert fetched.send_to(ends[0]) == len(fetched)
    assert len(calls) == count
    assert sum(calls) == len(fetched) - 8 * count
    assert ends[1].recv(1 << 20) == bytes(fetched)


def test_a_socket_that_does_not_block_gets_a_part_whenever_it_is_ready(
    tmp_path: Path, ends: tuple[socket.socket, socket.socket]
) -> None:
    fetched = large(tmp_path)
    with fetched.sending() as sending:
        data, waits = drained(sending, *ends)
    assert data == bytes(fetched)
    assert waits > 3
    assert sending.sent == len(fetched)


def test_memory_is_sent_in_parts_too(
    tmp_path: Path, memory_url: Any, ends: tuple[socket.socket, socket.socket], calls: list[int]
) -> None:
    fetched = appended(memory_url.url, 7, 20_000).read(0, 7, 1 << 30)
    assert fetched.path is None
    with fetched.sending() as sending:
        data, waits = drained(sending, *ends)
    assert (data, calls) == (bytes(fetched), [])
    assert waits > 3


def test_a_prefix_that_is_taken_in_parts_is_sent_whole() -> None:
    class Narrow:
        sent = b""

        def send(self, data: Any, flags: int) -> int:
            self.sent += data[:3]
            return min(len(data), 3)

    receiver: Any = Narrow()
    sending = Sending([SentPart(b"prefix--", 0, 0), SentPart(b"another", 0, 0)], memoryview(b""), None, 0)
    assert sending.send(receiver)
    assert (receiver.sent, sending.sent) == (b"prefix--another", 15)


def test_a_receiver_that_disconnects_fails_the_send(
    tmp_path: Path, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends
    ours.setblocking(False)
    with large(tmp_path).sending() as sending:
        assert not sending.send(ours)
        theirs.recv(100)
        theirs.close()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            sending.send(ours)


def test_a_receiver_that_takes_nothing_runs_into_the_sockets_timeout(
    tmp_path: Path, ends: tuple[socket.socket, socket.socket]
) -> None:
    ends[0].settimeout(0.01)
    with pytest.raises(TimeoutError):
        large(tmp_path).send_to(ends[0])


def test_a_socket_that_does_not_block_is_not_waited_for(
    tmp_path: Path, ends: tuple[socket.socket, socket.socket]
) -> None:
    ends[0].setblocking(False)
    with pytest.raises(ValueError, match="sending"):
        large(tmp_path).send_to(ends[0])


def test_files_are_closed(tmp_path: Path, ends: tuple[socket.socket, socket.socket]) -> None:
    fetched = large(tmp_path)
    old_count = len(open_below(tmp_path))
    with fetched.sending():
        assert len(open_below(tmp_path)) == old_count + 1
    ends[1].close()
    with pytest.raises(BrokenPipeError):
        fetched.send_to(ends[0])
    assert len(open_below(tmp_path)) == old_count


@pytest.mark.parametrize("is_append_time", [False, True])
def test_checksums_for_the_receiver_are_not_checked_before(tmp_path: Path, is_append_time: bool) -> None:
    kind = "LogAppendTime" if is_append_time else "CreateTime"
    topic = appended(str(tmp_path / "t"), 7, 60, **{"message.timestamp.type": kind})
    segment = topic.snapshot.partitions[0].segments[-1]
    file = tmp_path / "t" / topic.reader.name(segment)
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptRecordError):
        topic.read(0, 7, check_crcs=True)
    if is_append_time:
        # a new checksum would hide the damage
        with pytest.raises(CorruptRecordError):
            topic.read(0, 7)
    else:
        fetched = topic.read(0, 7)
        assert bytes(fetched.data) == bytes(data)[: len(fetched)]


def test_direct_appends_of_a_writer_are_read_and_sent_by_its_topic(
    tmp_path: Path, ends: tuple[socket.socket, socket.socket], calls: list[int]
) -> None:
    topic = distlog.create(str(tmp_path / "t"), config={"batch.bytes": "200"})
    with topic.writer() as writer:
        for number in range(50):
            writer.append(b"value %d" % number)
        writer.flush()
        fetched = topic.read(0, 0)
        assert fetched.send_to(ends[0]) == len(fetched)
    assert len(fetched.positions) > 1
    assert calls == [len(fetched)]
    received = read_headers(ends[1].recv(1 << 20))
    assert int(received["record_count"].sum()) == 50
