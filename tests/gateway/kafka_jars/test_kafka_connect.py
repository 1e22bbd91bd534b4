"""Kafka Connect, as a cluster of one worker, keeps its state in the gateway, and copies a file through it."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateways import open_topic, serving, until
from kafka_broker import _free_port, java, needs_kafka

from distlog.gateway.config import GroupSettings

pytestmark = needs_kafka
_WORKER = """
bootstrap.servers={address}
group.id=connect
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
config.storage.topic=connect-configs
offset.storage.topic=connect-offsets
offset.storage.partitions=2
status.storage.topic=connect-status
status.storage.partitions=2
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.flush.interval.ms=500
listeners=HTTP://127.0.0.1:{port}
plugin.discovery=service_load
"""
_FILE = "org.apache.kafka.connect.file.FileStream"


@contextmanager
def worker(folder: Path, address: str) -> Iterator[int]:
    port = _free_port()
    (folder / "worker.properties").write_text(_WORKER.format(address=address, port=port), encoding="utf-8")
    command = java("org.apache.kafka.connect.cli.ConnectDistributed", str(folder / "worker.properties"))
    with (folder / "worker.log").open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield port
        finally:
            process.terminate()
            process.wait(60)


def put(port: int, name: str, config: dict[str, str]) -> None:
    url = f"http://127.0.0.1:{port}/connectors/{name}/config"
    requested = urllib.request.Request(
        url, json.dumps(config).encode(), {"Content-Type": "application/json"}, method="PUT"
    )
    urllib.request.urlopen(requested, timeout=60).close()


def is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/connectors", timeout=60) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_a_file_goes_through_a_source_a_topic_and_a_sink_and_positions_survive_the_worker(tmp_path: Path) -> None:
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("one\ntwo\n", encoding="utf-8")
    root = tmp_path / "root"
    with serving(root, groups=GroupSettings(initial_rebalance_delay_ms=0), auto_create_topics=True) as gateway:
        with worker(tmp_path, gateway.address) as port:
            until(lambda: is_up(port), 120)
            reading: dict[str, Any] = {"connector.class": f"{_FILE}SourceConnector", "topic": "lines"}
            put(port, "source", {**reading, "file": str(source), "tasks.max": "1"})
            put(port, "sink", {"connector.class": f"{_FILE}SinkConnector", "topics": "lines", "file": str(sink)})
            until(lambda: sink.exists() and sink.read_text(encoding="utf-8") == "one\ntwo\n", 120)
            until(lambda: sum(open_topic(gateway, "connect-offsets").end_offsets().values()) > 0, 60)
        with source.open("a", encoding="utf-8") as file:
            file.write("three\n")
        with worker(tmp_path, gateway.address):
            until(lambda: sink.read_text(encoding="utf-8") == "one\ntwo\nthree\n", 120)
        assert open_topic(gateway, "connect-configs").config.cleanup_policy == "compact"
        assert open_topic(gateway, "lines").scan().to_table().column("value").to_pylist() == [
            b"one",
            b"two",
            b"three",
        ]
