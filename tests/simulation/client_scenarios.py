"""The scenarios of the explorer with Spark's driver, or gateways and their clients."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import distlog
from distlog.core.errors import DistlogError
from distlog.core.storage.storage import Storage
from distlog.gateway.protocol.error_codes import CoordinatorError
from simulation import gateways
from simulation.gateways import Gateway, NoAnswerError, Numbers
from simulation.scenario import Scenario, StoreScenario
from simulation.threads import living

if TYPE_CHECKING:
    from simulation.explorer import Schedule


class SinkReplay(StoreScenario):
    """Spark's driver commits a micro-batch that another run commits again, during an append."""

    name = "the sink's replay"
    restarted = frozenset({"driver"})

    def run(self, schedule: Schedule) -> None:
        # the import takes seconds, and none inside of a world
        importlib.import_module("simulation.spark_driver")
        super().run(schedule)

    def prepare(self) -> None:
        self.batches = [self.stage.records_of([b"a", b"b"], "query") for _ in range(2)]

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {"driver": self.drive, "second run": self.drive, "appender": lambda: self.append(None)}

    def drive(self) -> None:
        """Commit both micro-batches, one after the other, with retries."""
        for number in range(len(self.batches)):
            self.until_done(lambda number=number: self._write(number))  # type: ignore[misc]

    def _write(self, number: int) -> None:
        from distlog.spark.batch_source import RECENT_MS
        from distlog.spark.sink import (
            KNOWN_TOPICS,
            DistlogWriter,
            MicroBatch,
            PlannedTopic,
            WriteOptions,
            WrittenSegments,
        )

        batch, table = self.batches[number]
        storage, rows = Storage(self.stage.url, {}), table.to_batches()[0]
        planned = PlannedTopic.of(KNOWN_TOPICS.load(storage, recent_ms=RECENT_MS)[1], "query", number)
        writer, messages = DistlogWriter(WriteOptions(storage, "query", number), planned), list[WrittenSegments]()
        for part in (rows.slice(0, 1), rows.slice(1)):
            message = writer.write(iter([part]))
            assert isinstance(message, WrittenSegments)
            messages.append(replace(message, micro_batch=MicroBatch("query", number)))
        writer.commit(messages)  # type: ignore[arg-type]
        batch.acknowledge(planned.topic_id)

    def check(self) -> None:
        topic = distlog.open(self.stage.url)
        self.check_records(topic)
        self.check_versions(topic)


class TransactionTimeout(StoreScenario):
    """A client's transaction on a gateway, a second one with its id, and a coordinator that aborts late ones."""

    name = "a transaction with timeout and a second producer"
    is_compacted = True  # offsets of end markers are not read

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {"gateway": self.serve, "first": self.transact, "second": self.transact}

    def prepare(self) -> None:
        self.stage.end_s = self.world.now + 12.0
        self.oracle.has_markers = True

    def serve(self) -> None:
        """Run a gateway until the transactions are over, or too late."""
        gateway = Gateway(self.stage, living().process, 9092)
        self.stage.gateways["gateway"] = gateway
        gateway.start()
        self.world.pause(90.0)
        gateway.stop()

    def transact(self) -> None:
        process = living().process
        self.world.pause(3.0)
        with suppress(NoAnswerError, DistlogError, CoordinatorError):
            producer = gateways.call(
                self.stage,
                process,
                "gateway",
                lambda gateway: gateway.broker.transactions.coordinator.begin_producer("id", 20_000),
            )
            numbers = Numbers(producer)
            with suppress(gateways.RefusedError):
                while self.stage.goes_on() and gateways.has_ended(self.stage, process, "client", "id", numbers):
                    self.world.pause(1.0)

    def check(self) -> None:
        gateways.finish(self.stage, living().process)
        topic = distlog.open(self.stage.url)
        self.check_records(topic, self.rows(topic, isolation="read_committed"))
        self.check_versions(topic)


CLIENT_SCENARIOS: tuple[type[Scenario], ...] = (SinkReplay, TransactionTimeout)
