"""A gateway takes the settings of Kafka's `server.properties` that mean something to it."""

from __future__ import annotations

import pytest

from distlog.core.errors import InvalidConfigError
from distlog.gateway.config import GatewayConfig, with_settings


def test_settings_of_groups_and_of_the_broker_are_read() -> None:
    settings = {"node.id": "7", "offsets.retention.minutes": "2", "group.max.size": 5, "listeners": "PLAINTEXT://:1"}
    config = with_settings(GatewayConfig(linger_ms=3), settings)
    assert (config.node_id, config.offsets_retention_ms, config.groups.max_size) == (7, 120_000, 5)
    assert (config.linger_ms, config.broker_session_timeout_ms) == (3, 9000)
    assert with_settings(GatewayConfig(), {"broker.id": "-1"}).node_id is None


def test_each_field_with_a_name_of_kafkas_is_set_by_it_in_its_unit() -> None:
    settings = {
        "socket.request.max.bytes": "2000",
        "max.connections": "5",
        "connections.max.idle.ms": "7",
        "auto.create.topics.enable": "TRUE",
        "transaction.max.timeout.ms": "60000",
    }
    config = with_settings(GatewayConfig(), settings)
    assert (config.socket_request_max_bytes, config.max_connections, config.connections_max_idle_ms) == (2000, 5, 7)
    assert (config.auto_create_topics, config.transaction_max_timeout_ms) == (True, 60_000)


def test_the_newer_name_of_a_setting_counts() -> None:
    assert with_settings(GatewayConfig(), {"broker.id": 1, "node.id": 2}).node_id == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"node.id": "one"},
        {"node.id": "-2"},
        {"broker.session.timeout.ms": "10"},
        {"group.max.size": 0},
        {"auto.create.topics.enable": "yes"},
        {"offsets.retention.minutes": 2**31},
    ],
)
def test_invalid_settings_are_refused_by_name_as_in_kafka(settings: dict[str, object]) -> None:
    (name,) = settings
    with pytest.raises(InvalidConfigError, match=name):
        with_settings(GatewayConfig(), settings)
