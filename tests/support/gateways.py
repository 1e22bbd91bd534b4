"""A gateway inside the test's process, and a client that speaks Kafka's protocol word for word."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from waiting import until as until

import distlog
from distlog.core.topic import Topic
from distlog.gateway import cluster, gateway_server
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.protocol.messages import ChunkWriter, message_writer, request_schema
from distlog.gateway.server import socket_server
from distlog.gateway.topics import gathered_appends

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 2, 3, 18, 22
LEAVE_GROUP = 13
#: The version of Produce and Fetch from which on topics have their ids.
TOPIC_IDS = 13
NO_WAIT = datetime.timedelta(0)


@contextmanager
def serving(root: object, *, tls: Any = None, authentication: Any = None, **settings: Any) -> Iterator[GatewayServer]:
    """A gateway over `root` at a free port; `settings` are fields of GatewayConfig."""
    config = GatewayConfig(**settings)
    with GatewayServer(str(root), port=0, config=config, tls=tls, authentication=authentication) as gateway:
        yield gateway


@pytest.fixture
def lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first batches after a pause linger like all others, so that a test controls groups of batches."""
    monkeypatch.setattr(gathered_appends, "_BURST_S", 3600.0)


@pytest.fixture
def frequent_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the intervals at which gateways poll: times of clients, files, changes of other gateways."""
    monkeypatch.setattr(socket_server, "_CHECK_S", 0.02)
    # of a lease of nine seconds
    monkeypatch.setattr(cluster, "FREQUENT", dataclasses.replace(cluster.FREQUENT, refresh=1 / 400))
    monkeypatch.setattr(gateway_server, "_REFRESH_MS", {True: 20, False: 20})


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayServer]:
    """A gateway over a root with the topic `clicks` of two partitions."""
    distlog.create(str(tmp_path / "clicks"), partitions=2)
    with serving(tmp_path) as served:
        yield served


def counted(gateway: GatewayServer, name: str, **labels: str) -> float:
    """The value of the metric `distlog_gateway_<name>`, summed over all that have these labels."""
    values = next(metric.values for metric in gateway.metrics() if metric.name == f"distlog_gateway_{name}")
    return sum(value for actual, value in values if labels.items() <= actual.items())


def removed(wire: Wire, group: str) -> Any:
    """The response to a request that removes a static member of a group."""
    from importlib import import_module

    member = import_module("kio.schema.leave_group.v4.request").MemberIdentity(member_id="", group_instance_id="one")
    return wire.ask(LEAVE_GROUP, 4, group_id=group, members=(member,))


def limit_send_buffers(gateway: GatewayServer) -> None:
    """Have the system buffer few bytes of the responses to new connections, which inherit it from their listener."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as listener:
            is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if is_listening and listener.getsockname()[1] == gateway.port:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def open_topic(gateway: GatewayServer, name: str = "clicks") -> Topic:
    """Open a topic of the gateway directly, as any program does."""
    return distlog.open(f"{gateway.root}/{name}")


class Listening(Protocol):
    @property
    def port(self) -> int: ...


class Writer(list[bytes]):
    write = list.append


def encode(message: Any) -> bytes:
    writer = Writer()
    entity_writer(type(message))(writer, message)  # type: ignore[arg-type]
    return b"".join(writer)


class Wire:
    """A connection to the gateway that sends any bytes, and requests of any version."""

    def __init__(self, gateway: Listening, *, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", gateway.port))
        self._ids = itertools.count(1)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, api_key: int, version: int, **fields: Any) -> Any:
        return self.answer(api_key, version, self.send(api_key, version, **fields))

    def send(self, api_key: int, version: int, **fields: Any) -> int:
        """Send a request; returns its correlation id."""
        correlation_id = next(self._ids)
        self.socket.sendall(framed(request(api_key, version, correlation_id, **fields)))
        return correlation_id

    def plain(self, key: int, version: int, /, **fields: Any) -> Any:
        """The response to a request with any fields; the others are empty, or zero."""
        return self.answer(key, version, self.send_plain(key, version, **fields))

    def send_plain(self, key: int, version: int, /, **fields: Any) -> int:
        """Send a request; returns its correlation id."""
        schema, writer, number = request_schema(key, version), ChunkWriter(), next(self._ids)
        message_writer(schema.body, {"name", "topic"} | schema.body.names())(writer, fields)
        head = struct.pack(">hhih", key, version, number, -1) + b"\0" * schema.is_head_flexible
        self.socket.sendall(framed(head + writer.joined()))
        return number

    def answer(self, api_key: int, version: int, correlation_id: int) -> Any:
        """The next response, which must be the one with this correlation id."""
        frame = self.frame()
        schema: Any = load_response_schema(api_key, version)
        header, size = entity_reader(schema.__header_schema__)(frame, 0)
        assert header.correlation_id == correlation_id
        body, body_size = entity_reader(schema)(frame, size)
        assert size + body_size == len(frame)
        return body

    def frame(self) -> bytes:
        """The bytes of the next response, without its length."""
        return self.receive(int.from_bytes(self.receive(4), "big"))

    def receive(self, size: int) -> bytes:
        """Return `size` bytes; raises EOFError if the connection closes earlier."""
        received = b""
        while len(received) < size:
            part = self.socket.recv(size - len(received))
            if not part:
                raise EOFError
            received += part
        return received

    @property
    def is_closed(self) -> bool:
        """Whether the gateway closed the connection, without a byte more; waits for that."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def request(api_key: int, version: int, correlation_id: int, **fields: Any) -> bytes:
    """A request's bytes, without its length. Dicts become kio's messages, lists become tuples."""
    schema: Any = load_request_schema(api_key, version)
    header = schema.__header_schema__(
        request_api_key=api_key, request_api_version=version, correlation_id=correlation_id, client_id="a-test"
    )
    return encode(header) + encode(schema(**fields))


def framed(data: bytes) -> bytes:
    """The bytes after their length."""
    return len(data).to_bytes(4, "big") + data


def produce_fields(version: int, records: Sequence[tuple[Any, int, bytes]], acks: int = -1) -> dict[str, Any]:
    """The fields of a Produce request with (topic, partition, batch); from version 13 on a topic is its id."""
    from importlib import import_module

    schema = import_module(f"kio.schema.produce.v{version}.request")
    topics = {name: [] for name, _, _ in records}  # type: dict[Any, list[Any]]
    for name, number, batch in records:
        topics[name].append(schema.PartitionProduceData(index=number, records=batch))
    key = "topic_id" if version >= TOPIC_IDS else "name"
    data = [schema.TopicProduceData(**{key: topic}, partition_data=tuple(parts)) for topic, parts in topics.items()]
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": datetime.timedelta(seconds=1),
        "topic_data": tuple(data),
    }


def fetch_fields(
    version: int,
    offsets: Sequence[tuple[Any, int, int]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 25,
    partition_max_bytes: int = 1 << 20,
    isolation_level: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """The fields of a Fetch request from (topic, partition, offset); from version 13 on a topic is its id."""
    from importlib import import_module

    schema = import_module(f"kio.schema.fetch.v{version}.request")
    topics = {name: [] for name, _, _ in offsets}  # type: dict[Any, list[Any]]
    key = "topic_id" if version >= TOPIC_IDS else "topic"
    for name, number, offset in offsets:
        partition = schema.FetchPartition(
            partition=number, fetch_offset=offset, partition_max_bytes=partition_max_bytes
        )
        topics[name].append(partition)
    fields = {
        "max_wait": datetime.timedelta(milliseconds=max_wait_ms),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "topics": tuple(
            schema.FetchTopic(**{key: topic}, partitions=tuple(parts)) for topic, parts in topics.items()
        ),
        **options,
    }
    if version >= 7:
        fields.setdefault("forgotten_topics_data", ())
    return fields


def producing(
    wire: Wire, batch: bytes, partition: int = 0, *, topic: Any = "clicks", version: int = 9, acks: int = -1
) -> Any:
    """The response to a Produce request with one batch, for its partition."""
    body = wire.ask(PRODUCE, version, **produce_fields(version, [(topic, partition, batch)], acks))
    ((result,),) = [topic.partition_responses for topic in body.responses]
    return result


def fetching(
    wire: Wire, offset: int, partition: int = 0, *, topic: Any = "clicks", version: int = 12, **fields: Any
) -> Any:
    body = wire.ask(FETCH, version, **fetch_fields(version, [(topic, partition, offset)], **fields))
    ((result,),) = [topic.partitions for topic in body.responses]
    return result
