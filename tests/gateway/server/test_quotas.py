"""Kafka's quotas: which quota applies, how long a client is throttled, and the requests that set and list them."""

from __future__ import annotations

import datetime
import math
import time
import tracemalloc
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from gateways import FETCH, NO_WAIT, PRODUCE, Wire, fetch_fields, framed, produce_fields, producing, request, serving
from gateways import frequent_polls as frequent_polls
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

import distlog
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.gateway.config import GatewayConfig, GroupConfigs, GroupSettings
from distlog.gateway.root_records import DynamicConfigs, decode_config
from distlog.gateway.server.fairness import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, Entity, Quotas
from distlog.gateway.topics.metadata_cache import MetadataCache

DESCRIBE, ALTER = 48, 49
DATA = batch([record(0, value=b"x" * 10_000)])


Parts = tuple[tuple[str, str | None], ...]


class Counted:
    def __init__(self, limits: dict[Parts, float], name: str = PRODUCER_BYTE_RATE) -> None:
        self.now_s = 0.0
        self.quotas = Quotas(lambda: self.now_s)
        self.quotas.set({Entity.of(dict(parts)): {name: limit} for parts, limit in limits.items()})


def test_the_most_specific_quota_applies_as_in_kafka() -> None:
    parts = [
        (("client-id", "app"), ("user", "alice")),
        (("client-id", None), ("user", "alice")),
        (("user", "alice"),),
        (("client-id", "app"), ("user", None)),
        (("client-id", None), ("user", None)),
        (("user", None),),
        (("client-id", "app"),),
        (("client-id", None),),
    ]
    for first in range(len(parts)):
        counted = Counted({part: 1000.0 * (number + 1) for number, part in enumerate(parts) if number >= first})
        # twice a second's bytes: one second is open, and one must be waited for
        counted.quotas.note("alice", "app", PRODUCER_BYTE_RATE, 2000 * (first + 1))
        assert counted.quotas.wait_s("alice", "app") == pytest.approx(1), parts[first]


def test_a_user_shares_its_quota_over_client_ids_and_a_client_id_over_users() -> None:
    counted = Counted({(("user", "alice"),): 1000.0})
    counted.quotas.note("alice", "a", PRODUCER_BYTE_RATE, 1500)
    assert counted.quotas.wait_s("alice", "b") == pytest.approx(0.5)
    assert counted.quotas.wait_s("bob", "a") == 0
    counted = Counted({(("client-id", None),): 1000.0})
    counted.quotas.note("alice", "a", PRODUCER_BYTE_RATE, 1500)
    assert counted.quotas.wait_s("bob", "a") == pytest.approx(0.5)
    assert counted.quotas.wait_s("alice", "b") == 0


def test_a_client_that_obeys_throttling_has_its_rate() -> None:
    counted, sent = Counted({(("user", None),): 1000.0}), 0
    while counted.now_s < 100:
        counted.quotas.note("alice", "", PRODUCER_BYTE_RATE, 700)
        sent += 700
        counted.now_s += counted.quotas.wait_s("alice", "") + 0.01
    assert sent / counted.now_s == pytest.approx(1000, rel=0.03)


def test_the_time_of_handlers_is_in_percent_of_one_and_its_wait_is_bounded() -> None:
    counted = Counted({(("user", "alice"),): 50.0}, REQUEST_PERCENTAGE)
    counted.quotas.note("alice", "", REQUEST_PERCENTAGE, 0.75)
    assert counted.quotas.wait_s("alice", "") == pytest.approx(0.5)
    counted.quotas.note("alice", "", REQUEST_PERCENTAGE, 100)
    assert counted.quotas.wait_s("alice", "") == 1


def test_the_use_of_long_client_ids_takes_little_memory() -> None:
    counted = Counted({(("client-id", None),): 1000.0})
    tracemalloc.start()
    for number in range(2000):
        counted.quotas.note("alice", f"{number}" + "x" * 32_000, PRODUCER_BYTE_RATE, 1000.0)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 8 << 20


def test_invalid_records_are_refused() -> None:
    for key, value in (
        (b"", b"1"),
        (b"{}", b"1"),
        (b'{"entity": {"user": "a"}, "quota": "other"}', b"1"),
        (b'{"entity": {}, "quota": "producer_byte_rate"}', b"1"),
        (b'{"entity": {"user": "a"}, "quota": "producer_byte_rate"}', b"[]"),
        (b'{"entity": {"user": "a"}, "quota": "producer_byte_rate"}', b"-1"),
        (b"null", None),
    ):
        with pytest.raises(ValueError, match=r".+"):
            decode_config(key, value)


def altered(wire: Wire, entity: dict[str, str | None], *, validate_only: bool = False, **values: float | None) -> Any:
    schema = import_module("kio.schema.alter_client_quotas.v1.request")
    names = tuple(schema.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items())
    ops = tuple(schema.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items())
    entries = (schema.EntryData(entity=names, ops=ops),)
    (response,) = wire.ask(ALTER, 1, entries=entries, validate_only=validate_only).entries
    return response.error_code


def described(wire: Wire, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    schema = import_module("kio.schema.describe_client_quotas.v1.request")
    kind = schema.ComponentData
    filters = tuple(
        kind(entity_type=entity_type, match_type=number, match=name) for entity_type, number, name in components
    )
    response = wire.ask(DESCRIBE, 1, components=filters, strict=strict)
    if response.error_code is not ErrorCode.none:
        return response.error_code
    return [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in response.entries
    ]


def test_quotas_are_set_shown_and_removed_and_outlive_a_gateway(root: Path) -> None:
    with serving(root) as gateway, Wire(gateway) as wire:
        assert described(wire) == []
        assert altered(wire, {"user": "alice"}, producer_byte_rate=1000.0, request_percentage=12.5) is ErrorCode.none
        assert altered(wire, {"user": None, "client-id": "app"}, consumer_byte_rate=2000.0) is ErrorCode.none
        assert altered(wire, {"user": "bob"}, validate_only=True, producer_byte_rate=5.0) is ErrorCode.none
    alice = {"user": "alice"}, {"producer_byte_rate": 1000.0, "request_percentage": 12.5}
    app = {"client-id": "app", "user": None}, {"consumer_byte_rate": 2000.0}
    with serving(root) as gateway, Wire(gateway) as wire:
        assert described(wire) == [alice, app]
        assert described(wire, ("user", 0, "alice")) == [alice]
        assert described(wire, ("user", 1, None)) == [app]
        assert described(wire, ("user", 1, None), strict=True) == []
        assert described(wire, ("user", 2, None)) == [alice, app]
        assert described(wire, ("client-id", 0, "other")) == []
        # addresses have no quotas, and a filter cannot combine another type with these
        assert described(wire, ("ip", 2, None)) == described(wire, ("ip", 0, "10.0.0.1")) == []
        for wrong in ([("ip", 2, None), ("user", 2, None)], [("user", 2, None)] * 2, [("user", 3, None)]):
            assert described(wire, *wrong) is ErrorCode.invalid_request
        for wrong in ([("user", 0, None)], [("nosuch", 2, None)]):
            assert described(wire, *wrong) is ErrorCode.invalid_request
        assert altered(wire, {"user": "alice"}, producer_byte_rate=None, request_percentage=None) is ErrorCode.none
        assert described(wire) == [app]


def test_invalid_quotas_are_refused(root: Path) -> None:
    with serving(root) as gateway, Wire(gateway) as wire:
        for entity, name, value in (
            ({"user": "a"}, "producer_byte_rate", 0.0),
            ({"user": "a"}, "producer_byte_rate", 1.5),
            ({"user": "a"}, "producer_byte_rate", float("nan")),
            ({"user": "a"}, "producer_byte_rate", float("inf")),
            ({"user": "a"}, "connection_creation_rate", 1.0),
            ({"ip": "::1"}, "connection_creation_rate", 1.0),
            ({"ip": None}, "connection_creation_rate", 1.0),
            ({"user": ""}, "producer_byte_rate", 1.0),
            ({}, "producer_byte_rate", 1.0),
        ):
            assert altered(wire, entity, **{name: value}) is ErrorCode.invalid_request, (entity, name, value)  # type: ignore[arg-type]
        assert described(wire) == []


@pytest.mark.usefixtures("frequent_polls")
def test_another_gateway_of_the_root_has_the_same_quotas(root: Path) -> None:
    with serving(root) as first, serving(root) as other, Wire(first) as wire, Wire(other) as second:
        assert altered(wire, {"user": "alice"}, producer_byte_rate=1000.0) is ErrorCode.none
        assert described(second) == [({"user": "alice"}, {"producer_byte_rate": 1000.0})]
        assert altered(second, {"user": "alice"}, producer_byte_rate=None) is ErrorCode.none
        assert described(wire) == []


def test_quotas_end_if_their_tombstone_was_cleaned(root: Path) -> None:
    def quotas_of_a_gateway() -> DynamicConfigs:
        metadata = MetadataCache(Storage(str(root)), {}, now_ms, GatewayConfig())
        return DynamicConfigs(metadata, Quotas(lambda: 0.0), GroupConfigs(GroupSettings()), now_ms)

    first, other, alice = quotas_of_a_gateway(), quotas_of_a_gateway(), Entity.of({"user": "alice"})
    first.alter_quotas(alice, {PRODUCER_BYTE_RATE: 1000.0})
    other.refresh()
    assert other.quotas == {alice: {PRODUCER_BYTE_RATE: 1000.0}}
    first.alter_quotas(alice, {PRODUCER_BYTE_RATE: None})
    topic = distlog.open(str(root / "__dynamic_configs"))
    topic.alter_config({"cleanup.policy": "delete"})
    topic.delete_records({0: -1})
    other.refresh()
    assert other.quotas == {}


def is_throttled(response: Any, size: int) -> bool:
    longest = datetime.timedelta(seconds=math.ceil(1000 * (size / 5000 - 1)) / 1000)
    return bool(datetime.timedelta(0) < response.throttle_time <= longest)


def test_a_producer_above_its_quota_is_throttled(root: Path) -> None:
    with serving(root) as gateway, Wire(gateway) as wire:
        assert altered(wire, {"user": "ANONYMOUS"}, producer_byte_rate=5000.0) is ErrorCode.none
        response, told_s = wire.ask(PRODUCE, 9, **produce_fields(9, [("clicks", 0, DATA)])), time.monotonic()
        assert is_throttled(response, len(DATA))
        assert producing(wire, DATA).base_offset == 1
        assert time.monotonic() - told_s > response.throttle_time.total_seconds() - 0.1


def test_a_consumer_above_its_quota_is_throttled(root: Path) -> None:
    with serving(root) as gateway, Wire(gateway) as wire, Wire(gateway) as other:
        producing(wire, DATA)
        assert altered(wire, {"client-id": "a-test"}, consumer_byte_rate=5000.0) is ErrorCode.none
        response, told_s = wire.ask(FETCH, 12, **fetch_fields(12, [("clicks", 0, 0)])), time.monotonic()
        (sent,) = [partition.records for topic in response.responses for partition in topic.partitions]
        assert is_throttled(response, len(sent))
        fetch = request(FETCH, 12, 1, **fetch_fields(12, [("clicks", 0, 0)]))
        other.socket.sendall(framed(fetch.replace(b"a-test", b"others")))
        assert other.answer(FETCH, 12, 1).throttle_time == NO_WAIT
        wire.ask(FETCH, 12, **fetch_fields(12, [("clicks", 0, 0)]))
        assert time.monotonic() - told_s > response.throttle_time.total_seconds() - 0.1


def test_the_topic_of_quotas_is_the_gateways_own(root: Path) -> None:
    with serving(root) as gateway, Wire(gateway) as wire:
        assert altered(wire, {"user": "alice"}, producer_byte_rate=1000.0) is ErrorCode.none
        response = producing(wire, DATA, topic="__dynamic_configs")
        assert response.error_code is ErrorCode.invalid_topic_exception
        (dropped,) = wire.ask(
            20, 5, topic_names=("__dynamic_configs",), timeout=datetime.timedelta(seconds=1)
        ).responses
        assert dropped.error_code is ErrorCode.invalid_topic_exception
