"""Topics are copied from a Kafka broker to distlog and back by Spark's Kafka connector."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

import distlog

SERVERS, JARS = os.environ.get("DISTLOG_TEST_KAFKA", ""), os.environ.get("DISTLOG_TEST_KAFKA_JARS", "")
EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka_copy.py"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not (SERVERS and JARS), reason="DISTLOG_TEST_KAFKA and DISTLOG_TEST_KAFKA_JARS are not set"),
]


def copy(topic: str, log: str, checkpoint: Path, *more: str) -> None:
    """Run the example in another Spark, with the connector."""
    arguments = ["--servers", SERVERS, "--topic", topic, "--log", log, "--checkpoint", str(checkpoint), *more]
    jars = {"PYSPARK_SUBMIT_ARGS": f"--master local[2] --jars {JARS} pyspark-shell"}
    subprocess.run([sys.executable, str(EXAMPLE), *arguments], check=True, env={**os.environ, **jars}, timeout=300)


def consumed(topic: str) -> dict[int, list[tuple[object, ...]]]:
    """Return (key, value, headers) of all records by partition, in order."""
    rows: dict[int, list[tuple[object, ...]]] = {}
    consumer = KafkaConsumer(
        topic, bootstrap_servers=SERVERS, auto_offset_reset="earliest", consumer_timeout_ms=5000, group_id=None
    )
    for record in consumer:
        rows.setdefault(record.partition, []).append((record.key, record.value, list(record.headers)))
    consumer.close()
    return rows


def test_a_topic_goes_from_kafka_to_distlog_and_back(tmp_path: Path) -> None:
    source, back = (f"{name}-{uuid.uuid4().hex}" for name in ("there", "back"))
    admin = KafkaAdminClient(bootstrap_servers=SERVERS)
    admin.create_topics([NewTopic(name, num_partitions=3, replication_factor=1) for name in (source, back)])
    admin.close()
    topic = distlog.create(f"{tmp_path}/clicks", partitions=3)
    producer = KafkaProducer(bootstrap_servers=SERVERS)
    for first in (0, 500):
        for number in range(first, first + 500):
            producer.send(source, b"v%d" % number, b"k%d" % (number % 50), headers=[("n", b"%d" % number)])
        producer.flush()
        copy(source, topic.url, tmp_path / "from-kafka")
    rows = topic.refresh().scan().to_table().to_pylist()
    rows_by_partition: dict[int, list[tuple[object, ...]]] = {}
    for row in rows:
        headers = [(header["key"], header["value"]) for header in row["headers"]]
        rows_by_partition.setdefault(row["partition"], []).append((row["key"], row["value"], headers))
    assert rows_by_partition == consumed(source)
    assert sum(map(len, rows_by_partition.values())) == 1000
    copy(back, topic.url, tmp_path / "to-kafka", "--back")
    assert consumed(back) == rows_by_partition
