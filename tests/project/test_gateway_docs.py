"""docs/gateway.md cannot drift: its example runs, and its tables are what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gateways import API_VERSIONS, Wire, serving, until

from distlog.gateway.cluster.gateway_lease import GROUP as GATEWAYS
from distlog.gateway.cluster.gateway_lease import ROOT_ID
from distlog.gateway.cluster.maintenance import GROUP as MAINTENANCE
from distlog.gateway.cluster.maintenance import LEASE_S
from distlog.gateway.commit_log_producers import REMEMBERED_MS
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import STOP_TIMEOUT_S
from distlog.gateway.groups.offsets_topic import NAME, PARTITIONS
from distlog.gateway.kafka_apis import APIS
from distlog.gateway.protocol.request_frame import LARGEST_OTHER_BYTES

TEXT = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The rows of the table under a heading, without its head; the marks of code are taken off."""
    section = TEXT.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)[0]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in found.splitlines()[2:]]


def test_the_python_examples_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("confluent_kafka")
    names: dict[str, object] = {"root": str(tmp_path)}
    for found in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(found, names)
    assert capsys.readouterr().out.splitlines() == ["b'hello'", "[b'hello']", "True"]


def test_the_apis_are_those_of_the_table() -> None:
    rows = {row[0]: row[1] for row in table("What it speaks")}
    assert rows.items() <= {api.name: f"{api.oldest} to {api.newest}" for api in APIS.values()}.items()


def test_the_limits_are_those_of_the_table() -> None:
    config = GatewayConfig()
    assert [row[1] for row in table("Limits")] == [
        f"{config.socket_request_max_bytes >> 20} MiB",
        f"{LARGEST_OTHER_BYTES >> 20} MiB",
        str(config.queued_max_requests),
        f"{config.queued_max_request_bytes >> 20} MiB",
        f"{config.fetch_max_bytes >> 20} MiB",
        f"{config.fetch_memory_bytes >> 20} MiB",
        str(config.max_connections),
        f"{config.connections_max_idle_ms // 60_000} minutes",
        f"{config.request_timeout_ms // 1000} seconds",
    ]
    text = " ".join(TEXT.split())
    assert f"within {STOP_TIMEOUT_S:g} seconds" in text
    assert f"last {REMEMBERED_MS // 60_000} minutes" in text
    assert f"up to {config.linger_bytes >> 20} MB" in text
    assert f"`{NAME}`, in Kafka's own format: {PARTITIONS} partitions" in text
    assert f"`broker.session.timeout.ms` ({config.broker_session_timeout_ms // 1000} seconds by" in text
    assert f"a lease of {LEASE_S:g} seconds" in text
    assert f"`_groups/{ROOT_ID}/{GATEWAYS}`" in text
    assert f"`_groups/{ROOT_ID}/{MAINTENANCE}`" in text
    assert f"after {config.offsets_retention_ms // 86_400_000} days" in text


def test_the_metrics_are_those_of_the_table(tmp_path: Path) -> None:
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        wire.ask(API_VERSIONS, 0)
        # a request is counted when it is answered
        until(lambda: bool(gateway.metrics()[-1].values))
        metrics = gateway.metrics()
    rows = [
        [one.name + "_total" * (one.kind == "counter"), ", ".join(one.values[0][0]), one.meaning] for one in metrics
    ]
    assert rows == table("Metrics")
