"""Requests to S3 of a gateway under constant writes, counted by the server, and the price of a day.

A gateway (`distlog serve` with its defaults) has one topic of 1,000 partitions on moto's server. Connections send it
batches for all partitions, many in a request as Java's producers do, at a steady rate; nobody reads. At 100 MB/s moto
would be what is measured, so the gathering itself is fed, in this process, over storage in memory: as many bytes as
come in some seconds, as fast as it takes them. The peer is the arithmetic of docs/gateway-operations.md.
"""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v9.response import ProduceResponse
from kio.serial import entity_reader, entity_writer

import distlog
from benchmarks.costs import DAY_S, Requests
from benchmarks.s3_server import S3Server
from distlog.gateway.config import GatewayConfig
from distlog.gateway.topics.gathered_appends import GatheredAppends
from distlog.gateway.topics.partition import FailedBatches, RefreshingTopic
from distlog.gateway.transactions.transaction_log import internal_batch

TOPIC, PARTITIONS, MB = "events", 1000, 1_000_000
#: MB/s through a gateway on a server, and those that the gathering alone is fed with.
SERVED, FED = (1, 10), (100,)
SECONDS, CONNECTIONS = 10, 8
#: The bytes of a batch of one record in addition to its value, and the least that is worth sending.
_BATCH_BYTES, _LEAST_BYTES = 70, 150
_AGES_MS = 3_600_000
_KINDS = {"PUT": "puts", "POST": "puts", "GET": "gets", "HEAD": "gets"}


def run(seconds: int = SECONDS) -> list[dict[str, Any]]:
    """Requests in a second, one dict per rate; the case has the number of PUTs and the price of a day."""
    config = GatewayConfig()
    rows = [_row(rate, _served(rate, seconds), seconds, config) for rate in SERVED]
    return [*rows, *(_row(rate, fed(rate, seconds, config), seconds, config) for rate in FED)]


def _row(rate: int, counted: Requests, seconds: float, config: GatewayConfig) -> dict[str, Any]:
    commits = max(1000 / config.linger_ms, rate * MB / config.linger_bytes)
    ours, theirs = (counted.puts + counted.gets) / seconds, 3 * commits
    a_day = counted.dollars / seconds * DAY_S
    shown = f"{counted.puts / seconds:.1f} PUTs and {counted.gets / seconds:.1f} GETs a second, ${a_day:.2f} a day"
    return {
        "benchmark": "gateway's S3 requests",
        "case": f"{rate} MB/s into {PARTITIONS:,} partitions: {shown}",
        "distlog": round(ours, 1),
        "peer": round(theirs, 1),
        "peer_name": "worked out",
        "unit": "requests/s",
        "ratio": round(theirs / ours, 2),
    }


def _served(rate: int, seconds: int) -> Requests:
    """The requests that the server counted while a gateway got this rate for some seconds."""
    with S3Server() as server:
        # moto's servers of one process share their buckets
        root = f"{server.url}/{uuid.uuid4().hex}"
        distlog.create(f"{root}/{TOPIC}", PARTITIONS, storage_options=server.options)
        with _gateway(root, server.options) as port:
            sending = [_Connection(port, number, rate) for number in range(CONNECTIONS)]
            # what a gateway reads when it begins is not of its days
            for sender in sending:
                sender.produce(_LEAST_BYTES)
            counts_before = Counter(server.by_method)
            with ThreadPoolExecutor(CONNECTIONS) as threads:
                began = time.monotonic()
                list(threads.map(lambda sender: sender.send(began, seconds), sending))
            return _requests(server.by_method - counts_before)


def _requests(by_method: Mapping[str, int]) -> Requests:
    kinds = Counter[str]()
    for method, count in by_method.items():
        kinds[_KINDS.get(method, "free")] += count
    return Requests(kinds["puts"], kinds["gets"])


@contextmanager
def _gateway(root: str, options: Mapping[str, Any]) -> Iterator[int]:
    command = [sys.executable, "-m", "distlog", "serve", "--root", root, "--listen", "127.0.0.1:0", "--json"]
    command += [part for name, value in options.items() for part in ("--storage", f"{name}={value}")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(json.loads(process.stdout.readline())["listen"].rpartition(":")[2])
    finally:
        process.terminate()
        process.wait()


class _Connection:
    """A client that sends its due batches in one request for all its partitions, and waits for the answer."""

    def __init__(self, port: int, number: int, rate: int) -> None:
        self._partitions = range(number, PARTITIONS, CONNECTIONS)
        self._rate, self._sent = rate * MB / CONNECTIONS, 0
        self._socket = socket.create_connection(("127.0.0.1", port))

    def send(self, began: float, seconds: float) -> None:
        """Keep to the rate for some seconds from `began` on."""
        while (passed := time.monotonic() - began) < seconds:
            due = int(passed * self._rate - self._sent) // len(self._partitions)
            if due >= _LEAST_BYTES:
                self.produce(due)
                self._sent += due * len(self._partitions)
            time.sleep(0.02)
        assert self._sent > 0.8 * self._rate * seconds, "the machine is too slow for this rate"

    def produce(self, size: int) -> None:
        """Send a batch of `size` bytes to each partition, and wait until it is acknowledged."""
        batch = _batch(size)
        data = [PartitionProduceData(index=number, records=batch) for number in self._partitions]
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout=timedelta(seconds=30),
            topic_data=(TopicProduceData(name=TOPIC, partition_data=tuple(data)),),
        )
        self._socket.sendall(_framed(request))
        response = self._answer()
        codes = {response_.error_code for topic in response.responses for response_ in topic.partition_responses}
        assert codes == {ErrorCode.none}, codes

    def _answer(self) -> ProduceResponse:
        with self._socket.makefile("rb") as stream:
            frame = stream.read(int.from_bytes(stream.read(4), "big"))
        _, size = entity_reader(ProduceResponse.__header_schema__)(frame, 0)
        return entity_reader(ProduceResponse)(frame, size)[0]


def _framed(request: ProduceRequest) -> bytes:
    header = ProduceRequest.__header_schema__(
        request_api_key=0, request_api_version=9, correlation_id=1, client_id="benchmark"
    )
    written = io.BytesIO()
    entity_writer(type(header))(written, header)
    entity_writer(ProduceRequest)(written, request)
    return len(written.getvalue()).to_bytes(4, "big") + written.getvalue()


def _batch(size: int) -> bytes:
    """A batch of one record that nobody has numbered."""
    return internal_batch([(b"", bytes(size - _BATCH_BYTES))], now_ms=1).data.tobytes()


def fed(rate: int, seconds: int, config: GatewayConfig) -> Requests:
    """The requests of the gathering to storage in memory; each commit is full."""
    topic = distlog.create(f"memory://{uuid.uuid4().hex}/{TOPIC}", PARTITIONS)
    # by the clock of this machine a commit may take longer to fill than by the senders' clock
    failed = FailedBatches()
    batch = _batch(config.linger_bytes // PARTITIONS + 1)
    # only the last batch fills a commit: one that was full before would leave the others waiting
    full = len(batch) * PARTITIONS
    hosted = RefreshingTopic(TOPIC, topic)
    gathered = GatheredAppends(hosted, _AGES_MS, full, lambda number: partial(failed.check, TOPIC, number))
    # what comes first does not wait until the commit is full
    gathered.append({0: (batch, None)})[0].result()
    counters = topic.storage.counters
    puts, gets = counters.puts, counters.gets
    for _ in range(rate * MB * seconds // (len(batch) * PARTITIONS)):
        for result in gathered.append(dict.fromkeys(range(PARTITIONS), (batch, None))).values():
            result.result()
    gathered.close()
    return Requests(counters.puts - puts, counters.gets - gets)
