"""Kafka clients with TLS and passwords: they write, read, join a group, and are refused."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from gateways import serving
from tls_certificates import Authority
from users_files import PASSWORD, users_file

import distlog
from distlog.gateway.config import GroupSettings
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.security.authentication import Authentication
from distlog.gateway.security.tls import TlsFiles
from distlog.gateway.security.users_file import UsersFile

pytestmark = pytest.mark.long

PROTOCOLS = [("SSL", None), ("SASL_PLAINTEXT", "PLAIN"), ("SASL_SSL", "SCRAM-SHA-256"), ("SASL_SSL", "SCRAM-SHA-512")]
AT_ONCE = GroupSettings(initial_rebalance_delay_ms=0)
WRONG = [("SASL_PLAINTEXT", "PLAIN"), ("SASL_SSL", "SCRAM-SHA-512")]
VALUES = [b"%d" % number for number in range(20)]


class Secured(NamedTuple):
    gateway: GatewayServer
    authority: str
    protocol: str
    mechanism: str | None


@contextmanager
def secured(folder: Path, protocol: str, mechanism: str | None) -> Iterator[Secured]:
    authority = Authority(folder)
    server = authority.certificate("server")
    distlog.create(str(folder / "root" / "clicks"))
    tls = TlsFiles(certificate=server.certificate, key=server.key) if protocol.endswith("SSL") else None
    users = Authentication(UsersFile(users_file(folder, "alice"))) if mechanism else None
    with serving(
        folder / "root", tls=tls, authentication=users, failed_authentication_delay_ms=50, groups=AT_ONCE
    ) as gateway:
        yield Secured(gateway, authority.file, protocol, mechanism)


@pytest.fixture(params=PROTOCOLS, ids=lambda param: "-".join(filter(None, param)))
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Secured]:
    with secured(tmp_path, *request.param) as actual:
        yield actual


def confluent(served: Secured, password: str = PASSWORD) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": served.gateway.address,
        "security.protocol": served.protocol,
        "ssl.ca.location": served.authority,
        "log_level": 0,
    }
    if served.mechanism:
        settings |= {"sasl.mechanism": served.mechanism, "sasl.username": "alice", "sasl.password": password}
    return settings


def python(served: Secured, password: str = PASSWORD) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": served.gateway.address,
        "security_protocol": served.protocol,
        "ssl_context": ssl.create_default_context(cafile=served.authority) if "SSL" in served.protocol else None,
    }
    if served.mechanism:
        settings |= {
            "sasl_mechanism": served.mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": password,
        }
    return settings


def test_confluent_kafka_writes_and_its_group_reads(served: Secured) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    producer = confluent_kafka.Producer(confluent(served))
    for value in VALUES:
        producer.produce("clicks", value)
    assert producer.flush(300) == 0
    consumer = confluent_kafka.Consumer({**confluent(served), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["clicks"])
    assert [record.value() for record in consumer.consume(len(VALUES), 300)] == VALUES
    consumer.close()


def test_kafka_python_writes_and_reads(served: Secured) -> None:
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(**python(served))
    sent = [producer.send("clicks", value) for value in VALUES]
    assert [future.get(60).offset for future in sent] == list(range(len(VALUES)))
    producer.close()
    consumer = kafka.KafkaConsumer(**python(served), auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition("clicks", 0)])
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.close()


def test_aiokafka_writes_and_reads(served: Secured) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def read_all() -> list[bytes]:
        async with aiokafka.AIOKafkaProducer(**python(served)) as producer:
            for value in VALUES:
                await producer.send("clicks", value)
        async with aiokafka.AIOKafkaConsumer(**python(served), auto_offset_reset="earliest") as consumer:
            consumer.assign([aiokafka.TopicPartition("clicks", 0)])
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(read_all()) == VALUES


def test_the_setting_advertised_listeners_names_the_protocol(served: Secured) -> None:
    admin = pytest.importorskip("confluent_kafka.admin")
    resource = admin.ConfigResource(admin.ConfigResource.Type.BROKER, "0")
    client = admin.AdminClient(confluent(served))
    actual = client.describe_configs([resource])[resource].result(30)
    assert actual["advertised.listeners"].value == f"{served.protocol}://127.0.0.1:{served.gateway.port}"


@pytest.mark.parametrize(("protocol", "mechanism"), WRONG)
def test_clients_with_a_wrong_password_get_an_error(tmp_path: Path, protocol: str, mechanism: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    kafka = pytest.importorskip("kafka")
    errors: list[Any] = []
    with secured(tmp_path, protocol, mechanism) as served:
        producer = confluent_kafka.Producer({**confluent(served, "wrong"), "error_cb": errors.append})
        producer.produce("clicks", b"v")
        while not any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors):
            producer.poll(1)
        producer.purge()
        with pytest.raises(kafka.errors.KafkaError):
            kafka.KafkaConsumer(**python(served, "wrong"), api_version_auto_timeout_ms=2000).topics()
    assert distlog.open(str(tmp_path / "root" / "clicks")).end_offsets() == {0: 0}
