"""An honest producer next to 200 connections that ask for all a gateway can give: the producer's throughput.

The gateway is a process of its own, as `distlog serve` runs it, on a local disk, without a sync. The producer sends
one batch of 100 records after the other over one connection. It is measured in turn alone, which is the peer, and
next to the attackers of a kind: another process, on another address of this machine, that sends the same request over
each of its connections as soon as the last one was answered. The case says how far the gateway's memory grew.
"""

from __future__ import annotations

import datetime
import io
import json
import multiprocessing
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kio.index import load_request_schema
from kio.serial import entity_writer

import distlog
from distlog.core.times import now_ms
from distlog.gateway.transactions.transaction_log import internal_batch

ATTACKERS, WIDE = 200, 1000
ROUNDS, SECONDS = 3, 2.0
_BEGINS_S, _ENDS_S, _STARVED_S = 2.0, 0.5, 20.0
_HONEST, _ATTACKER = "127.0.0.1", "127.0.0.2"
_UNSYNCED = 1 << 40
_MEMORY_MB = 64
_SETTINGS = {"queued.max.request.bytes": _MEMORY_MB << 20, "num.partitions": 1}


def run() -> list[dict[str, Any]]:
    """Batches in a second, the median of some rounds, one dict per kind of attack."""
    return [_row(kind, make()) for kind, make in ATTACKS.items()]


def _row(kind: str, frame: bytes) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as root, _gateway(root) as (port, process):
        honest = _Producer(port)
        honest.batches(1.0)
        before_mb = _memory_mb(process.pid, "VmRSS")
        with _attack(port, frame) as (attackers, answered):
            # by then they have what they are given at first
            time.sleep(_BEGINS_S)
            alone, attacked, theirs = list[float](), list[float](), list[float]()
            for _ in range(ROUNDS):
                os.kill(attackers, signal.SIGSTOP)
                # answers that are under way
                honest.batches(_ENDS_S)
                alone.append(honest.batches(SECONDS))
                os.kill(attackers, signal.SIGCONT)
                answered_before, started_s = answered.value, time.monotonic()
                try:
                    attacked.append(honest.batches(SECONDS))
                except TimeoutError:
                    attacked = [0.0]
                theirs.append((answered.value - answered_before) / (time.monotonic() - started_s))
                if attacked == [0.0]:
                    break
        grown_mb = _memory_mb(process.pid, "VmHWM") - before_mb
    ours, peer = statistics.median(attacked), statistics.median(alone)
    return {
        "benchmark": "gateway's attackers",
        "case": f"{kind}: {statistics.median(theirs):.0f} answers/s to attackers, {grown_mb:.0f} MB",
        "distlog": round(ours, 1),
        "peer": round(peer, 1),
        "peer_name": "alone",
        "unit": "batches/s",
        "ratio": round(ours / peer, 2),
    }


def _memory_mb(pid: int, name: str) -> float:
    match = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) / 1024


@contextmanager
def _gateway(root: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    distlog.create(f"{root}/events", config={"flush.messages": _UNSYNCED})
    distlog.create(f"{root}/others", config={"flush.messages": _UNSYNCED})
    distlog.create(f"{root}/wide", WIDE)
    command = [sys.executable, "-m", "distlog", "serve", "--root", root, "--listen", "127.0.0.1:0", "--json"]
    command += [part for name, value in _SETTINGS.items() for part in ("--config", f"{name}={value}")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(json.loads(process.stdout.readline())["listen"].rpartition(":")[2]), process
    finally:
        process.terminate()
        process.wait()


# ---
# The honest producer.


class _Producer:
    """Sends a batch when the one before was answered."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((_HONEST, port), source_address=(_HONEST, 0))
        self._socket.settimeout(_STARVED_S)
        self._frame = _produce("events", internal_batch([(b"", bytes(100))] * 100, now_ms=now_ms()).data.tobytes())

    def batches(self, seconds: float) -> float:
        """Batches in a second, over at least `seconds` seconds."""
        answered_before, count = time.monotonic(), 0
        while (passed := time.monotonic() - answered_before) < seconds:
            self._socket.sendall(self._frame)
            answer = self._read(int.from_bytes(self._read(4), "big"))
            # correlation id, one topic with its name, one partition, its index, and its code
            assert answer[4:8] == b"\0\0\0\1", answer
            assert answer[8 + 2 + len("events") + 8 :][:2] == b"\0\0", answer
            count += 1
        return count / passed

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the gateway has closed the connection of an honest client"
            data += part
        return data


# ---
# The attackers, in a process of their own.


@contextmanager
def _attack(port: int, frame: bytes) -> Iterator[tuple[Any, Any]]:
    context = multiprocessing.get_context("spawn")
    answered = context.Value("q", 0)
    connected = context.Event()
    process = context.Process(target=_attackers, args=(port, frame, answered, connected), daemon=True)
    process.start()
    assert connected.wait(60)
    try:
        yield process.pid, answered
    finally:
        process.kill()
        process.join()


def _attackers(port: int, frame: bytes, answered: Any, connected: Any) -> None:
    selector = selectors.DefaultSelector()
    for _ in range(ATTACKERS):
        _Attacker(selector, port, frame)
    connected.set()
    buffer = bytearray(1 << 20)
    while True:
        for key, _ in selector.select():
            answered.value += key.data.go_on(buffer)


class _Attacker:
    """One connection; it connects again when it was closed."""

    def __init__(self, selector: selectors.BaseSelector, port: int, frame: bytes) -> None:
        self._selector, self._port, self._frame = selector, port, frame
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.socket()
        self._socket.bind((_ATTACKER, 0))
        self._socket.connect((_HONEST, self._port))
        self._socket.setblocking(False)
        self._unsent, self._head, self._unread_bytes = memoryview(self._frame), b"", 0
        self._selector.register(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def go_on(self, buffer: bytearray) -> int:
        """Send, or take, what can be sent or taken now; returns how many answers are complete."""
        try:
            return self._go_on(buffer)
        except BlockingIOError:
            return 0
        except OSError:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._connect()
            return 0

    def _go_on(self, buffer: bytearray) -> int:
        if self._unsent:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
            if not self._unsent:
                self._selector.modify(self._socket, selectors.EVENT_READ, self)
            return 0
        if self._unread_bytes == 0:
            part = self._socket.recv(4 - len(self._head))
            self._head += part
            if len(self._head) == 4:
                self._unread_bytes, self._head = int.from_bytes(self._head, "big"), b""
        else:
            count = self._socket.recv_into(buffer, min(self._unread_bytes, len(buffer)))
            self._unread_bytes, part = self._unread_bytes - count, b"x" * bool(count)
            if count and not self._unread_bytes:
                self._unsent = memoryview(self._frame)
                self._selector.modify(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
                return 1
        if not part:
            raise ConnectionResetError
        return 0


# ---
# The requests of each kind of attack.


def _framed(api_key: int, version: int, **fields: Any) -> bytes:
    schema: Any = load_request_schema(api_key, version)
    head = schema.__header_schema__(
        request_api_key=api_key, request_api_version=version, correlation_id=1, client_id="a-client"
    )
    written = io.BytesIO()
    entity_writer(type(head))(written, head)
    entity_writer(schema)(written, schema(**fields))
    return len(written.getvalue()).to_bytes(4, "big") + written.getvalue()


def _produce(topic: str, batch: bytes) -> bytes:
    from kio.schema.produce.v8.request import PartitionProduceData, TopicProduceData

    data = (TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=batch),)),)
    second = datetime.timedelta(seconds=1)
    return _framed(0, 8, transactional_id=None, acks=-1, timeout=second, topic_data=data)


def _metadata(names: tuple[str, ...] | None) -> bytes:
    from kio.schema.metadata.v4.request import MetadataRequestTopic

    topics = None if names is None else tuple(MetadataRequestTopic(name=name) for name in names)
    return _framed(3, 4, topics=topics, allow_auto_topic_creation=False)


def _fetch(topic: str, numbers: list[int], *, offset: int = 0, wait_ms: int = 0, min_bytes: int = 1) -> bytes:
    from kio.schema.fetch.v4.request import FetchPartition, FetchTopic

    partitions = tuple(
        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20) for number in numbers
    )
    return _framed(
        1,
        4,
        max_wait=datetime.timedelta(milliseconds=wait_ms),
        min_bytes=min_bytes,
        max_bytes=1 << 25,
        isolation_level=0,
        topics=(FetchTopic(topic=topic, partitions=partitions),),
    )


def _list_offsets(count: int) -> bytes:
    from kio.schema.list_offsets.v1.request import ListOffsetsPartition, ListOffsetsTopic

    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return _framed(2, 1, replica_id=-1, topics=(ListOffsetsTopic(name="wide", partitions=(partition,) * count),))


def _delete_groups(names: list[str]) -> bytes:
    return _framed(42, 0, groups_names=tuple(names))


def _commit(count: int) -> bytes:
    from kio.schema.offset_commit.v2.request import OffsetCommitRequestPartition, OffsetCommitRequestTopic

    partitions = tuple(
        OffsetCommitRequestPartition(partition_index=number, committed_offset=0, committed_metadata="x" * 100)
        for number in range(count)
    )
    return _framed(
        8,
        2,
        group_id="a-group",
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time=datetime.timedelta(milliseconds=-1),
        topics=(OffsetCommitRequestTopic(name="wide", partitions=partitions),),
    )


def _expanding(size: int) -> bytes:
    """A batch of one record of zeros, which takes little of the network and much of a gateway."""
    settings = {"max.message.bytes": 2 * size, "compression.type": "zstd"}
    topic = distlog.create(f"memory://{uuid.uuid4().hex}/expanding", config=settings)
    topic.append([{"value": bytes(size)}])
    return bytes(topic.read(0, 0))


ATTACKS: dict[str, Callable[[], bytes]] = {
    "Metadata of one topic 20 times": lambda: _metadata(("wide",) * 20),
    "Metadata of all topics": lambda: _metadata(None),
    "Metadata of 10,000 missing topics": lambda: _metadata(tuple(f"missing-{number}" for number in range(10_000))),
    "ApiVersions": lambda: _framed(18, 0),
    "Fetch of one partition 49,000 times": lambda: _fetch("wide", [0] * 49_000),
    "Fetch of 1,000 partitions": lambda: _fetch("wide", list(range(WIDE))),
    "Fetch of 1,000 partitions that waits": lambda: _fetch("wide", list(range(WIDE)), wait_ms=30_000),
    "Fetch of 1,000 partitions that waits 10 ms": lambda: _fetch("wide", list(range(WIDE)), wait_ms=10),
    "Fetch of records": lambda: _fetch("events", [0]),
    "ListOffsets of one partition 20,000 times": lambda: _list_offsets(20_000),
    "DeleteGroups of one group 10,000 times": lambda: _delete_groups(["a-group"] * 10_000),
    "DeleteGroups of 10,000 groups": lambda: _delete_groups([f"group-{number}" for number in range(10_000)]),
    "OffsetCommit of 1,000 partitions": lambda: _commit(WIDE),
    "Produce of 100 records": lambda: _produce(
        "others", internal_batch([(b"", bytes(100))] * 100, now_ms=now_ms()).data.tobytes()
    ),
    "Produce of a batch that expands to 20 MB": lambda: _produce("others", _expanding(20 << 20)),
}


def main() -> None:
    """The kinds that match the pattern given, as a table of their own."""
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    for row in (_row(kind, make()) for kind, make in ATTACKS.items() if re.search(pattern, kind)):
        print(row["ratio"], row["distlog"], row["peer"], row["case"], flush=True)


if __name__ == "__main__":
    main()
