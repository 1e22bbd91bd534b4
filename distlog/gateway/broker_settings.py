"""Kafka's broker settings that a gateway knows, as a `server.properties` has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from distlog.core.errors import InvalidConfigError
from distlog.gateway.config import GatewayConfig

_MINUTE_MS = 60_000
_MAX_INT = 2**31 - 1
#: Of each setting: the field of GatewayConfig, in how many of whose units it counts, and the least and the most.
_GATEWAY = {
    "broker.id": ("node_id", 1, 0, 999_999_999),
    "node.id": ("node_id", 1, 0, 999_999_999),
    "broker.session.timeout.ms": ("broker_session_timeout_ms", 1, 500, 3_600_000),
    "offsets.retention.minutes": ("offsets_retention_ms", _MINUTE_MS, 1, _MAX_INT),
}
#: The same, of GroupSettings.
_GROUPS = {
    "group.initial.rebalance.delay.ms": ("initial_rebalance_delay_ms", 1, 0, _MAX_INT),
    "group.min.session.timeout.ms": ("min_session_timeout_ms", 1, 0, _MAX_INT),
    "group.max.session.timeout.ms": ("max_session_timeout_ms", 1, 0, _MAX_INT),
    "group.max.size": ("max_size", 1, 1, _MAX_INT),
}


def with_settings(config: GatewayConfig, settings: Mapping[str, object]) -> GatewayConfig:
    """The config with Kafka's settings that it knows; others are left out. Raises InvalidConfigError."""
    groups = replace(config.groups, **_known(_GROUPS, settings))
    return replace(config, groups=groups, **_known(_GATEWAY, settings))


def _known(known: Mapping[str, tuple[str, int, int, int]], settings: Mapping[str, object]) -> dict[str, Any]:
    return {
        field: unit * _number(name, settings[name], least, most)
        for name, (field, unit, least, most) in known.items()
        # Kafka's `broker.id=-1` asks for any id
        if name in settings and (name, str(settings[name])) != ("broker.id", "-1")
    }


def _number(name: str, value: object, least: int, most: int) -> int:
    try:
        number = int(str(value).strip())
    except ValueError:
        raise InvalidConfigError(f"{name} must be a whole number", value=value) from None
    if not least <= number <= most:
        raise InvalidConfigError(f"{name} must be between {least} and {most}", value=value)
    return number
