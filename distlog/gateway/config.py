"""The settings of a gateway and of single groups, by Kafka's names where Kafka has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from distlog.core.arrays import MAX_INT
from distlog.core.commits.deduplication import EXPIRATION_MS
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidConfigError
from distlog.core.log_manager.broker_config import (
    SAME_MEANING,
    TIMES,
    broker_setting,
    given_values,
    settings_of,
    settings_with_texts,
)
from distlog.gateway.security.acls import check_principal

_integer = partial(broker_setting, least=1, most=MAX_INT)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The broker's settings of groups, by Kafka's names (`group.initial.rebalance.delay.ms`, ...) and defaults."""

    initial_rebalance_delay_ms: int = broker_setting(
        "group.initial.rebalance.delay.ms", 3000, "how long a new group waits for more members", most=MAX_INT
    )
    min_session_timeout_ms: int = broker_setting(
        "group.min.session.timeout.ms", 6000, "the least that a member's `session.timeout.ms` may be", most=MAX_INT
    )
    max_session_timeout_ms: int = broker_setting(
        "group.max.session.timeout.ms",
        1_800_000,
        "the most that a member's `session.timeout.ms` may be",
        most=MAX_INT,
    )
    max_size: int = _integer("group.max.size", MAX_INT, "members of a group")
    consumer_session_timeout_ms: int = _integer(
        "group.consumer.session.timeout.ms", 45_000, "how long a member with `group.protocol=consumer` may be silent"
    )
    consumer_min_session_timeout_ms: int = _integer(
        "group.consumer.min.session.timeout.ms", 45_000, "the least `consumer.session.timeout.ms` of a group"
    )
    consumer_max_session_timeout_ms: int = _integer(
        "group.consumer.max.session.timeout.ms", 60_000, "the most `consumer.session.timeout.ms` of a group"
    )
    consumer_heartbeat_interval_ms: int = _integer(
        "group.consumer.heartbeat.interval.ms", 5000, "how often a member of the newer protocol sends a heartbeat"
    )
    consumer_min_heartbeat_interval_ms: int = _integer(
        "group.consumer.min.heartbeat.interval.ms", 5000, "the least `consumer.heartbeat.interval.ms` of a group"
    )
    consumer_max_heartbeat_interval_ms: int = _integer(
        "group.consumer.max.heartbeat.interval.ms", 15_000, "the most `consumer.heartbeat.interval.ms` of a group"
    )


#: Kafka's authorizer class for ACLs. Here, it enables the gateway's ACLs.
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_AUTHORIZERS = ("", STANDARD_AUTHORIZER, "kafka.security.authorizer.AclAuthorizer")
#: Matches a comma that separates two users. Another comma may be a part of a user's name.
_COMMA = re.compile(r",\s*User:")


@dataclass(frozen=True, slots=True, kw_only=True)
class AclSettings:
    """The settings of ACLs, by Kafka's names and defaults. Without an `authorizer`, ACLs are disabled."""

    authorizer: str = broker_setting(
        "authorizer.class.name", "", f"`{STANDARD_AUTHORIZER}`: ACLs decide what clients may do; as `--acls`"
    )
    super_users: str = broker_setting(
        "super.users", "", "principals that may do everything, as `User:alice;User:bob`"
    )
    everyone_if_none: bool = broker_setting(
        "allow.everyone.if.no.acl.found", False, "a resource without ACLs is open to all"
    )

    def __post_init__(self) -> None:
        if self.authorizer not in _AUTHORIZERS:
            text = f"authorizer.class.name must be empty, or one of {', '.join(_AUTHORIZERS[1:])}"
            raise InvalidConfigError(text, found=self.authorizer)
        if _COMMA.search(self.super_users):
            text = "super.users must be separated by semicolons, not by commas"
            raise InvalidConfigError(text, found=self.super_users)
        _ = self.super_principals  # raises for a wrong principal

    @property
    def super_principals(self) -> frozenset[str]:
        return frozenset(check_principal(name.strip()) for name in self.super_users.split(";") if name.strip())


_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Limits and defaults of a gateway. Times are in ms, sizes in bytes. Some fields are settings of Kafka.

    `advertised` is the host and port for clients; by default, the address that each client has connected to.
    `fetch_memory_bytes` bounds the records in responses that clients have not received yet. To send a request or to
    receive a response, a client has in all `request_timeout_ms` and a second for each MiB; a single pause must be
    shorter than `request_timeout_ms`. `authentication_timeout_ms` bounds the TLS handshake and SASL together. Half of
    `open_files`, the limit of this process, may be connections. On an object store, appends within `linger_ms`, or up
    to `linger_bytes`, share a commit. `process` is the number of this process among `processes` with the same
    settings: they share the memory equally, and have consecutive ids.
    """

    advertised: tuple[str, int] | None = None
    process: int = 0
    processes: int = 1
    node_id: int | None = broker_setting(
        "node.id broker.id", None, "the id of this gateway; -1 means the lowest free id", most=999_999_999
    )
    broker_session_timeout_ms: int = broker_setting(
        "broker.session.timeout.ms",
        9000,
        "a gateway without a heartbeat for this time counts as dead",
        least=500,
        most=3_600_000,
    )
    num_io_threads: int = broker_setting("num.io.threads", 8, "threads that handle requests", least=1, most=1000)
    queued_max_request_bytes: int = broker_setting(
        "queued.max.request.bytes", 512 << 20, "bytes of all requests that are received or handled", least=1 << 20
    )
    socket_request_max_bytes: int = _integer("socket.request.max.bytes", 100 << 20, "largest request")
    max_connections: int = broker_setting(
        "max.connections", 2000, "connections, including those in the TLS handshake", most=MAX_INT
    )
    max_connections_per_ip: int = broker_setting(
        "max.connections.per.ip", 1000, "connections from one address, or one IPv6 network (/64)", most=MAX_INT
    )
    open_files: int | None = None
    connections_max_idle_ms: int = broker_setting(
        "connections.max.idle.ms", 600_000, "an idle connection is closed after this", least=1
    )
    authentication_timeout_ms: int = 10_000
    failed_authentication_delay_ms: int = broker_setting(
        "connection.failed.authentication.delay.ms",
        1000,
        "delay of the response to a failed authentication",
        most=MAX_INT,
    )
    sasl_server_max_receive_size: int = broker_setting(
        "sasl.server.max.receive.size", 512 << 10, "largest request before authentication", most=MAX_INT
    )
    request_timeout_ms: int = 30_000
    fetch_max_bytes: int = broker_setting(
        "fetch.max.bytes", 55 << 20, "records in a response", least=1024, most=MAX_INT
    )
    fetch_memory_bytes: int = 256 << 20
    auto_create_topics: bool = broker_setting(
        "auto.create.topics.enable", False, "create a topic when a client asks for it; as `--auto-create-topics`"
    )
    num_partitions: int = _integer("num.partitions", 1, "partitions of a topic that is created without a number")
    linger_ms: int = 250
    linger_bytes: int = 8 << 20
    metadata_max_age_ms: int = 1000
    offsets_retention_ms: int = broker_setting(
        "offsets.retention.minutes",
        7 * 86_400_000,
        "how long the committed offsets of a group without members are kept",
        least=1,
        most=MAX_INT,
        unit=_MINUTE_MS,
    )
    transaction_max_timeout_ms: int = _integer(
        "transaction.max.timeout.ms", 900_000, "the most that a client's transaction.timeout.ms may be"
    )
    producer_id_expiration_ms: int = _integer(
        "producer.id.expiration.ms", EXPIRATION_MS, "how long a silent producer is remembered"
    )
    principal_mapping_rules: str = broker_setting(
        "ssl.principal.mapping.rules", "DEFAULT", "how a certificate's subject becomes the user's name"
    )
    groups: GroupSettings = field(default_factory=GroupSettings)
    acls: AclSettings = field(default_factory=AclSettings)

    @property
    def wanted_id(self) -> int | None:
        """The broker id of this process. None, which a setting of -1 becomes, means the lowest free id."""
        return None if self.node_id is None else self.node_id + self.process

    @property
    def request_memory_limit(self) -> int:
        return self.queued_max_request_bytes // self.processes

    @property
    def fetch_memory_limit(self) -> int:
        return self.fetch_memory_bytes // self.processes

    @property
    def connection_limit(self) -> int:
        """The most connections: half of the open files are left for logs."""
        return self.max_connections if self.open_files is None else min(self.max_connections, self.open_files // 2)


#: By topic setting: the broker setting for its default, in the same unit. TIMES has several broker settings for each
#: time, with their units: the first one is in ms.
_BROKER_NAMES = {topic: broker for broker, topic in SAME_MEANING.items()}
_BROKER_NAMES |= {topic: brokers[0][0] for topic, brokers in TIMES.items()}


class ShownSetting(NamedTuple):
    name: str
    value: str
    is_default: bool
    meaning: str


def with_settings(config: GatewayConfig, settings: Mapping[str, object]) -> GatewayConfig:
    """Return `config` with those `settings` that a gateway has. Others are ignored. Raises InvalidConfigError."""
    groups = replace(config.groups, **given_values(GroupSettings, settings))
    acls = replace(config.acls, **given_values(AclSettings, settings))
    # a file of settings without an authorizer does not disable --acls
    acls = replace(acls, authorizer=acls.authorizer or config.acls.authorizer)
    return replace(config, groups=groups, acls=acls, **given_values(GatewayConfig, settings))


def gateway_settings(config: GatewayConfig) -> list[ShownSetting]:
    values = chain(settings_with_texts(config), settings_with_texts(config.groups), settings_with_texts(config.acls))
    return sorted(ShownSetting(spec.name, value, is_default, spec.meaning) for spec, value, is_default in values)


def setting_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def topic_default_settings(defaults: Mapping[str, object]) -> Iterator[ShownSetting]:
    """Yield the broker settings for the defaults of topics. The user has set `defaults`, by topic setting."""
    values = TopicConfig.parse(defaults).all()
    for topic, broker in _BROKER_NAMES.items():
        meaning = f"{topic} of topics that do not set it"
        yield ShownSetting(broker, setting_text(values[topic]), topic not in defaults, meaning)


#: By Kafka's name of a group setting: the fields of GroupSettings with its default, its minimum and its maximum.
_GROUP_FIELDS = {
    f"consumer.{name}": tuple(f"consumer_{bound}{name.replace('.', '_')}" for bound in ("", "min_", "max_"))
    for name in ("session.timeout.ms", "heartbeat.interval.ms")
}
SESSION_TIMEOUT, HEARTBEAT_INTERVAL = _GROUP_FIELDS  # its keys
_GROUP_SETTINGS = settings_of(GroupSettings)
_OTHER_KINDS = ("share.", "streams.")


class GroupConfigs:
    """The broker's settings for all groups, and overrides of single groups. For many threads."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self._overrides: Mapping[str, Mapping[str, int]] = {}
        self._by_group: Mapping[str, GroupSettings] = {}

    def of(self, group: str) -> GroupSettings:
        return self._by_group.get(group, self.settings)

    @property
    def names(self) -> list[str]:
        """The groups that have overrides. They need not exist."""
        return sorted(self._overrides)

    def overrides(self, group: str) -> Mapping[str, int]:
        return self._overrides.get(group, {})

    def all_settings(self, group: str) -> Iterator[ShownSetting]:
        """The settings of a group. A setting with Kafka's default value is shown as a default."""
        values, defaults = self.of(group), GroupSettings()
        for name, (attribute, _, _) in _GROUP_FIELDS.items():
            value = getattr(values, attribute)
            is_default = value == getattr(defaults, attribute)
            yield ShownSetting(name, str(value), is_default, _GROUP_SETTINGS[attribute].meaning)

    def set(self, values: Mapping[tuple[str, str], int]) -> None:
        overrides: dict[str, dict[str, int]] = {}
        for (group, name), value in values.items():
            overrides.setdefault(group, {})[name] = value
        self._by_group = {group: self._with_overrides(own_overrides) for group, own_overrides in overrides.items()}
        self._overrides = overrides

    def parse_changes(self, group: str, changes: Mapping[str, str | None]) -> dict[str, int | None]:
        """Parse changes. None removes a setting. Raises InvalidConfigError with Kafka's texts."""
        # the removal of an unknown name has no effect; `_group_number` refuses to set one
        numbers = {
            name: None if value is None else _group_number(name, value)
            for name, value in changes.items()
            if value is not None or name in _GROUP_FIELDS
        }
        new_overrides = {**self.overrides(group), **numbers}
        settings = self._with_overrides({name: value for name, value in new_overrides.items() if value is not None})
        for name, (_, min_field, max_field) in _GROUP_FIELDS.items():
            number = numbers.get(name)
            if number is not None and number < getattr(settings, min_field):
                raise InvalidConfigError(f"{name} must be greater than or equal to {_GROUP_SETTINGS[min_field].name}")
            if number is not None and number > getattr(settings, max_field):
                raise InvalidConfigError(f"{name} must be less than or equal to {_GROUP_SETTINGS[max_field].name}")
        if settings.consumer_session_timeout_ms <= settings.consumer_heartbeat_interval_ms:
            raise InvalidConfigError(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")
        return numbers

    def _with_overrides(self, overrides: Mapping[str, int]) -> GroupSettings:
        return replace(self.settings, **{_GROUP_FIELDS[name][0]: value for name, value in overrides.items()})


def _group_number(name: str, value: str) -> int:
    """Parse the value of a group's setting. Raises InvalidConfigError with Kafka's texts."""
    if name.startswith(_OTHER_KINDS):
        text = f"{name} cannot be set: this server has only consumer groups, no share groups or streams groups"
        raise InvalidConfigError(text)
    if name not in _GROUP_FIELDS:
        raise InvalidConfigError(f"Unknown group config name: {name}")
    text = value.strip()
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_INT):
        raise InvalidConfigError(f"Invalid value {text} for configuration {name}: Not a number of type INT")
    return int(text)


def decode_setting(fields: Mapping[str, Any], value: bytes | None) -> tuple[tuple[str, str], int | None]:
    """Return the group and name in a record key's `fields`, and the value, None if removed. Raises ValueError."""
    group, name = str(fields["group"]), str(fields["setting"])
    number = None if value is None else _group_number(name, value.decode())
    if number == 0:
        raise ValueError(f"{name} of the group {group} must be at least 1")
    return (group, name), number
