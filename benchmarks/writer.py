"""Single records from Python: `writer.append` against librdkafka's `produce`, on one core and on two.

The peer is confluent-kafka, which is librdkafka, with its built-in mock cluster, which stores nothing. distlog's
records are durable in a topic on local disk in the end. Each round is a process of its own, since the cores are
pinned, and the two take turns. Values have 100 bytes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from typing import Any

ROWS = 1_000_000
ROUNDS = 5
PARTITIONS = 4
VALUE = b"v" * 100
CASES = {"no key": "", "key": ', key=b"k"', "partition": ", partition=1", "key, partition": ', key=b"k", partition=1'}
MEASURES = {"flushed": "with flush", "cpu": "with flush, CPU time", "calls": "calls alone"}
#: Calls between two polls of the peer.
_CALLS = 1000
_PRODUCE = """
try:
    produce("writer", VALUE{fields})
except BufferError:
    poll(0.01)
    produce("writer", VALUE{fields})
"""


def run(rows: int = ROWS) -> list[dict[str, Any]]:
    """Medians of some rounds in M records/s, one dict per case and measure."""
    cases = [(case, 1) for case in CASES] + [("key", 2)] * ((os.cpu_count() or 1) > 1)
    return [row for case, cores in cases for row in _compared(case, cores, rows)]


def _compared(case: str, cores: int, rows: int) -> list[dict[str, Any]]:
    rounds = [[_in_process(peer, case, cores, rows) for peer in _PEERS] for _ in range(ROUNDS)]
    result_rows = []
    for measure, text in MEASURES.items():
        ours, theirs = (statistics.median(round_[peer][measure] for round_ in rounds) for peer in range(2))
        result_rows.append(
            _row(f"append one by one, {case}, {cores} core{'s' * (cores > 1)}, {text}", rows, ours, theirs)
        )
    return result_rows


def _in_process(peer: str, case: str, cores: int, rows: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.writer", peer, case, str(cores), str(rows)]
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    seconds: dict[str, float] = json.loads(completed.stdout)
    return seconds


def _distlog(fields: str, rows: int) -> dict[str, float]:
    import distlog

    with tempfile.TemporaryDirectory() as folder:
        topic = distlog.create(f"{folder}/writer", partitions=PARTITIONS)
        with topic.writer() as writer:
            loop = _loop(f"append(VALUE{fields})", append=writer.append)
            _measured(lambda: loop.timeit(_CALLS), writer.flush)  # loads what is compiled
            seconds = _measured(lambda: loop.timeit(rows), writer.flush)
        if topic.refresh().scan().count() != rows + _CALLS:
            raise AssertionError("distlog lost records")
    return seconds


def _librdkafka(fields: str, rows: int) -> dict[str, float]:
    from confluent_kafka import Producer

    mock = {"bootstrap.servers": "mock", "test.mock.num.brokers": 1}
    producer = Producer({**mock, "linger.ms": 100, "queue.buffering.max.messages": 2 * rows})
    loop = _loop(_PRODUCE.format(fields=fields), produce=producer.produce, poll=producer.poll)

    def calls() -> None:
        for _ in range(rows // _CALLS):
            loop.timeit(_CALLS)
            producer.poll(0)

    loop.timeit(_CALLS)
    producer.flush()
    seconds = _measured(calls, producer.flush)
    if len(producer):
        raise AssertionError("librdkafka lost records")
    return seconds


def _loop(statement: str, **names: Any) -> timeit.Timer:
    # With the garbage collector on, as in real programs.
    return timeit.Timer(statement, "import gc; gc.enable()", globals={**names, "VALUE": VALUE})


def _measured(calls: Callable[[], object], flush: Callable[[], object]) -> dict[str, float]:
    """Seconds of the calls alone, of the calls with the flush, and of CPU time of all threads."""
    cpu, started = time.process_time(), time.perf_counter()
    calls()
    called = time.perf_counter()
    flush()
    return {
        "calls": called - started,
        "flushed": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
    }


_PEERS = {"distlog": _distlog, "librdkafka": _librdkafka}


def _row(case: str, rows: int, ours: float, theirs: float) -> dict[str, Any]:
    return {
        "benchmark": "writer",
        "case": case,
        "distlog": round(rows / ours / 1e6, 2),
        "peer": round(rows / theirs / 1e6, 2),
        "peer_name": "librdkafka's produce to a mock",
        "unit": "M records/s",
        "ratio": round(theirs / ours, 2),
    }


if __name__ == "__main__":
    name, case, cores, rows = sys.argv[1:]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-int(cores) :])
    print(json.dumps(_PEERS[name](CASES[case], int(rows))))
