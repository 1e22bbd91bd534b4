"""Members of one group, and several gateways of one root that are killed, stopped and continued.

No gateway reports an offset before an acknowledged one; every record is read; and the group makes progress.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import distlog
from soak.gateway_process import SESSION_MS, GatewayProcess
from soak.patience import Patience
from soak.streams_on_s3 import server
from soak.tally import Tally, demand, skipped

PARTITIONS, GROUP, TOPIC = 3, "billing", "events"
GROUPS = "__consumer_offsets"
_PATIENCE_S = 120.0


class Acknowledged:
    def __init__(self) -> None:
        self._lock, self._highest = threading.Lock(), dict[int, int]()

    def note(self, partition: int, offset: int) -> None:
        with self._lock:
            self._highest[partition] = max(offset, self._highest.get(partition, 0))

    def now(self) -> dict[int, int]:
        with self._lock:
            return dict(self._highest)


class Worker:
    """A member in a thread: it reads and commits records, and notes the acknowledged offsets."""

    def __init__(self, addresses: Sequence[str], acknowledged: Acknowledged, pause_s: float) -> None:
        from confluent_kafka import Consumer

        self._pause_s = pause_s
        self.read, self.rounds, self._acknowledged = set[tuple[int, int]](), 0, acknowledged
        self._is_ending = threading.Event()
        settings = {
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
            "reconnect.backoff.max.ms": 200,
            "socket.timeout.ms": 5000,
        }
        self._member = Consumer(
            {"bootstrap.servers": ",".join(addresses), "group.id": GROUP, "log_level": 0, **settings}
        )
        self._member.subscribe([TOPIC])
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        from confluent_kafka import KafkaException

        while not self._is_ending.wait(self._pause_s):
            records = [record for record in self._member.consume(20, 0.1) if record.error() is None]
            self.read |= {(record.partition(), record.offset()) for record in records}
            if not records:
                continue
            try:
                positions = self._member.commit(asynchronous=False)
            except KafkaException:
                continue
            self.rounds += 1
            for position in positions:
                # a partition without reads has no offset
                if position.error is None and position.offset >= 0:
                    self._acknowledged.note(position.partition, position.offset)
        self._member.close()

    def stop(self) -> None:
        self._is_ending.set()

    def end(self) -> None:
        self.stop()
        patience = Patience(_PATIENCE_S)
        while self._thread.is_alive():
            demand(not patience.is_over(None), "a member did not end")
            self._thread.join(0.1)


class Observer:
    """Fetches the group's offsets repeatedly: none may be before one that was acknowledged earlier."""

    def __init__(self, addresses: Sequence[str], acknowledged: Acknowledged) -> None:
        self._addresses, self._acknowledged = ",".join(addresses), acknowledged
        self.requests, self.wrong = 0, list[str]()
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._observe)
        self._thread.start()

    def _observe(self) -> None:
        while not self._is_ending.wait(0.2) and not self.wrong:
            self.check(5)

    def check(self, timeout_s: float) -> dict[int, int]:
        """Fetch the offsets as a new client; returns nothing without an answer in time."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        settings = {"bootstrap.servers": self._addresses, "group.id": GROUP, "log_level": 0}
        client, acknowledged = Consumer(settings), self._acknowledged.now()
        try:
            positions = client.committed([TopicPartition(TOPIC, number) for number in range(PARTITIONS)], timeout_s)
        except KafkaException:
            return {}
        finally:
            client.close()
        committed = {position.partition: position.offset for position in positions if position.error is None}
        self.requests += 1
        numbers = [
            number for number, offset in acknowledged.items() if number in committed and committed[number] < offset
        ]
        self.wrong += [
            f"partition {number}: {committed[number]} is before {acknowledged[number]}" for number in numbers
        ]
        return committed

    def stop(self) -> None:
        self._is_ending.set()

    def end(self) -> None:
        self.stop()
        self._thread.join()


class Appender:
    """Appends records to the topic directly, concurrently with the gateways."""

    def __init__(self, topic: distlog.Topic, pause_s: float) -> None:
        self._pause_s = 0.2 + pause_s
        self._topic, self._is_ending = topic, threading.Event()
        self._thread = threading.Thread(target=self._append)
        self._thread.start()

    def _append(self) -> None:
        while not self._is_ending.wait(self._pause_s):
            self._topic.append([{"value": b"v", "partition": n % PARTITIONS} for n in range(30)])

    def stop(self) -> None:
        self._is_ending.set()

    def end(self) -> dict[int, int]:
        self.stop()
        self._thread.join()
        return dict(self._topic.refresh().end_offsets())


def run(
    folder: Path,
    seed: int,
    *,
    troubles: int = 6,
    gateways: int = 3,
    members: int = 3,
    address: tuple[str, Mapping[str, Any]] | None = None,
    kinds: Sequence[str] = ("kill", "stop", "term", "takeover"),
) -> Tally:
    """Cause `troubles` troubles of gateways over one root; Violation if a promise is broken."""
    try:
        import confluent_kafka  # noqa: F401
        import kio  # noqa: F401
    except ModuleNotFoundError as error:
        return skipped("many-gateways", f"it needs {error.name}")
    # moto's S3 server is slow
    root, options, session_ms, pause_s = (*address, 6000, 0.5) if address else (f"{folder}/root", {}, SESSION_MS, 0.0)
    chance, acknowledged = random.Random(seed), Acknowledged()
    topic = distlog.create(f"{root}/{TOPIC}", PARTITIONS, storage_options=options)
    logs, tally = [folder / f"gateway-{number}.log" for number in range(gateways)], Tally()
    running = [GatewayProcess(root, options, session_ms, log) for log in logs]
    addresses = [process.address for process in running]
    appender, observer = Appender(topic, pause_s), Observer(addresses, acknowledged)
    workers = [Worker(addresses, acknowledged, pause_s) for _ in range(members)]
    try:
        for number in range(troubles):
            _wait_for_news(workers)
            kind = kinds[number % len(kinds)] if troubles <= len(kinds) else chance.choice(kinds)
            if kind == "takeover":
                _kill_at_takeover(running, f"{root}/{GROUPS}", options, chance)
            else:
                _TROUBLES[kind](chance.choice(running), chance)
            tally[f"{kind}s"] += 1
        _wait_for_news(workers)
        ends = appender.end()
        _wait_for_the_end(observer, ends)
        for process in (*workers, observer, *running):
            process.end()
    finally:
        for process in (appender, observer, *workers):
            process.stop()
        for gateway in running:
            gateway.kill()
    demand(not observer.wrong, f"an offset went back: {observer.wrong[:3]}")
    read = set.union(*(worker.read for worker in workers))
    missing = {(number, offset) for number, end in ends.items() for offset in range(end)} - read
    demand(not missing, f"{len(missing)} records were not read, as {sorted(missing)[:3]}")
    return tally + Tally(records=len(read), commits=sum(worker.rounds for worker in workers), polls=observer.requests)


def run_on_s3(folder: Path, seed: int, *, troubles: int = 4) -> Tally:
    with server() as address:
        return run(folder, seed, troubles=troubles, gateways=2, members=2, address=address)


def _kill(gateway: GatewayProcess, chance: random.Random) -> None:
    gateway.kill()
    # at once, as with a supervisor, or after a takeover
    time.sleep(chance.choice([0.0, 2 * gateway.session_s]))
    gateway.begin()


def _stop(gateway: GatewayProcess, chance: random.Random) -> None:
    gateway.signal(signal.SIGSTOP)
    time.sleep(chance.choice([0.5, 2.0, 3.0]) * gateway.session_s)
    gateway.signal(signal.SIGCONT)


def _term(gateway: GatewayProcess, chance: random.Random) -> None:
    gateway.end()
    time.sleep(chance.uniform(0, 1))
    gateway.begin()


def _kill_at_takeover(
    running: Sequence[GatewayProcess], groups: str, options: Mapping[str, Any], chance: random.Random
) -> None:
    """Kill a gateway, and the other gateways right after a takeover; then restart all."""
    topic = distlog.open(groups, storage_options=options)
    start_s, end = _takeovers(topic), time.monotonic() + 4 * running[0].session_s
    first = chance.choice(running)
    first.kill()
    # a gateway may lead no groups
    while _takeovers(topic) == start_s and time.monotonic() < end:
        time.sleep(0.002)
    for gateway in running:
        if gateway is not first:
            gateway.kill()
    for gateway in running:
        gateway.begin()


def _takeovers(topic: distlog.Topic) -> int:
    transactions = topic.refresh().snapshot.transactions
    epochs = [transactions.newest(f"leader:{number}") for number in range(topic.partitions)]
    return sum(epoch + 1 for epoch in epochs if epoch is not None)


_TROUBLES = {"kill": _kill, "stop": _stop, "term": _term}


def _wait_for_news(workers: Sequence[Worker]) -> None:
    old_rounds, patience = sum(worker.rounds for worker in workers), Patience(_PATIENCE_S)
    while (now := sum(worker.rounds for worker in workers)) < old_rounds + 3:
        demand(not patience.is_over(now), "nothing is committed any more")
        time.sleep(0.05)


def _wait_for_the_end(observer: Observer, ends: Mapping[int, int]) -> None:
    committed, patience = dict[int, int](), Patience(_PATIENCE_S)
    while (current := observer.check(10)) != ends:
        committed = current or committed
        demand(not patience.is_over(committed), f"the group did not reach the end: {committed} of {ends}")
        time.sleep(0.1)
