"""A gateway takes the settings of Kafka's `server.properties` that mean something to it."""

from __future__ import annotations

import pytest

from distlog.core.errors import InvalidConfigError
from distlog.gateway.broker_settings import with_settings
from distlog.gateway.config import GatewayConfig


def test_settings_of_groups_and_of_the_broker_are_taken_and_others_left_out() -> None:
    settings = {"node.id": "7", "offsets.retention.minutes": "2", "group.max.size": 5, "listeners": "PLAINTEXT://:1"}
    config = with_settings(GatewayConfig(linger_ms=3), settings)
    assert (config.node_id, config.offsets_retention_ms, config.groups.max_size) == (7, 120_000, 5)
    assert (config.linger_ms, config.broker_session_timeout_ms) == (3, 9000)
    assert with_settings(GatewayConfig(), {"broker.id": "-1"}).node_id is None


@pytest.mark.parametrize(
    "settings", [{"node.id": "one"}, {"node.id": "-2"}, {"broker.session.timeout.ms": "10"}, {"group.max.size": 0}]
)
def test_what_kafka_would_refuse_is_refused_by_its_name(settings: dict[str, object]) -> None:
    (name,) = settings
    with pytest.raises(InvalidConfigError, match=name):
        with_settings(GatewayConfig(), settings)
