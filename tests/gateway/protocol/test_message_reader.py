"""Requests are read as kio reads them, in every API and version; unknown tags are skipped, no count is believed."""

from __future__ import annotations

import dataclasses
import datetime
import pkgutil
import struct
import subprocess
import sys
import time
import tracemalloc
import uuid
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from gateways import FETCH, METADATA, PRODUCE, encode
from kio.index import api_key_map, load_request_schema
from kio.serial import entity_reader

from distlog.gateway.apis import APIS
from distlog.gateway.protocol.messages import (
    FIXED,
    MAX_ITEMS,
    BodySchema,
    InvalidRequestError,
    ItemBudget,
    MessageSchema,
    SchemaField,
    message_reader,
    read_head,
    read_request,
    request_schema,
    response_schema,
    uvarint,
)
from tools.kafka_messages import FILE
from tools.kafka_messages import messages as written

VERSIONS = [(api.name, api.key, version) for api in APIS.values() for version in range(api.oldest, api.newest + 1)]
_VALUES: dict[str, Any] = {
    "string": "some text",
    "bytes": b"some bytes",
    "records": b"some records",
    "bool": True,
    "uuid": uuid.UUID(int=7),
    "timedelta_i32": datetime.timedelta(milliseconds=5),
    "timedelta_i64": datetime.timedelta(milliseconds=5),
}


def sample(schema: Any) -> Any:
    """A message with a value in each field, and three elements in each array."""
    hints = get_type_hints(schema)
    return schema(**{field.name: _value(hints[field.name], field) for field in dataclasses.fields(schema)})


def _value(hint: Any, field: Any) -> Any:
    parts = [hint, *get_args(hint)]
    inner = [part for outer in parts for part in (outer, *get_args(outer)) if dataclasses.is_dataclass(part)]
    value = sample(inner[0]) if inner else _VALUES.get(field.metadata["kafka_type"], 3)
    return (value,) * 3 if any(get_origin(part) is tuple for part in parts) else value


def _framed(api_key: int, version: int, body: Any) -> memoryview:
    header = load_request_schema(api_key, version).__header_schema__(  # type: ignore[attr-defined]
        request_api_key=api_key, request_api_version=version, correlation_id=1, client_id="a client"
    )
    return memoryview(encode(header) + encode(body))


def assert_same(read: Any, expected: Any) -> None:
    if dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same(getattr(read, field.name), getattr(expected, field.name))
    elif isinstance(expected, tuple):
        assert isinstance(read, tuple)
        for value, expected_value in zip(read, expected, strict=True):
            assert_same(value, expected_value)
    elif isinstance(expected, datetime.timedelta):
        assert read == expected // datetime.timedelta(milliseconds=1)
    else:
        assert read == expected
        assert type(read) is type(expected) or isinstance(expected, type(read))


@pytest.mark.parametrize(("name", "api_key", "version"), VERSIONS)
def test_a_request_is_read_as_kio_reads_it_and_ends_where_it_does(name: str, api_key: int, version: int) -> None:
    schema: Any = load_request_schema(api_key, version)
    frame = _framed(api_key, version, sample(schema))
    head_size = entity_reader(schema.__header_schema__)(frame, 0)[1]
    expected, size = entity_reader(schema)(frame, head_size)
    body, end = message_reader(request_schema(api_key, version).body)(frame, head_size, ItemBudget())
    assert_same(body, expected)
    assert end == head_size + size == len(frame)
    parsed = read_request(memoryview(bytes(frame) + b"more"), read_head(frame))
    assert (parsed.client_id, parsed.body) == ("a client", body)
    for cut in range(8, len(frame)):
        with pytest.raises(InvalidRequestError):
            read_request(frame[:cut], read_head(frame))


def test_the_messages_are_those_of_kio() -> None:
    assert FILE.read_text(encoding="utf-8") == written(), "python -m tools.kafka_messages"


#: The newest version that kio has of an API of which the gateway leaves newer ones out.
_LEFT_OUT = {
    "Fetch": 18,
    "ListOffsets": 11,
    "InitProducerId": 6,
    "Metadata": 13,
    "DescribeCluster": 2,
    "DescribeLogDirs": 5,
    "FindCoordinator": 6,
    "OffsetCommit": 10,
    "OffsetFetch": 10,
    "AddPartitionsToTxn": 5,
    "AddOffsetsToTxn": 4,
    "TxnOffsetCommit": 5,
    "EndTxn": 5,
    "WriteTxnMarkers": 2,
    "DescribeGroups": 6,
}


def test_a_version_of_an_api_that_kio_adds_is_noticed() -> None:
    newest = {api.name: _newest(api.key) for api in APIS.values()}
    assert newest == {api.name: _LEFT_OUT.get(api.name, api.newest) for api in APIS.values()}


def _newest(api_key: int) -> int:
    package = import_module(f"kio.schema.{api_key_map[api_key]}")
    return max(int(module.name.removeprefix("v")) for module in pkgutil.iter_modules(package.__path__))


LOADED = """
import sys

from distlog.gateway.apis import APIS
from distlog.gateway.protocol.messages import _reader, _writer

for api in APIS.values():
    for version in range(api.oldest, api.newest + 1):
        _reader(api.key, version), _writer(api.key, version)
print(*(name for name in sys.modules if name.startswith("kio.schema.") and name != "kio.schema.errors"))
"""


@pytest.mark.long
def test_no_request_waits_for_an_import_of_its_messages() -> None:
    results = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)
    assert results.stdout == "\n"


@pytest.mark.parametrize(("api_key", "version"), [(PRODUCE, 2), (PRODUCE, 99), (4, 0), (-1, 0)])
def test_a_version_that_the_gateway_does_not_have_is_refused(api_key: int, version: int) -> None:
    for schema in (request_schema, response_schema):
        with pytest.raises(InvalidRequestError, match="unsupported API version"):
            schema(api_key, version)


class Encoder:
    """Writes a request with unknown tags in each part, and null in each nullable field."""

    def __init__(self, *, nulls: bool) -> None:
        self._nulls = nulls

    def head(self, schema: BodySchema, api_key: int, version: int) -> bytes:
        return struct.pack(">hhih", api_key, version, 1, -1) + (self._tags() if schema.is_head_flexible else b"")

    def message(self, message: MessageSchema) -> bytes:
        data = b"".join(self._field(field, message.is_flexible) for field in message.fields if field.tag is None)
        return data + (self._tags() if message.is_flexible else b"")

    def _field(self, field: SchemaField, is_flexible: bool) -> bytes:
        null = (
            b"\0" if is_flexible else struct.pack(">h" if field.kind == "string" and not field.is_array else ">i", -1)
        )
        is_marked = field.message is not None and field.is_nullable and not field.is_array
        if field.is_nullable and self._nulls and field.kind != "uuid":
            return b"\xff" if is_marked else null
        item = self.message(field.message) if field.message else self._plain(field.kind, is_flexible)
        if not field.is_array:
            return b"\1" * is_marked + item
        return (uvarint(3) if is_flexible else struct.pack(">i", 2)) + item * 2

    def _plain(self, kind: str, is_flexible: bool) -> bytes:
        if kind in ("string", "bytes", "records"):
            plain = struct.pack(">h" if kind == "string" else ">i", 1)
            return (uvarint(2) if is_flexible else plain) + b"x"
        return bytes(16 if kind == "uuid" else struct.calcsize(">" + FIXED[kind]))

    def _tags(self) -> bytes:
        return uvarint(2) + uvarint(100) + uvarint(3) + b"abc" + uvarint(20_000) + uvarint(0)


@pytest.mark.parametrize("nulls", [False, True], ids=["tags", "nulls"])
def test_unknown_tags_are_skipped_and_null_is_read(nulls: bool) -> None:
    encoder = Encoder(nulls=nulls)
    for _, api_key, version in VERSIONS:
        schema = request_schema(api_key, version)
        frame = memoryview(encoder.head(schema, api_key, version) + encoder.message(schema.body))
        parsed = read_request(frame, read_head(frame))
        assert parsed.client_id == ""
        for field in schema.body.fields:
            value = getattr(parsed.body, field.name)
            if field.tag is None and field.is_nullable and nulls:
                assert value is None
            elif field.tag is None and field.is_array:
                assert len(value) == 2
        for cut in range(8, len(frame)):
            with pytest.raises(InvalidRequestError):
                read_request(frame[:cut], read_head(frame))


def test_known_tags_must_have_their_claimed_size() -> None:
    def fetch(tags: bytes) -> Any:
        fixed = struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, -1)
        frame = memoryview(struct.pack(">hhih", FETCH, 12, 1, -1) + b"\0" + fixed + b"\1\1\1" + tags)
        return read_request(frame, read_head(frame)).body

    assert fetch(b"\0").cluster_id is None
    assert fetch(b"\2\0\3\3ab\x64\1x").cluster_id == "ab"
    assert fetch(b"\1\x64\1x").cluster_id is None
    for wrong in (b"\1\0\2\3ab", b"\1\0\4\3abc", b"\1\0\x7f\3ab", b"\1\0"):
        with pytest.raises(InvalidRequestError):
            fetch(wrong)


def test_null_is_refused_where_the_version_has_none() -> None:
    for frame in (
        # a Produce without topics, and one without a topic's name
        struct.pack(">hhihhhii", PRODUCE, 3, 1, -1, -1, 1, 0, -1),
        struct.pack(">hhihhhiih", PRODUCE, 3, 1, -1, -1, 1, 0, 1, -1) + bytes(8),
        struct.pack(">hhih", PRODUCE, 9, 1, -1) + b"\0\0" + struct.pack(">hi", 1, 0) + b"\0\0",
        # a Metadata of an id without a name is fine since version 10
        struct.pack(">hhih", METADATA, 9, 1, -1) + b"\0\2\0\0\0\0\0\0",
    ):
        with pytest.raises(InvalidRequestError, match="must not be"):
            read_request(memoryview(frame), read_head(memoryview(frame)))
    frame = struct.pack(">hhih", METADATA, 10, 1, -1) + b"\0\2" + bytes(16) + b"\0\0\0\0\0\0"
    (topic,) = read_request(memoryview(frame), read_head(memoryview(frame))).body.topics
    assert (topic.name, topic.topic_id) == (None, None)


def test_the_limit_of_items_is_exact() -> None:
    for count in (MAX_ITEMS, MAX_ITEMS + 1):
        frame = memoryview(struct.pack(">hhihi", METADATA, 1, 1, -1, count) + struct.pack(">h1s", 1, b"t") * count)
        if count <= MAX_ITEMS:
            assert len(read_request(frame, read_head(frame)).body.topics) == count
        else:
            with pytest.raises(InvalidRequestError, match="too many items"):
                read_request(frame, read_head(frame))


def tiny_partitions(version: int) -> bytes:
    if version < 9:
        head = struct.pack(">hhih", PRODUCE, version, 1, -1) + struct.pack(">hhiih1s", -1, -1, 1, 1, 1, b"t")
        count = (99 << 20) // 8
        return head + struct.pack(">i", count) + struct.pack(">ii", 0, -1) * count
    count = (99 << 20) // 6
    head = struct.pack(">hhih", PRODUCE, version, 1, -1) + b"\0" + b"\0" + struct.pack(">hi", -1, 1) + b"\2\2t"
    length, remaining = b"", count + 1
    while remaining > 0x7F:
        length, remaining = length + bytes([remaining & 0x7F | 0x80]), remaining >> 7
    return head + length + bytes([remaining]) + (b"\0\0\0\0\0\0" * count)


def tags() -> bytes:
    return struct.pack(">hhih", PRODUCE, 9, 1, -1) + b"\xff\xff\xff\x7f" + bytes(99 << 20)


@pytest.mark.parametrize(
    "hostile", [partial(tiny_partitions, 3), partial(tiny_partitions, 9), tags], ids=["v3", "v9", "tags"]
)
def test_a_hundred_mib_of_tiny_parts_are_refused_at_once(hostile: Callable[[], bytes]) -> None:
    frame, started_s = memoryview(hostile()), time.process_time()
    with pytest.raises(InvalidRequestError, match=r"more items than|too many items"):
        read_request(frame, read_head(frame))
    assert time.process_time() - started_s < 1


def test_elements_at_all_depths_count() -> None:
    requested = sample(load_request_schema(FETCH, 4))
    frame = _framed(FETCH, 4, requested)
    read, position = message_reader(request_schema(FETCH, 4).body), 8 + 2 + len("a client")
    assert read(frame, position, ItemBudget(12))[1] == len(frame)
    with pytest.raises(InvalidRequestError, match="too many items"):
        read(frame, position, ItemBudget(11))


def test_claimed_counts_allocate_no_memory() -> None:
    frame = memoryview(struct.pack(">hhihi", METADATA, 1, 1, -1, MAX_ITEMS) + bytes(MAX_ITEMS))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError, match="more items than it has bytes for"):
            read_request(frame, read_head(frame))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
