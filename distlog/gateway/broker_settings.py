"""Kafka's broker settings that a gateway knows, as a `server.properties` has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from distlog.core.broker_setting import given, shown
from distlog.core.config import TopicConfig
from distlog.core.log_manager.broker_config import SAME_MEANING, TIMES
from distlog.gateway.config import GatewayConfig
from distlog.gateway.group_settings import GroupSettings

#: Of each topic setting the broker's that has its unit.
_OF_TOPICS = {topic: broker for broker, topic in SAME_MEANING.items()} | {
    topic: times[0][0] for topic, times in TIMES.items()
}


class ShownSetting(NamedTuple):
    """A setting of the gateway, as it is now."""

    name: str
    value: str
    is_default: bool
    meaning: str


def with_settings(config: GatewayConfig, settings: Mapping[str, object]) -> GatewayConfig:
    """The config with Kafka's settings that it knows; others are left out. Raises InvalidConfigError."""
    groups = replace(config.groups, **given(GroupSettings, settings))
    return replace(config, groups=groups, **given(GatewayConfig, settings))


def gateway_settings(config: GatewayConfig) -> list[ShownSetting]:
    """The settings of the gateway itself, sorted by name."""
    found = chain(shown(config), shown(config.groups))
    return sorted(ShownSetting(one.name, value, is_default, one.meaning) for one, value, is_default in found)


def topic_default_settings(defaults: Mapping[str, object]) -> Iterator[ShownSetting]:
    """The broker's settings that count for topics which do not set them; `defaults` are those that were given."""
    values = TopicConfig.parse(defaults).all()
    for topic, broker in _OF_TOPICS.items():
        value = values[topic]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        yield ShownSetting(broker, text, topic not in defaults, f"{topic} of topics that do not set it")
