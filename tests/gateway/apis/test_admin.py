"""Topics and their settings through Kafka's admin clients."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from gateways import METADATA, Wire, fetching, open_topic, producing, serving
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

import distlog
from distlog.core.errors import TopicNotFoundError
from distlog.gateway.gateway_server import GatewayServer

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

DATA = batch([record(0), record(1)])


@pytest.fixture
def client(gateway: GatewayServer) -> Iterator[Any]:
    return admin.AdminClient({"bootstrap.servers": gateway.address})


def error_of(future: Any) -> str:
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        future.result(30)
    return str(raised.value.args[0].name())


def create(client: Any, name: str, partitions: int = 1, **options: Any) -> Any:
    config = options.pop("config", {})
    return client.create_topics([admin.NewTopic(name, partitions, 3, config=config)], **options)[name]


def test_a_topic_is_created_with_its_settings(gateway: GatewayServer, client: Any) -> None:
    config = {"retention.ms": "1000", "cleanup.policy": "compact", "min.insync.replicas": "2"}
    create(client, "orders", 3, config=config).result(30)
    topic = open_topic(gateway, "orders")
    assert (topic.partitions, topic.config.overrides()) == (3, {"retention.ms": "1000", "cleanup.policy": "compact"})
    with Wire(gateway) as wire:
        assert producing(wire, batch([record(0, key=b"k")]), 2, topic="orders").base_offset == 0


@pytest.mark.parametrize(
    ("name", "partitions", "config", "error"),
    [
        ("clicks", 1, {}, "TOPIC_ALREADY_EXISTS"),
        ("not/a name", 1, {}, "TOPIC_EXCEPTION"),
        ("orders", 0, {}, "INVALID_PARTITIONS"),
        ("orders", 1, {"retention.ms": "soon"}, "INVALID_CONFIG"),
        ("orders", 1, {"retention.years": "1"}, "INVALID_CONFIG"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(
    gateway: GatewayServer, client: Any, name: str, partitions: int, config: dict[str, str], error: str
) -> None:
    assert error_of(create(client, name, partitions, config=config)) == error
    assert error_of(create(client, name, partitions, config=config, validate_only=True)) == error
    with pytest.raises(TopicNotFoundError):
        open_topic(gateway, "orders")


def test_validate_only_creates_nothing(gateway: GatewayServer, client: Any) -> None:
    create(client, "orders", validate_only=True).result(30)
    with pytest.raises(TopicNotFoundError):
        open_topic(gateway, "orders")


def test_all_topics_are_listed_with_those_of_other_programs(gateway: GatewayServer, client: Any) -> None:
    create(client, "orders").result(30)
    distlog.create(f"{gateway.root}/by-a-program", partitions=4)
    actual = client.list_topics(timeout=30)
    assert {name: len(topic.partitions) for name, topic in actual.topics.items()} == {
        "__consumer_offsets": 50,
        "__transaction_state": 50,
        "by-a-program": 4,
        "clicks": 2,
        "orders": 1,
    }
    assert [(broker.id, f"{broker.host}:{broker.port}") for broker in actual.brokers.values()] == [
        (0, gateway.address)
    ]


def test_a_deleted_topic_can_be_created_again(gateway: GatewayServer, client: Any) -> None:
    with Wire(gateway) as wire:
        producing(wire, DATA)
        client.delete_topics(["clicks"])["clicks"].result(30)
        assert producing(wire, DATA).error_code is ErrorCode.unknown_topic_or_partition
        assert "clicks" not in client.list_topics(timeout=30).topics
        create(client, "clicks").result(30)
        assert producing(wire, DATA).base_offset == 0
    assert error_of(client.delete_topics(["none"])["none"]) == "UNKNOWN_TOPIC_OR_PART"


def test_partitions_are_only_added(gateway: GatewayServer, client: Any) -> None:
    client.create_partitions([admin.NewPartitions("clicks", 4)])["clicks"].result(30)
    with Wire(gateway) as wire:
        assert producing(wire, DATA, 3).base_offset == 0
    assert open_topic(gateway).end_offsets() == {0: 0, 1: 0, 2: 0, 3: 2}
    assert error_of(client.create_partitions([admin.NewPartitions("clicks", 4)])["clicks"]) == "INVALID_PARTITIONS"


def test_settings_are_described_and_altered(gateway: GatewayServer, client: Any) -> None:
    resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, "clicks")
    previous = client.describe_configs([resource])[resource].result(30)
    assert (previous["retention.ms"].value, previous["retention.ms"].is_default) == ("604800000", True)
    change = admin.AlterConfigOpType
    resource.add_incremental_config(admin.ConfigEntry("retention.ms", "5", incremental_operation=change.SET))
    resource.add_incremental_config(
        admin.ConfigEntry("cleanup.policy", "compact", incremental_operation=change.APPEND)
    )
    client.incremental_alter_configs([resource])[resource].result(30)
    after = client.describe_configs([resource])[resource].result(30)
    assert (after["retention.ms"].value, after["retention.ms"].is_default) == ("5", False)
    assert open_topic(gateway).config.cleanup_policy == "delete,compact"
    resource.incremental_configs = [
        admin.ConfigEntry("retention.ms", None, incremental_operation=change.DELETE),
        admin.ConfigEntry("cleanup.policy", "compact", incremental_operation=change.SUBTRACT),
    ]
    client.incremental_alter_configs([resource])[resource].result(30)
    assert open_topic(gateway).config.overrides() in ({}, {"cleanup.policy": "delete"})


def test_all_settings_are_replaced_as_older_programs_do(gateway: GatewayServer, client: Any) -> None:
    topic, kind = open_topic(gateway), admin.ConfigResource.Type.TOPIC
    sent = import_module("kio.schema.alter_configs.v2.request")
    topic.alter_config({"retention.ms": "5", "segment.bytes": "2000000"})
    settings = {"retention.ms": "7", "unclean.leader.election.enable": "false"}
    resource = admin.ConfigResource(kind, "clicks", set_config=settings)
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        client.alter_configs([resource])[resource].result(30)
    assert topic.refresh().config.overrides() == {"retention.ms": "7"}
    with Wire(gateway) as wire:
        for value, code in (
            (None, ErrorCode.invalid_request),
            ("soon", ErrorCode.invalid_config),
            ("9", ErrorCode.none),
        ):
            setting = sent.AlterableConfig(name="retention.ms", value=value)
            resources = (sent.AlterConfigsResource(resource_type=2, resource_name="clicks", configs=(setting,)),)
            (actual,) = wire.ask(33, 2, resources=resources, validate_only=True).responses
            assert actual.error_code is code
    assert topic.refresh().config.overrides() == {"retention.ms": "7"}


def test_a_bad_setting_changes_nothing(gateway: GatewayServer, client: Any) -> None:
    resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, "clicks")
    entry = admin.ConfigEntry("retention.ms", "soon", incremental_operation=admin.AlterConfigOpType.SET)
    resource.add_incremental_config(entry)
    assert error_of(client.incremental_alter_configs([resource])[resource]) == "INVALID_CONFIG"
    assert open_topic(gateway).config.overrides() == {}


def test_the_cluster_is_this_gateway(gateway: GatewayServer, client: Any) -> None:
    cluster = client.describe_cluster().result(30)
    assert [(node.id, node.host, node.port) for node in cluster.nodes] == [(0, "127.0.0.1", gateway.port)]
    assert (cluster.controller.id, cluster.cluster_id) == (0, gateway.broker.cluster_id)


def test_records_are_deleted_up_to_an_offset(gateway: GatewayServer, client: Any) -> None:
    part = confluent_kafka.TopicPartition
    with Wire(gateway) as wire:
        for _ in range(3):
            producing(wire, DATA)
        (future,) = client.delete_records([part("clicks", 0, 3)]).values()
        assert future.result(30).low_watermark == 3
        assert fetching(wire, 2).error_code is ErrorCode.offset_out_of_range
        assert fetching(wire, 3).log_start_offset == 3
    (future,) = client.delete_records([part("clicks", 0, 7)]).values()
    assert error_of(future) == "OFFSET_OUT_OF_RANGE"


def test_offsets_are_listed_by_the_admin_client(gateway: GatewayServer, client: Any) -> None:
    part = confluent_kafka.TopicPartition("clicks", 0)
    with Wire(gateway) as wire:
        producing(wire, DATA)
    actual = {
        name: client.list_offsets({part: spec})[part].result(30).offset
        for name, spec in (("first", admin.OffsetSpec.earliest()), ("end", admin.OffsetSpec.latest()))
    }
    assert actual == {"first": 0, "end": 2}


def test_kafka_pythons_admin_client_works(gateway: GatewayServer) -> None:
    kafka = pytest.importorskip("kafka")
    with Wire(gateway) as wire:
        producing(wire, DATA)
    client = kafka.KafkaAdminClient(bootstrap_servers=gateway.address)
    try:
        assert "clicks" in client.list_topics()
        assert gateway.root in str(client.describe_log_dirs())
    finally:
        client.close()


@pytest.mark.parametrize("version", range(13))
def test_each_version_of_metadata_reports_unknown_topics(gateway: GatewayServer, version: int) -> None:
    from importlib import import_module

    schema = import_module(f"kio.schema.metadata.v{version}.request")
    more = {"topic_id": None} if version >= 10 else {}
    topics = tuple(schema.MetadataRequestTopic(name=name, **more) for name in ("clicks", "none"))
    requested: dict[str, Any] = {"topics": topics}
    if version >= 8:
        requested["include_topic_authorized_operations"] = False
    if 8 <= version <= 10:
        requested["include_cluster_authorized_operations"] = False
    with Wire(gateway) as wire:
        response = wire.ask(METADATA, version, **requested)
    assert {topic.name: (topic.error_code.value, len(topic.partitions)) for topic in response.topics} == {
        "clicks": (0, 2),
        "none": (3, 0),
    }


@pytest.mark.parametrize("version", [10, 11, 12])
def test_each_version_of_metadata_reports_unknown_ids(gateway: GatewayServer, version: int) -> None:
    schema = import_module(f"kio.schema.metadata.v{version}.request")
    requested: dict[str, Any] = {
        "topics": (schema.MetadataRequestTopic(name=None, topic_id=uuid.UUID(int=7)),),
        "include_topic_authorized_operations": False,
    }
    if version == 10:
        requested["include_cluster_authorized_operations"] = False
    with Wire(gateway) as wire:
        (topic,) = wire.ask(METADATA, version, **requested).topics
    assert (topic.error_code, topic.name) == (ErrorCode.unknown_topic_id, None if version == 12 else "")


def test_metadata_creates_a_topic_only_if_allowed(tmp_path: Path) -> None:
    with serving(tmp_path, auto_create_topics=True) as gateway:
        client = admin.AdminClient({"bootstrap.servers": gateway.address, "allow.auto.create.topics": True})
        assert len(client.list_topics("orders", timeout=30).topics["orders"].partitions) == 1
        assert open_topic(gateway, "orders").partitions == 1


def test_settings_of_the_gateway_have_their_sources(tmp_path: Path) -> None:
    settings = {"max.connections.per.ip": "500", "log.retention.hours": "2"}
    with GatewayServer(str(tmp_path), port=0, settings=settings) as gateway:
        client = admin.AdminClient({"bootstrap.servers": gateway.address})
        resource = admin.ConfigResource(admin.ConfigResource.Type.BROKER, "0")
        actual = client.describe_configs([resource])[resource].result(30)
        with Wire(gateway) as wire:
            (refused,) = wire.ask(32, 4, **_describing("1")).results
            (changed,) = wire.ask(32, 4, **_describing("")).results
    reply = {name: (setting.value, setting.is_default, setting.is_read_only) for name, setting in actual.items()}
    assert reply["max.connections.per.ip"] == ("500", False, True)
    assert reply["log.retention.ms"] == ("7200000", False, True)
    assert reply["message.max.bytes"] == ("1048588", True, True)
    assert reply["group.max.size"] == (str(2**31 - 1), True, True)
    assert refused.error_code is ErrorCode.invalid_request
    assert (changed.error_code, changed.configs) == (ErrorCode.none, ())


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_the_listener_setting_has_the_clients_address(tmp_path: Path, version: int) -> None:
    requested = _describing("0", version, ("advertised.listeners",)) | {"include_synonyms": True}
    codes = []
    for advertised in (None, ("log.example.org", 9092), ("fd00::7", 9092)):
        with serving(tmp_path, advertised=advertised) as gateway, Wire(gateway) as wire:
            (result,) = wire.ask(32, version, **requested).results
            (first,) = result.configs
            assert (result.error_code, first.name, first.read_only) == (ErrorCode.none, "advertised.listeners", True)
            assert [(synonym.name, synonym.value) for synonym in first.synonyms] == [(first.name, first.value)]
            codes.append((first.value.replace(str(gateway.port), "PORT"), int(first.config_source)))
    assert codes == [
        ("PLAINTEXT://127.0.0.1:PORT", 5),
        ("PLAINTEXT://log.example.org:9092", 4),
        ("PLAINTEXT://[fd00::7]:9092", 4),
    ]


def _describing(broker: str, version: int = 4, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    schema = import_module(f"kio.schema.describe_configs.v{version}.request")
    resource = schema.DescribeConfigsResource(resource_type=4, resource_name=broker, configuration_keys=keys)
    documentation = {"include_documentation": False} if version >= 3 else {}
    return {"resources": (resource,), "include_synonyms": False, **documentation}


def test_repeated_names_are_answered_once(gateway: GatewayServer) -> None:
    # or a request of some KB has a response of gigabytes
    def again(api: str, kind: str, /, **fields: Any) -> tuple[Any, ...]:
        return (getattr(import_module(f"kio.schema.{api}.request"), kind)(**fields),) * 3

    named = again("metadata.v12", "MetadataRequestTopic", name="clicks", topic_id=uuid.UUID(int=7))
    other = again("metadata.v12", "MetadataRequestTopic", name="clicks", topic_id=uuid.UUID(int=8))
    topic = {"resource_type": 2, "resource_name": "clicks", "configuration_keys": None}
    resources = again("describe_configs.v4", "DescribeConfigsResource", **topic)
    partitions = again("describe_producers.v0", "TopicRequest", name="clicks", partition_indexes=(0, 0, 1))
    groups = again("offset_fetch.v8", "OffsetFetchRequestGroup", group_id="g", topics=None)
    with Wire(gateway) as wire:
        response = wire.ask(METADATA, 12, topics=named + other, include_topic_authorized_operations=False)
        assert [topic.name for topic in response.topics] == ["clicks"]
        requested = {"include_synonyms": False, "include_documentation": False}
        assert len(wire.ask(32, 4, resources=resources, **requested).results) == 1
        described = wire.ask(15, 5, groups=("g", "g", "h"), include_authorized_operations=False)
        assert len(described.groups) == 2
        (of_topic,) = wire.ask(61, 0, topics=partitions).topics
        assert [partition.partition_index for partition in of_topic.partitions] == [0, 1]
        assert len(wire.ask(9, 8, groups=groups, require_stable=False).groups) == 1
