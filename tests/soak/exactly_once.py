"""Kafka's read-process-write with librdkafka, while gateways and clients are killed (kill -9): each input once.

Workers of one group read `input`, and in each transaction write the records to `output` and commit their offsets.
Workers and gateways are killed now and then: one or several gateways, on a local root or on S3. At the end a reader
of committed records finds each input once, in order within each partition, and the group has reached the end.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import distlog
from soak.gateway_kills import CONFIG
from soak.gateway_process import GatewayProcess
from soak.patience import Patience
from soak.streams_on_s3 import server
from soak.tally import Tally, demand, skipped

PARTITIONS, BETWEEN = 2, 20
_PATIENCE_S = 240.0
#: Calls get 60 seconds, so a client that waits longer hangs.
_STUCK_S = 90.0


def work(address: str, name: str) -> None:
    """Copy in transactions forever, with a restart after each error. SIGUSR1 prints the stack."""
    faulthandler.register(signal.SIGUSR1)
    parent = os.getppid()
    while os.getppid() == parent:
        try:
            _copy(address, name, parent)
        except Exception as error:  # noqa: PERF203 - every error leads to a restart
            print(f"{time.time():.3f} {name}: {error!r}", file=sys.stderr, flush=True)
            time.sleep(0.1)


def _copy(address: str, name: str, parent: int) -> None:
    from confluent_kafka import Consumer, Producer

    quick = {"reconnect.backoff.max.ms": 200, "log_level": 0, "bootstrap.servers": address}
    # in a transaction librdkafka 2.16 waits forever after it forgets the only broker of a cluster
    quick["metadata.recovery.strategy"] = "none"
    settings = {"group.id": "copy", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    # a restarted worker is the same member
    sessions = {"group.instance.id": name, "session.timeout.ms": 30_000, "isolation.level": "read_committed"}
    _ends_if_stuck()
    producer = Producer({**quick, "transactional.id": name, "transaction.timeout.ms": 10_000})
    producer.init_transactions(60)
    consumer = Consumer({**quick, **settings, **sessions})
    consumer.subscribe(["input"])
    try:
        while os.getppid() == parent:
            _ends_if_stuck()
            records = consumer.consume(BETWEEN, 0.2)
            if not records:
                continue
            for record in records:
                if record.error() is not None:
                    raise RuntimeError(record.error())
            producer.begin_transaction()
            for record in records:
                producer.produce("output", record.value(), partition=record.partition())
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(
                [position for position in positions if position.offset >= 0], consumer.consumer_group_metadata(), 60
            )
            _ends_if_stuck()
            producer.commit_transaction(60)
    finally:
        _ends_if_stuck()
        consumer.close()


def _ends_if_stuck() -> None:
    """End the process with a trace, unless this is called again in time.

    librdkafka 2.16 may wait forever in `send_offsets_to_transaction`, past its time limit, if the group's coordinator
    moves during the call (https://github.com/confluentinc/librdkafka/issues/5456).
    """
    faulthandler.dump_traceback_later(_STUCK_S, exit=True)


class _Worker:
    """A process that copies, and logs its errors in `folder`."""

    def __init__(self, address: str, name: str, folder: Path) -> None:
        self._errors = folder / f"{name}.err"
        self._command = [sys.executable, "-c", f"from soak import exactly_once as e; e.work({address!r}, {name!r})"]
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(self._command, env=environment, stderr=errors)

    def check(self) -> int:
        """Restart it if it has ended; returns the number of restarts."""
        if self._process.poll() is None:
            return 0
        self.start()
        return 1

    def end(self) -> None:
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def run(
    folder: Path, seed: int, *, kills: int = 10, workers: int = 2, records: int = 6000, gateways: int = 1
) -> Tally:
    """Copy one input on a local root; Violation if a promise is broken."""
    return _run(Address(f"{folder}/root", {}), folder, seed, kills, workers, records, gateways)


def run_with_two(folder: Path, seed: int, *, kills: int = 10, workers: int = 2, records: int = 6000) -> Tally:
    return run(folder, seed, kills=kills, workers=workers, records=records, gateways=2)


def run_on_s3(folder: Path, seed: int, *, kills: int = 6, workers: int = 2, records: int = 1200) -> Tally:
    with server() as (root, options):
        return _run(Address(f"{root}/{seed}", options), folder, seed, kills, workers, records, 2)


class Address(NamedTuple):
    url: str
    options: Mapping[str, Any]

    def create(self, name: str) -> distlog.Topic:
        return distlog.create(f"{self.url}/{name}", PARTITIONS, CONFIG, storage_options=self.options)


def _run(root: Address, folder: Path, seed: int, kills: int, workers: int, records: int, gateways: int) -> Tally:
    try:
        import confluent_kafka  # noqa: F401
        import kio  # noqa: F401
    except ModuleNotFoundError as error:
        return skipped("exactly-once", f"it needs {error.name}")
    chance, killed = random.Random(seed), Counter[str]()
    source, output = root.create("input"), root.create("output")
    serving = [GatewayProcess(*root) for _ in range(gateways)]
    addresses = ",".join(server.address for server in serving)
    working = [_Worker(addresses, f"copy-{number}", folder) for number in range(workers)]
    try:
        sent = 0
        for number in range(kills + 1):
            more = records // (kills + 1)
            source.append([{"value": b"%d" % n, "partition": n % PARTITIONS} for n in range(sent, sent + more)])
            sent += more
            if number == kills:
                break
            killed["stuck clients"] += _wait(output, sent - more // 2, working)
            killed["segments merged"] += _merge(output)
            time.sleep(chance.uniform(0, 0.3))
            if number % 2 == 0:
                gateway = chance.choice(serving)
                gateway.kill()
                # the other gateways take over, or it is back before that
                time.sleep(chance.choice((0, 2 * gateway.session_s)) if gateways > 1 else 0)
                gateway.begin()
                killed["gateway"] += 1
            else:
                worker = chance.choice(working)
                worker.kill()
                killed["clients"] += 1
                worker.start()
        killed["stuck clients"] += _wait(output, sent, working)
    except BaseException:
        for server in serving:
            server.kill()
        raise
    finally:
        for worker in working:
            worker.end()
    for server in serving:
        server.end()
    _check(output, sent)
    return Tally(kills=kills, records=sent, **killed)


def _committed(topic: distlog.Topic) -> list[tuple[int, int]]:
    """Return (partition, number) of the committed records, in order."""
    table = topic.refresh().scan(columns=["partition", "value"], isolation="read_committed").to_table()
    pairs = zip(table["partition"].to_pylist(), table["value"].to_pylist(), strict=True)
    return [(partition, int(value)) for partition, value in pairs]


def _merge(topic: distlog.Topic) -> int:
    """Merge small segments concurrently with the gateways; returns the number of segments before."""
    report = topic.refresh().compact().to_dict()
    demand(report["ok"], f"a merge failed: {report}")
    return int(report["segments_before"])


def _wait(topic: distlog.Topic, count: int, working: Sequence[_Worker]) -> int:
    """Wait until `count` records are copied; returns the number of restarted clients."""
    patience, stuck = Patience(_PATIENCE_S), 0
    while True:
        began_s = time.monotonic()
        if (count_committed := len(_committed(topic))) >= count:
            break
        demand(not patience.is_over(count_committed), f"only {count_committed} of {count} records are copied")
        stuck += sum(worker.check() for worker in working)
        # each poll reads the whole output, and must leave moto's server to the gateways
        time.sleep(max(0.05, 5 * (time.monotonic() - began_s)))
    return stuck


def _check(topic: distlog.Topic, sent: int) -> None:
    copied = _committed(topic)
    for partition in range(PARTITIONS):
        numbers = [number for of, number in copied if of == partition]
        expected = list(range(partition, sent, PARTITIONS))
        repeated = [number for number, count in Counter(numbers).items() if count > 1]
        demand(not repeated, f"copied twice: {repeated[:5]}")
        demand(numbers == expected, f"partition {partition}: records are missing, or out of order")
