"""A real Kafka broker with its tools, run from the jars in the folder that DISTLOG_KAFKA_JARS names.

`make kafka-jars` gets them from Maven Central; tools/kafka/pom.xml says which.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

JARS = os.environ.get("DISTLOG_KAFKA_JARS")
needs_kafka = [
    pytest.mark.kafka,
    pytest.mark.skipif(
        not JARS or not shutil.which("java"), reason="needs Java, and Kafka's jars: DISTLOG_KAFKA_JARS"
    ),
]
#: How long a broker or a tool may take: on a machine that does much else a JVM needs minutes to start.
PATIENCE_SECONDS = 300
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_SETTINGS = Path(__file__).parents[2] / "tools" / "kafka" / "server.properties"
# The periodic tasks of a broker: compaction at once, retention only at its start.
_CLEANING = """
log.cleaner.backoff.ms=200
log.retention.check.interval.ms=3600000
log.initial.task.delay.ms=100
"""
Rows = list[dict[str, Any]]
#: The classes of a broker, which the first one archives where there is a folder for that (`make` has one): a JVM with
#: them takes a third less CPU to start. An old one is passed over.
_CACHE = os.environ.get("XDG_CACHE_HOME")
_CLASSES = Path(_CACHE or os.devnull, "kafka-classes.jsa")


def java(name: str, *arguments: str, memory: str = "256m") -> list[str]:
    """The command that runs a class of the jars, or a file of Java; compiled quickly rather than well."""
    options = [f"-Xmx{memory}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    if _CLASSES.exists():
        options += [f"-XX:SharedArchiveFile={_CLASSES}", "-Xlog:disable"]
    return ["java", *options, "-cp", f"{JARS}/*", name, *arguments]


def tool(name: str, *arguments: str, check: bool = True, text: str = "") -> str:
    """The output of one of Kafka's tools, with its errors; `text` is what it reads."""
    command = java(name, *arguments)
    run = subprocess.run(command, input=text.encode(), capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    output = (run.stdout + run.stderr).decode("utf-8", "replace")
    assert run.returncode == 0 or not check, output
    return output


def dump(files: Sequence[Path], *options: str) -> str:
    """The output of `kafka-dump-log` for the files."""
    return tool("kafka.tools.DumpLogSegments", *options, "--files", ",".join(map(str, files)))


class Broker:
    """A broker whose only log directory is `data`; it runs inside of `with broker.running()`.

    `settings` are lines of its properties, which override the defaults of all tests.
    """

    def __init__(self, folder: Path, settings: str = "") -> None:
        self.data, self._folder = folder / "data", folder
        self.port, controller = _free_port(), _free_port()
        self._settings = folder / "server.properties"
        text = _SETTINGS.read_text().format(port=self.port, controller=controller, data=self.data)
        self._settings.write_text(f"{text}{_CLEANING}{settings}\n", encoding="utf-8")
        tool("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._settings))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[Broker]:
        """The broker, while it takes requests; then it is stopped in order."""
        with (self._folder / "broker.log").open("ab") as output:
            command = java("kafka.Kafka", str(self._settings), memory="512m")
            archive = _CLASSES.with_suffix(f".{os.getpid()}")
            if _CACHE and not _CLASSES.exists():
                command[1:1] = [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:disable"]
            process = subprocess.Popen(command, stdout=output, stderr=output)
            try:
                self._wait(process)
                yield self
            finally:
                process.terminate()
                process.wait(PATIENCE_SECONDS)
                with suppress(FileNotFoundError, NotADirectoryError):
                    archive.replace(_CLASSES)

    def log(self) -> str:
        return (self._folder / "broker.log").read_text(encoding="utf-8", errors="replace")

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            assert process.poll() is None, f"the broker has ended: {self.log()[-4000:]}"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(self.log()[-4000:])

    def create(self, topics: Mapping[str, int], config: Mapping[str, str] | None = None) -> None:
        """Make topics, given by their names with their numbers of partitions."""
        from confluent_kafka.admin import AdminClient, NewTopic

        new = [
            NewTopic(name, count, replication_factor=1, config=dict(config or {})) for name, count in topics.items()
        ]
        admin = AdminClient({"bootstrap.servers": self.address})
        for topic in admin.create_topics(new).values():
            topic.result(PATIENCE_SECONDS)

    def consume(self, topic: str, partition: int = 0, start: int = 0, *, committed: bool = False) -> Rows:
        """Every record from `start` on, in the shape of `GoldenPartition.records`."""
        from confluent_kafka import KafkaError, TopicPartition

        consumer, rows = self._consumer(committed=committed), Rows()
        consumer.assign([TopicPartition(topic, partition, start)])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                consumer.close()
                return rows
            if message is not None:
                rows.append(_row(message))
        raise AssertionError(f"only {len(rows)} records came")

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> int:
        """The first offset at or after a time."""
        from confluent_kafka import TopicPartition

        topic_partition = TopicPartition(topic, partition, time_ms)
        (answer,) = self._ask(lambda consumer: consumer.offsets_for_times([topic_partition], 30))
        return int(answer.offset)

    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        from confluent_kafka import TopicPartition

        topic_partition = TopicPartition(topic, partition)
        low, high = self._ask(lambda consumer: consumer.get_watermark_offsets(topic_partition, 30))
        return int(low), int(high)

    def _ask(self, ask: Callable[[Any], Any]) -> Any:
        """The answer to `ask`; a broker that has just started does not lead its partitions yet."""
        from confluent_kafka import KafkaException

        consumer, deadline = self._consumer(), time.monotonic() + PATIENCE_SECONDS
        while True:
            with suppress(KafkaException) if time.monotonic() < deadline else nullcontext():
                result = ask(consumer)
                consumer.close()
                return result
            time.sleep(0.2)

    def _consumer(self, *, committed: bool = False) -> Any:
        from confluent_kafka import Consumer

        settings = {
            "bootstrap.servers": self.address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
        return Consumer(settings)


def _row(message: Any) -> dict[str, Any]:
    kind, timestamp = message.timestamp()
    headers = [{"key": name, "value": value} for name, value in message.headers() or []]
    return {
        "offset": message.offset(),
        "timestamp": timestamp if kind else -1,
        "timestamp_type": kind - 1,
        "key": message.key(),
        "value": message.value(),
        "headers": headers,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
