"""Kafka admin clients create, list and delete ACLs, and the ACLs apply to clients."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateways import serving, until
from rights import with_acls
from users_files import PASSWORD

import distlog
from distlog.gateway.config import GroupSettings
from distlog.gateway.gateway_server import GatewayServer


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayServer]:
    with with_acls(tmp_path, groups=GroupSettings(initial_rebalance_delay_ms=0)) as served:
        yield served


def confluent(gateway: GatewayServer, user: str, **settings: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": gateway.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        "log_level": 0,
        **settings,
    }


def test_confluent_kafka_creates_lists_and_deletes_acls(gateway: GatewayServer) -> None:
    kafka, admin = pytest.importorskip("confluent_kafka"), pytest.importorskip("confluent_kafka.admin")
    kinds, patterns = admin.ResourceType, admin.ResourcePatternType
    operations, permissions = admin.AclOperation, admin.AclPermissionType
    root = admin.AdminClient(confluent(gateway, "root"))
    mallory = admin.AdminClient(confluent(gateway, "mallory"))

    def binding(kind: Any, name: str, pattern: Any, operation: Any) -> Any:
        return admin.AclBinding(kind, name, pattern, "User:alice", "*", operation, permissions.ALLOW)

    acls = [
        binding(kinds.TOPIC, "cli", patterns.PREFIXED, operations.READ),
        binding(kinds.TOPIC, "clicks", patterns.LITERAL, operations.WRITE),
        binding(kinds.GROUP, "readers", patterns.LITERAL, operations.READ),
    ]
    everything = admin.AclBindingFilter(kinds.ANY, None, patterns.ANY, None, None, operations.ANY, permissions.ANY)
    for acl in mallory.create_acls(acls).values():
        with pytest.raises(kafka.KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
            acl.result(30)
    for future in root.create_acls(acls).values():
        future.result(30)
    assert set(root.describe_acls(everything).result(30)) == set(acls)
    # librdkafka does not report the error of this API
    assert mallory.describe_acls(everything).result(30) == []

    producer = kafka.Producer(confluent(gateway, "alice", **{"enable.idempotence": True}))
    errors: list[Any] = []
    producer.produce("clicks", b"hello", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    consumer = kafka.Consumer(confluent(gateway, "alice", **{"group.id": "readers", "auto.offset.reset": "earliest"}))
    consumer.subscribe(["clicks"])
    polled: list[Any] = []
    until(lambda: polled.append(consumer.poll(1)) or polled[-1])
    message = polled[-1]
    assert (errors, message.error(), message.value()) == ([None], None, b"hello")
    consumer.close()
    producer = kafka.Producer(confluent(gateway, "mallory"))
    producer.produce("clicks", b"bad", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert errors[1].code() == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED

    matching = admin.AclBindingFilter(
        kinds.TOPIC, "clicks", patterns.MATCH, None, None, operations.ANY, permissions.ANY
    )
    (removed,) = root.delete_acls([matching]).values()
    assert set(removed.result(30)) == set(acls[:2])
    assert set(root.describe_acls(everything).result(30)) == {acls[2]}


def test_kafka_python_creates_lists_and_deletes_acls(gateway: GatewayServer) -> None:
    kafka, admin = pytest.importorskip("kafka"), pytest.importorskip("kafka.admin")
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    client = kafka.KafkaAdminClient(
        bootstrap_servers=gateway.address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="root",
        sasl_plain_password=PASSWORD,
    )
    clicks = admin.ResourcePattern(admin.ResourceType.TOPIC, "clicks")
    acl = admin.ACL("User:alice", "*", admin.ACLOperation.READ, admin.ACLPermissionType.ALLOW, clicks)
    wrong = admin.ACL("alice", "*", admin.ACLOperation.READ, admin.ACLPermissionType.ALLOW, clicks)
    reply = client.create_acls([acl, wrong])
    assert reply["succeeded"] == [acl]
    assert len(reply["failed"]) == 1
    everything = admin.ACLFilter(
        None,
        None,
        admin.ACLOperation.ANY,
        admin.ACLPermissionType.ANY,
        admin.ResourcePatternFilter(admin.ResourceType.ANY, None, admin.ACLResourcePatternType.ANY),
    )
    assert client.describe_acls(everything)[0] == [acl]
    ((_, removed, _),) = client.delete_acls([everything])
    assert removed == [acl]
    assert client.describe_acls(everything)[0] == []
    client.close()


def test_disabled_acls_have_their_code(tmp_path: Path) -> None:
    kafka, admin = pytest.importorskip("confluent_kafka"), pytest.importorskip("confluent_kafka.admin")
    distlog.create(str(tmp_path / "clicks"))
    with serving(tmp_path) as gateway:
        client = admin.AdminClient({"bootstrap.servers": gateway.address})
        acl = admin.AclBinding(
            admin.ResourceType.TOPIC,
            "clicks",
            admin.ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            admin.AclOperation.READ,
            admin.AclPermissionType.ALLOW,
        )
        for future in client.create_acls([acl]).values():
            with pytest.raises(kafka.KafkaException, match="SECURITY_DISABLED"):
                future.result(30)
