"""A request is walked over as it will be read, in every API and version, and has no more items than it may."""

from __future__ import annotations

import dataclasses
import datetime
import struct
import time
import uuid
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from gateways import FETCH, METADATA, PRODUCE, encode, request
from kio.index import load_request_schema

from distlog.gateway.kafka_apis import APIS
from distlog.gateway.protocol.invalid_request import InvalidRequestError
from distlog.gateway.protocol.item_limit import MAX_ITEMS, check_items
from distlog.gateway.protocol.request_frame import read_head, read_request

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
    return schema(**{each.name: _value(hints[each.name], each) for each in dataclasses.fields(schema)})


def _value(hint: Any, each: Any) -> Any:
    parts = [hint, *get_args(hint)]
    inner = [part for outer in parts for part in (outer, *get_args(outer)) if dataclasses.is_dataclass(part)]
    value = sample(inner[0]) if inner else _VALUES.get(each.metadata["kafka_type"], 3)
    return (value,) * 3 if any(get_origin(part) is tuple for part in parts) else value


@pytest.mark.parametrize(("name", "api_key", "version"), VERSIONS)
def test_the_walk_ends_where_the_request_does(name: str, api_key: int, version: int) -> None:
    schema: Any = load_request_schema(api_key, version)
    header = schema.__header_schema__(
        request_api_key=api_key, request_api_version=version, correlation_id=1, client_id="a client"
    )
    frame = memoryview(encode(header) + encode(sample(schema)))
    assert check_items(frame, schema) == len(frame)
    assert check_items(memoryview(bytes(frame) + b"more"), schema) == len(frame)
    # what is cut off, or garbage, is for the reader to refuse
    for end in range(8, len(frame), 7):
        check_items(frame[:end], schema)


def test_as_many_items_as_there_may_be_are_read_and_one_more_is_refused() -> None:
    for count in (MAX_ITEMS, MAX_ITEMS + 1):
        frame = memoryview(struct.pack(">hhihi", METADATA, 1, 1, -1, count) + struct.pack(">h1s", 1, b"t") * count)
        if count <= MAX_ITEMS:
            assert len(read_request(frame, read_head(frame)).body.topics) == count
        else:
            with pytest.raises(InvalidRequestError, match="too many items"):
                read_request(frame, read_head(frame))


def tiny_partitions(version: int) -> bytes:
    """A Produce request of 100 MiB that has nothing but partitions without records."""
    if version < 9:
        head = struct.pack(">hhih", PRODUCE, version, 1, -1) + struct.pack(">hhiih1s", -1, -1, 1, 1, 1, b"t")
        count = (99 << 20) // 8
        return head + struct.pack(">i", count) + struct.pack(">ii", 0, -1) * count
    count = (99 << 20) // 6
    head = struct.pack(">hhih", PRODUCE, version, 1, -1) + b"\0" + b"\0" + struct.pack(">hi", -1, 1) + b"\2\2t"
    length, left = b"", count + 1
    while left > 0x7F:
        length, left = length + bytes([left & 0x7F | 0x80]), left >> 7
    return head + length + bytes([left]) + (b"\0\0\0\0\0\0" * count)


def tags() -> bytes:
    """A Fetch request of 100 MiB, all tags of its head."""
    return struct.pack(">hhih", PRODUCE, 9, 1, -1) + b"\xff\xff\xff\x7f" + bytes(99 << 20)


@pytest.mark.parametrize("hostile", [tiny_partitions(3), tiny_partitions(9), tags()], ids=["v3", "v9", "tags"])
def test_a_hundred_mib_of_tiny_parts_are_refused_at_once(hostile: bytes) -> None:
    frame, begun_s = memoryview(hostile), time.process_time()
    with pytest.raises(InvalidRequestError, match="too many items"):
        read_request(frame, read_head(frame))
    assert time.process_time() - begun_s < 1


def test_elements_at_all_depths_count() -> None:
    schema: Any = load_request_schema(FETCH, 4)
    asked = sample(schema)
    fields = {each.name: getattr(asked, each.name) for each in dataclasses.fields(asked)}
    frame = memoryview(request(FETCH, 4, 1, **fields))
    assert check_items(frame, schema, limit=12) == len(frame)
    with pytest.raises(InvalidRequestError):
        check_items(frame, schema, limit=11)
