"""Settings of topics, and of the gateway, in Kafka's protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from distlog.core.config import TopicConfig, settings
from distlog.gateway.broker_settings import gateway_settings, topic_default_settings
from distlog.gateway.config import GatewayConfig
from distlog.gateway.protocol.response_frame import Fields

#: Kafka's settings of topics about replicas, tiers and old formats: they are taken, and mean nothing here.
_MEANINGLESS = frozenset(
    {
        *("min.insync.replicas", "unclean.leader.election.enable"),
        *("follower.replication.throttled.replicas", "leader.replication.throttled.replicas"),
        *("local.retention.bytes", "local.retention.ms", "message.downconversion.enable"),
        *("message.format.version", "message.timestamp.difference.max.ms", "remote.log.copy.disable"),
        *("remote.log.delete.on.disable", "remote.storage.enable"),
    }
)
#: Where a value comes from: ConfigSource of Kafka's admin client.
_OF_TOPIC, _OF_BROKER, _DEFAULT = 1, 4, 5
#: ConfigType of Kafka's admin client. All of our numbers that may be large are LONG.
_BOOLEAN, _STRING, _LONG, _DOUBLE = 1, 2, 5, 6
_TYPES = {bool: _BOOLEAN, int: _LONG, float: _DOUBLE, str: _STRING}


def meaningful(given: Mapping[str, str | None]) -> dict[str, str | None]:
    """The settings without those of Kafka that have no meaning here."""
    return {name: value for name, value in given.items() if name not in _MEANINGLESS}


def described(config: TopicConfig, *, documentation: bool = False, synonyms: bool = False) -> Iterator[Fields]:
    """Each setting, as DescribeConfigs and CreateTopics tell it."""
    own, values, inherited = config.overrides(), config.all(), dict(config.defaults)
    for setting in settings():
        source = _OF_TOPIC if setting.name in own else _OF_BROKER if setting.name in inherited else _DEFAULT
        value = _shown(values[setting.name])
        yield {
            "name": setting.name,
            "value": value,
            "read_only": False,
            "config_source": source,
            "is_sensitive": False,
            "synonyms": [{"name": setting.name, "value": value, "source": source}] if synonyms else [],
            "config_type": _TYPES[type(setting.default)],
            "documentation": setting.meaning if documentation else None,
        }


def described_broker(
    config: GatewayConfig, defaults: Mapping[str, object], *, documentation: bool = False, synonyms: bool = False
) -> Iterator[Fields]:
    """Each setting of the gateway, and the `defaults` of topics; none can be altered while it runs."""
    for name, value, is_default, meaning in (*gateway_settings(config), *topic_default_settings(defaults)):
        source = _DEFAULT if is_default else _OF_BROKER
        yield {
            "name": name,
            "value": value,
            "read_only": True,
            "config_source": source,
            "is_sensitive": False,
            "synonyms": [{"name": name, "value": value, "source": source}] if synonyms else [],
            "config_type": _type_of(value),
            "documentation": meaning if documentation else None,
        }


def _type_of(shown: str) -> int:
    if shown in ("true", "false"):
        return _BOOLEAN
    return _LONG if shown.lstrip("-").isdigit() else _STRING


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
