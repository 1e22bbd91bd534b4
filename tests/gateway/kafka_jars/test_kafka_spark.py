"""Spark's Kafka source and sink write to and read from the gateway, in a batch and as a stream."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gateways import open_topic, serving
from kafka_broker import JARS, needs_kafka

import distlog

SPARK_JARS = Path(JARS or "") / "spark"
pytestmark = [
    *needs_kafka,
    pytest.mark.spark,
    pytest.mark.skipif(not SPARK_JARS.is_dir(), reason="needs Spark's Kafka connector: make kafka-jars"),
]
PROGRAM = Path(__file__).parent / "kafka_connector.py"


def test_sparks_connector_writes_and_reads_in_a_batch_and_as_a_stream(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("clicks", "copies"):
        distlog.create(f"{root}/{name}", partitions=2)
    with serving(root) as gateway:
        # a session of its own: a session loads jars only when it starts
        command = [sys.executable, str(PROGRAM), gateway.address, str(SPARK_JARS), str(tmp_path)]
        run = subprocess.run(command, capture_output=True, check=False, timeout=400, env={**os.environ})
        assert run.returncode == 0, run.stderr.decode("utf-8", "replace")[-4000:]
        assert run.stdout.decode().splitlines() == ["batch 1000 499500", "stream 1000"]
        assert sum(open_topic(gateway, "copies").end_offsets().values()) == 1000
