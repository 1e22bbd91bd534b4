"""Settings that administrators give single groups (Kafka's resource GROUP): kept in the root, and obeyed at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from consumer_groups import GROUP
from consumer_members import SESSION_MS, ConsumerGateway
from gateways import Wire, serving
from kio.schema.errors import ErrorCode

from distlog.gateway.config import HEARTBEAT_INTERVAL, SESSION_TIMEOUT, GroupSettings

DESCRIBE, ALTER, ALTER_ALL, LIST, HEARTBEAT = 32, 44, 33, 74, 68
OF_GROUP, OF_METRICS, OF_BROKER, OF_LOGGERS = 32, 16, 4, 8
SET, DELETE, APPEND = range(3)
E = ErrorCode


def change(name: str, value: object = None, operation: int = SET) -> dict[str, Any]:
    return {"name": name, "config_operation": operation, "value": None if value is None else str(value)}


def altered(
    wire: Wire, *changes: Mapping[str, Any], group: str = "g", kind: int = OF_GROUP, api: int = ALTER, **more: Any
) -> tuple[ErrorCode, str | None]:
    if api == ALTER_ALL:
        changes = tuple({"name": change["name"], "value": change["value"]} for change in changes)
    resource = {"resource_type": kind, "resource_name": group, "configs": changes}
    (response,) = wire.plain(api, 1, resources=[resource], **more).responses
    return response.error_code, response.error_message


def described(wire: Wire, group: str = "g", keys: list[str] | None = None) -> dict[str, tuple[str, int]]:
    resource = {"resource_type": OF_GROUP, "resource_name": group, "configuration_keys": keys}
    (response,) = wire.plain(DESCRIBE, 4, resources=[resource], include_synonyms=True).results
    assert response.error_code is E.none
    return {config.name: (config.value, config.config_source) for config in response.configs}


def listed(wire: Wire) -> list[str]:
    response = wire.plain(LIST, 1, resource_types=[OF_GROUP])
    return [resource.resource_name for resource in response.config_resources]


def test_settings_of_a_group_are_the_same_at_all_gateways_and_outlive_them(tmp_path: Path) -> None:
    settings = GroupSettings(consumer_heartbeat_interval_ms=7000)
    with serving(tmp_path, groups=settings) as first, serving(tmp_path) as other, Wire(first) as wire:
        assert described(wire) == {SESSION_TIMEOUT: ("45000", 5), HEARTBEAT_INTERVAL: ("7000", 4)}
        assert altered(wire, change(SESSION_TIMEOUT, 50_000), change(HEARTBEAT_INTERVAL, 6000)) == (E.none, None)
        with Wire(other) as elsewhere:
            assert described(elsewhere) == {SESSION_TIMEOUT: ("50000", 8), HEARTBEAT_INTERVAL: ("6000", 8)}
            assert described(elsewhere, keys=[SESSION_TIMEOUT]) == {SESSION_TIMEOUT: ("50000", 8)}
            assert described(elsewhere, "another")[SESSION_TIMEOUT] == ("45000", 5)
            assert altered(elsewhere, change(HEARTBEAT_INTERVAL, operation=DELETE)) == (E.none, None)
        assert (listed(wire), described(wire)[HEARTBEAT_INTERVAL]) == (["g"], ("7000", 4))
    with serving(tmp_path) as later, Wire(later) as wire:
        assert described(wire) == {SESSION_TIMEOUT: ("50000", 8), HEARTBEAT_INTERVAL: ("5000", 5)}
        assert altered(wire, change(HEARTBEAT_INTERVAL, 9000), api=ALTER_ALL) == (E.none, None)
        assert described(wire) == {SESSION_TIMEOUT: ("45000", 5), HEARTBEAT_INTERVAL: ("9000", 8)}
        assert altered(wire, api=ALTER_ALL) == (E.none, None)
        assert listed(wire) == []


_LEAST, _MOST = (
    "must be greater than or equal to group.consumer.min",
    "must be less than or equal to group.consumer.max",
)
REFUSED = [
    ([change(SESSION_TIMEOUT, 44_999)], E.invalid_config, f"{SESSION_TIMEOUT} {_LEAST}.session.timeout.ms"),
    ([change(SESSION_TIMEOUT, 60_001)], E.invalid_config, f"{SESSION_TIMEOUT} {_MOST}.session.timeout.ms"),
    ([change(HEARTBEAT_INTERVAL, 0)], E.invalid_config, f"{HEARTBEAT_INTERVAL} {_LEAST}.heartbeat"),
    ([change(HEARTBEAT_INTERVAL, 70_001)], E.invalid_config, f"{HEARTBEAT_INTERVAL} {_MOST}.heartbeat"),
    ([change(HEARTBEAT_INTERVAL, 45_000)], E.invalid_config, f"{SESSION_TIMEOUT} must be greater than"),
    ([change(SESSION_TIMEOUT, "5.5")], E.invalid_config, "Not a number of type INT"),
    ([change(SESSION_TIMEOUT, 1 << 40)], E.invalid_config, "Not a number of type INT"),
    ([change(SESSION_TIMEOUT)], E.invalid_request, "Null value not supported"),
    ([change(SESSION_TIMEOUT, 1, APPEND)], E.invalid_config, "Can't APPEND to key"),
    ([change(SESSION_TIMEOUT, 1, 9)], E.invalid_request, "Unknown operation"),
    ([change(SESSION_TIMEOUT, 50_000)] * 2, E.invalid_request, "duplicate config keys"),
    ([change("nosuch", 1)], E.invalid_config, "Unknown group config name: nosuch"),
    ([change("share.session.timeout.ms", 50_000)], E.invalid_config, "only consumer groups, no share groups"),
]


def test_invalid_settings_have_the_error_messages_of_a_broker(tmp_path: Path) -> None:
    settings = GroupSettings(consumer_max_heartbeat_interval_ms=70_000)
    with serving(tmp_path, groups=settings) as gateway, Wire(gateway) as wire:
        for wrong, code, text in REFUSED:
            actual, reason = altered(wire, *wrong)
            assert (actual, text in (reason or "")) == (code, True), (wrong, reason)
        assert altered(wire, change(SESSION_TIMEOUT, 50_000), group="")[0] is E.invalid_request
        assert altered(wire, change(SESSION_TIMEOUT, 50_000), validate_only=True) == (E.none, None)
        assert altered(wire, change("nosuch", operation=DELETE)) == (E.none, None)
        assert listed(wire) == []


def test_a_member_gets_the_heartbeat_interval_of_its_group(tmp_path: Path) -> None:
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        altered(wire, change(HEARTBEAT_INTERVAL, 6000))
        fields = {"member_id": "m", "subscribed_topic_names": ["clicks"], "topic_partitions": []}
        fields |= {"rebalance_timeout": 60_000, "subscribed_topic_regex": None, "instance_id": None}
        beats = [wire.plain(HEARTBEAT, 1, group_id=group, **fields) for group in ("g", "another")]
    assert [beat.heartbeat_interval.total_seconds() for beat in beats] == [6, 5]


def test_a_member_has_the_session_of_its_group_from_its_next_heartbeat_on() -> None:
    gateway = ConsumerGateway()
    first, two = gateway.consumer("one"), gateway.consumer("two")
    first.goes_on()
    gateway.groups.configs.set({(GROUP, SESSION_TIMEOUT): SESSION_MS + 1000})
    two.goes_on()
    gateway.at_time(SESSION_MS)
    assert list(gateway.group.members) == ["two"]
    gateway.at_time(1000)
    assert not gateway.group.members


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (OF_BROKER, "0", "The settings of a gateway are read-only"),
        (OF_BROKER, "", "The settings of a gateway are read-only"),
        (OF_METRICS, "m", "takes no metrics of clients"),
        (OF_LOGGERS, "0", "no dynamic log levels"),
        (99, "x", "Unknown resource type 99"),
    ],
)
def test_resources_without_settings_are_refused(tmp_path: Path, kind: int, name: str, text: str) -> None:
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        code, reason = altered(wire, change("interval.ms", 1000), group=name, kind=kind)
    assert (code, text in (reason or "")) == (E.invalid_request, True)


def test_there_are_no_metrics_of_clients_to_list_or_to_describe(tmp_path: Path) -> None:
    resource = {"resource_type": OF_METRICS, "resource_name": "m", "configuration_keys": None}
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        (response,) = wire.plain(DESCRIBE, 4, resources=[resource]).results
        assert (response.error_code, response.configs) == (E.none, ())
        assert wire.plain(LIST, 0).config_resources == ()
        assert wire.plain(LIST, 1, resource_types=[99]).error_code is E.unsupported_version
