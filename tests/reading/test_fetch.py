"""Fetching like Kafka's consumers: whole batches, at least one, up to the limit, with the offsets of readers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest
from addresses import Address
from adopted import adopt_golden
from kafka.record import MemoryRecords
from logs import Log, appended, batches_of, changed, log_of, table

import distlog
from distlog import CorruptRecordError, InvalidConfigError, OffsetOutOfRangeError, Topic
from distlog.core.format.record_batch import read_headers
from distlog.core.read import fetch as fetch_module
from distlog.core.read.fetch import FetchedBatches
from distlog.core.storage.local_files import FileMap

LOGS: dict[str, Callable[[str], Topic]] = {
    "dense": lambda url: appended(url, 7, 60, 1, 30),
    "zstd": lambda url: appended(url, 7, 60, **{"compression.type": "zstd"}),
    "compacted": lambda url: adopt_golden(url, golden.partitions()["cleaned.compact-none-0"]),
    "transactions": lambda url: adopt_golden(url, golden.partitions()["cleaned.compact-txn-0"]),
    "format-1": lambda url: adopt_golden(url, golden.partitions()["logs.v1-lz4-0"]),
    "deleted": lambda url: adopt_golden(url, golden.partitions()["first.deleted-records-0"]),
}


@pytest.fixture(scope="module", params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Log:
    return log_of(LOGS[request.param](str(tmp_path_factory.mktemp("log") / "t")))


def kafka_offsets(data: bytes) -> list[int]:
    """Return the offsets that kafka-python reads in a fetch response, with checksums checked."""
    read_offsets, records = [], MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        if not getattr(batch, "is_control_batch", False):
            read_offsets += [record.offset for record in batch]
    assert records.valid_bytes() == len(data)
    return read_offsets


def stored(topic: Topic) -> list[tuple[int, int]]:
    batches = []
    for segment in topic.snapshot.partitions[0].segments:
        headers = read_headers(topic.storage.read(topic.reader.name(segment)))
        last = headers["base_offset"] + headers["last_offset_delta"] + segment.shift
        batches += list(zip(last.tolist(), headers["size"].tolist(), strict=True))
    return batches


def segment_of(topic: Topic, offset: int) -> int:
    return topic.snapshot.partitions[0].segments.find(offset)


@pytest.mark.parametrize("max_bytes", [1, 200, 300, 500, 1000, 1 << 20])
def test_a_fetch_starts_at_the_batch_with_the_offset(log: Log, max_bytes: int) -> None:
    topic = log.topic
    batches = stored(topic)
    for offset in range(topic.start_offsets()[0], topic.end_offsets()[0], 3):
        later_batches = [batch for batch in batches if batch[0] >= offset]
        fetched = topic.read(0, offset, max_bytes)
        if not later_batches:
            assert (len(fetched), fetched.next_offset) == (0, topic.end_offsets()[0])
            continue
        number, size = 1, later_batches[0][1]
        while number < len(later_batches) and segment_of(topic, later_batches[number][0]) == segment_of(
            topic, later_batches[0][0]
        ):
            if size + later_batches[number][1] > max_bytes:
                break
            number, size = number + 1, size + later_batches[number][1]
        assert (len(fetched), len(fetched.positions)) == (size, number)
        assert fetched.next_offset == later_batches[number - 1][0] + 1
        assert bytes(fetched) == b"".join(batches_of(bytes(fetched)))


def test_a_fetch_of_no_bytes_is_empty(log: Log) -> None:
    start, end = log.topic.start_offsets()[0], log.topic.end_offsets()[0]
    for offset in (start, end):
        fetched = log.topic.read(0, offset, max_bytes=0)
        assert (bytes(fetched), len(fetched.positions), fetched.next_offset) == (b"", 0, offset)
    with pytest.raises(OffsetOutOfRangeError):
        log.topic.read(0, end + 1, max_bytes=0)
    with pytest.raises(InvalidConfigError, match="max_bytes must be 0 or more"):
        log.topic.read(0, start, max_bytes=-1)


@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
def test_fetch_after_fetch_is_the_whole_log_for_kafka_python(log: Log, max_bytes: int) -> None:
    pytest.importorskip("lz4")
    pytest.importorskip("zstandard")
    offset, read_offsets = log.topic.start_offsets()[0], []
    while offset < log.topic.end_offsets()[0]:
        fetched = log.topic.read(0, offset, max_bytes)
        read_offsets += [read_offset for read_offset in kafka_offsets(bytes(fetched)) if read_offset >= offset]
        assert fetched.next_offset > offset
        offset = fetched.next_offset
    assert read_offsets == [row["offset"] for row in log.expected]


def test_fetched_bytes_differ_only_in_base_offsets(tmp_path: Path) -> None:
    log = log_of(appended(str(tmp_path / "t"), 1000, 20))
    data = log.file(1).read_bytes()
    fetched = log.topic.read(0, 1000)
    assert bytes(fetched.data) == data
    assert fetched.moved
    assert bytes(fetched)[8:100] == data[8:100]
    assert read_headers(bytes(fetched))["base_offset"].tolist() == fetched.base_offsets.tolist()
    assert fetched.base_offsets[0] == 1000
    assert kafka_offsets(bytes(fetched)) == list(range(1000, 1020))


def test_a_brokers_log_is_fetched_byte_for_byte(tmp_path: Path) -> None:
    log = log_of(adopt_golden(str(tmp_path / "t"), golden.partitions()["logs.v1-lz4-0"]))
    fetched = log.topic.read(0, 0)
    assert bytes(fetched) == log.file().read_bytes()
    assert not fetched.moved
    firsts = [int.from_bytes(entry[:8], "big") for entry in batches_of(bytes(fetched))]
    assert fetched.base_offsets.tolist() == firsts


def test_a_fetch_at_the_end_is_empty_and_past_it_fails(log: Log) -> None:
    start, end = log.topic.start_offsets()[0], log.topic.end_offsets()[0]
    fetched = log.topic.read(0, end)
    assert (bytes(fetched), len(fetched), fetched.next_offset) == (b"", 0, end)
    for offset in (start - 1, end + 1):
        with pytest.raises(OffsetOutOfRangeError, match=f"log_start_offset={start} log_end_offset={end}"):
            log.topic.read(0, offset)


def test_a_fetch_in_a_gap_starts_after_it(tmp_path: Path) -> None:
    topic = adopt_golden(str(tmp_path / "t"), golden.partitions()["cleaned.compact-none-0"])
    segments = list(topic.snapshot.partitions[0].segments)
    assert [segment.log_bytes for segment in segments[:3]] == [0, 0, 0]
    first = min(read_headers(topic.storage.read(topic.reader.name(segments[3])))["base_offset"].tolist())
    assert topic.read(0, 0).base_offsets[0] == first >= 276


def test_a_fetch_of_an_empty_topic_is_empty(memory_url: Any) -> None:
    assert len(distlog.create(memory_url.url).read(0, 0)) == 0


def test_local_batches_are_mapped_and_not_read(tmp_path: Path) -> None:
    topic = appended(str(tmp_path / "t"), 7, 200)
    topic.storage.counters.bytes_read = 0
    fetched = topic.read(0, 100, 300)
    assert isinstance(fetched.data.obj, np.ndarray)
    assert isinstance(fetched.data.obj.base, FileMap)
    assert fetched.data.readonly
    assert topic.storage.counters.bytes_read == 0


@pytest.mark.parametrize("damage_at", [8, 16, 80], ids=["size", "format", "record"])
@pytest.mark.parametrize("is_local", [True, False])
def test_batches_before_a_damaged_one_are_fetched_and_the_next_fetch_fails(
    memory_url: Address, tmp_path: Path, is_local: bool, damage_at: int
) -> None:
    topic = appended(str(tmp_path / "t") if is_local else memory_url.url, 60)
    name = topic.reader.name(topic.snapshot.partitions[0].segments[0])
    data = topic.storage.read(name)
    third = read_headers(data)[2]
    position, offset = int(third["position"]), int(third["base_offset"])
    topic.storage.put(name, changed(data, position + damage_at, 0x40))
    for max_bytes in (position, position + 500, 1 << 20):
        old_data = topic.read(0, 0, max_bytes, check_crcs=True)
        assert (bytes(old_data), old_data.next_offset) == (data[:position], offset)
        with pytest.raises(CorruptRecordError, match=f"file={name} position={position} .*partition=0"):
            topic.read(0, offset, max_bytes, check_crcs=True)


def received(fetched: FetchedBatches, timeout: float | None = None) -> bytes:
    ours, theirs = socket.socketpair()
    content = bytearray()

    def receive() -> None:
        while data := theirs.recv(1 << 16):
            content.extend(data)

    receiver = threading.Thread(target=receive)
    receiver.start()
    ours.settimeout(timeout)
    with ours:
        assert fetched.send_to(ours) == len(fetched)
        ours.shutdown(socket.SHUT_WR)
        receiver.join()
    theirs.close()
    return bytes(content)


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_sent_bytes_equal_fetched_bytes(log: Log, timeout: float | None) -> None:
    for offset in range(log.topic.start_offsets()[0], log.topic.end_offsets()[0] + 1, 11):
        for max_bytes in (1, 500, 1 << 20):
            fetched = log.topic.read(0, offset, max_bytes)
            assert received(fetched, timeout) == bytes(fetched)


def test_remote_and_large_fetches_are_sent_too(
    memory_url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "CHUNK_BYTES", 500)
    for url in (memory_url.url, str(tmp_path / "t")):
        topic = appended(url, 5, 300)
        fetched = topic.read(0, 100)
        assert fetched.next_offset == 305
        assert received(fetched) == bytes(fetched)
        assert kafka_offsets(bytes(fetched))[-205:] == list(range(100, 305))


def test_an_encrypted_connection_gets_no_raw_bytes(tmp_path: Path) -> None:
    class Encrypting:
        def __init__(self) -> None:
            self.sent = b""

        def gettimeout(self) -> None:
            return None

        def sendall(self, data: bytes) -> None:
            self.sent += data

    connection: Any = Encrypting()
    fetched = appended(str(tmp_path / "t"), 7, 60).read(0, 7)
    assert fetched.send_to(connection) == len(fetched)
    assert connection.sent == bytes(fetched)


def test_a_file_truncated_during_a_send_fails(tmp_path: Path) -> None:
    log = log_of(appended(str(tmp_path / "t"), 7, 60))
    fetched = log.topic.read(0, 7)
    log.file(1).write_bytes(log.file(1).read_bytes()[:-5])
    with pytest.raises(OSError, match="the log was cut during the fetch"):
        received(fetched)


def test_a_fetch_from_a_large_remote_segment_reads_little(memory_url: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    topic = distlog.create(memory_url.url, config={"batch.bytes": "16384"})
    for _ in range(3):
        topic.append(table(200_000))
    topic.storage.counters.bytes_read = 0
    assert topic.read(0, 300_000, max_bytes=100_000).next_offset > 300_000
    assert topic.storage.counters.bytes_read < 200_000


@pytest.mark.parametrize(("batch_bytes", "most"), [(16 << 10, 1.2), (128 << 10, 1.4), (900 << 10, 3.2)])
def test_a_fetch_from_a_store_is_one_request_and_reads_no_further(
    memory_url: Address, batch_bytes: int, most: float
) -> None:
    topic = distlog.create(f"{memory_url.url}/clicks", config={"batch.bytes": batch_bytes})
    topic.append([{"value": bytes(1000)}] * 20_000)
    end, counters, offset, fetches = topic.end_offsets()[0], topic.storage.counters, 0, 0
    gets, size = counters.gets, counters.bytes_read
    while offset < end:
        fetched = topic.read(0, offset, max_bytes=1 << 20)
        offset, fetches = fetched.next_offset, fetches + 1
    log_bytes = topic.snapshot.partitions[0].segments[0].log_bytes
    # besides the ranges of the log, the index and the head of the log
    assert counters.gets - gets <= fetches + 2
    assert counters.bytes_read - size < most * log_bytes


def test_a_fetch_from_a_store_without_an_index_reads_ahead_to_its_batches(memory_url: Address) -> None:
    topic = distlog.create(f"{memory_url.url}/clicks", config={"batch.bytes": 16 << 10})
    topic.append([{"value": bytes(1000)}] * 20_000)
    topic.storage.delete([topic.reader.name(topic.snapshot.partitions[0].segments[0], ".index")])
    counters = topic.storage.counters
    gets = counters.gets
    assert topic.read(0, 19_999, max_bytes=1).next_offset == 20_000
    # 20 MB in steps of 64 KB are 313
    assert counters.gets - gets < 20
