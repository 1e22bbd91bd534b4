"""Kafka Streams counts words through the gateway, with its own topics for what it shuffles and keeps."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gateways import open_topic, serving, until
from kafka_broker import java, needs_kafka

import distlog
from distlog.gateway.config import GroupSettings
from distlog.gateway.gateway_server import GatewayServer

pytestmark = needs_kafka
PROGRAM = Path(__file__).parent / "WordCount.java"


@contextmanager
def counting(folder: Path, address: str, guarantee: str) -> Iterator[None]:
    with (folder / "streams.log").open("ab") as output:
        command = java(str(PROGRAM), address, str(folder / "state"), guarantee)
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield
            assert process.poll() is None, (folder / "streams.log").read_text(encoding="utf-8")[-4000:]
        finally:
            process.terminate()
            process.wait(60)


def counts(gateway: GatewayServer) -> dict[bytes, bytes]:
    table = open_topic(gateway, "counts").scan(isolation="read_committed").to_table()
    return dict(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_streams_counts_words_and_continues(tmp_path: Path, guarantee: str) -> None:
    root = tmp_path / "root"
    lines = distlog.create(f"{root}/lines", partitions=2)
    distlog.create(f"{root}/counts", partitions=2)
    with serving(root, groups=GroupSettings(initial_rebalance_delay_ms=0, min_session_timeout_ms=100)) as gateway:
        lines.append([{"value": b"the log and the table"}, {"value": b"the log"}])
        with counting(tmp_path, gateway.address, guarantee):
            first = {b"the": b"3", b"log": b"2", b"and": b"1", b"table": b"1"}
            until(lambda: counts(gateway) == first, 120)
        lines.append([{"value": b"the end"}])
        with counting(tmp_path, gateway.address, guarantee):
            until(lambda: counts(gateway) == {**first, b"the": b"4", b"end": b"1"}, 120)
        (changelog,) = (folder.name for folder in root.glob("words-*-changelog"))
        assert open_topic(gateway, changelog).config.cleanup_policy == "compact"
