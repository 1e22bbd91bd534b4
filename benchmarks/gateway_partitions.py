"""CPU time of a gateway on a local disk for requests with a batch of one record for each of many partitions.

A gateway (`distlog serve`) has one topic, and a connection sends it one request after the other, as Java's producers
make them for many partitions: with a sync of each batch and without, and of an idempotent producer.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import distlog
from benchmarks.kafka_peer import Peer
from distlog.core.format.record_encoder import write_headers
from distlog.gateway.transactions.transaction_log import internal_batch

TOPIC, PARTITIONS, VALUE = b"events", (1, 20, 200, 1000), bytes(100)
_UNSYNCED = 1 << 40
#: As many batches are sent in each case, in at least this many requests.
_BATCHES, _LEAST = 4000, 10
#: Produce 7: key, version, correlation and client id; transactional id, acks, timeout; topics, a topic, partitions.
_HEAD = struct.Struct(f">hhih4shhiih{len(TOPIC)}si")
_ENTRY, _SIZE = struct.Struct(">ii"), struct.Struct(">i")


def run() -> Iterator[str]:
    """The CPU time of a request in ms, for each number of partitions."""
    for partitions in PARTITIONS:
        for flush_messages, is_synced in ((_UNSYNCED, "without syncs"), (1, "synced")):
            for producer, kind in ((-1, "plain"), (7, "idempotent")):
                measured = _measured(partitions, flush_messages, producer)
                yield f"{partitions} partitions, {is_synced}, {kind}: {measured:.2f} ms"


def _measured(partitions: int, flush_messages: int, producer: int) -> float:
    requests = max(_BATCHES // partitions, _LEAST)
    warm = max(requests // 10, 3)
    with tempfile.TemporaryDirectory() as root, _gateway(root, partitions, flush_messages) as peer:
        host, _, port = peer.address.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            for number in range(warm + requests):
                if number == warm:
                    started_s = peer.cpu_s()
                _produced(connection, partitions, _batch(number, producer))
        return (peer.cpu_s() - started_s) / requests * 1000


def _batch(number: int, producer: int) -> bytes:
    """A batch of one record, the producer's next one in its partition."""
    run = internal_batch([(b"", VALUE)], now_ms=time.time_ns() // 1_000_000)
    if producer >= 0:
        run.rows["producer_id"], run.rows["producer_epoch"], run.rows["base_sequence"] = producer, 0, number
        write_headers(run.data.data, run.rows)
    return run.data.tobytes()


def _produced(connection: socket.socket, partitions: int, batch: bytes) -> None:
    head = _HEAD.pack(0, 7, 1, 4, b"many", -1, -1, 30_000, 1, len(TOPIC), TOPIC, partitions)
    body = head + b"".join(_ENTRY.pack(number, len(batch)) + batch for number in range(partitions))
    connection.sendall(_SIZE.pack(len(body)) + body)
    (size,) = _SIZE.unpack(connection.recv(_SIZE.size, socket.MSG_WAITALL))
    answer = connection.recv(size, socket.MSG_WAITALL)
    # after the correlation id, the topic and the number of its partitions: number, code, offset, time, start of each
    first, entry = 4 + 4 + 2 + len(TOPIC) + 4, struct.Struct(">ihqqq")
    codes = {entry.unpack_from(answer, first + number * entry.size)[1] for number in range(partitions)}
    assert codes == {0}, codes


@contextmanager
def _gateway(root: str, partitions: int, flush_messages: int) -> Iterator[Peer]:
    distlog.create(f"{root}/{TOPIC.decode()}", partitions, config={"flush.messages": flush_messages})
    command = [sys.executable, "-m", "distlog", "serve", "--root", root, "--listen", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Peer(json.loads(process.stdout.readline())["listen"], (process,))
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    for line in run():
        print(line, flush=True)
