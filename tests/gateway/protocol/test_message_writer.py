"""Responses that are written from plain fields equal the output of kio's writer, byte by byte, in every version."""

from __future__ import annotations

import dataclasses
import datetime
import random
import uuid
from typing import Any, get_args, get_type_hints

import pytest
from gateways import encode
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from distlog.gateway.apis import APIS
from distlog.gateway.protocol.messages import ChunkWriter, _writer, write_response

VERSIONS = [(api.key, version) for api in APIS.values() for version in range(api.oldest, api.newest + 1)]
NUMBERS = {"int8": 7, "int16": 15, "uint16": 15, "int32": 31, "uint32": 31, "int64": 63}
TIMES = {"timedelta_i32": 31, "timedelta_i64": 40, "datetime_i64": 40}


def some_fields(schema: Any, chance: random.Random, most: float = 0.7) -> dict[str, Any]:
    hints = get_type_hints(schema)
    fields = dataclasses.fields(schema)
    return {
        field.name: some_value(
            field.metadata.get("kafka_type", ""), hints[field.name], "tag" in field.metadata, chance
        )
        for field in fields
        if field.default is dataclasses.MISSING or chance.random() < most
    }


def entity_of(hint: Any) -> Any:
    """The message that a field, or an array, consists of; None for plain values."""
    parts = [inner for part in (hint, *get_args(hint)) for inner in (part, *get_args(part))]
    return next((part for part in parts if dataclasses.is_dataclass(part)), None)


def some_value(kind: str, hint: Any, is_tag: bool, chance: random.Random) -> Any:
    entity, parts = entity_of(hint), (hint, *get_args(hint))
    if type(None) in get_args(hint) and not is_tag and kind not in ("datetime_i64",) and chance.random() < 0.3:
        return None
    if any(getattr(part, "__origin__", None) is tuple for part in parts):
        many = chance.choice([1, 2, 200] if kind else [1, 2, 3])
        return [some_fields(entity, chance) if entity else some_plain(kind, chance) for _ in range(many)]
    # a tagged message that is as without it is left out by kio
    return some_fields(entity, chance, 1 if is_tag else 0.7) if entity else some_plain(kind, chance)


def some_plain(kind: str, chance: random.Random) -> Any:
    if kind in NUMBERS or kind in TIMES:
        return chance.getrandbits(chance.choice([1, 5, (NUMBERS | TIMES)[kind]]))
    if kind == "error_code":
        return chance.choice(list(ErrorCode))
    if kind == "uuid":
        return uuid.UUID(int=chance.getrandbits(128) | 1)
    return {
        "bool": lambda: chance.random() < 0.5,
        "float64": chance.random,
        "string": lambda: "é" * chance.choice([0, 1, 70, 9000]),
        "bytes": lambda: chance.randbytes(chance.choice([0, 1, 20_000])),
        "records": lambda: chance.randbytes(chance.choice([0, 1, 20_000])),
    }[kind]()


def as_fields(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: as_fields(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return [as_fields(item) for item in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_each_version_is_written_as_kio_writes_it(api_key: int, version: int) -> None:
    chance, schema = random.Random(api_key * 100 + version), load_response_schema(api_key, version)
    for _ in range(10):
        fields, writer = some_fields(schema, chance), ChunkWriter()
        _writer(api_key, version)[1](writer, fields)
        data = writer.joined()
        body, size = entity_reader(schema)(data, 0)
        assert size == len(data)
        assert encode(body) == data
        assert_has(as_fields(body), fields)


def assert_has(actual: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert_has(actual[name], value)
    elif isinstance(expected, list):
        for item, expected_item in zip(actual, expected, strict=True):
            assert_has(item, expected_item)
    else:
        assert actual == expected


def test_large_bytes_are_not_copied_and_the_length_counts_all_chunks() -> None:
    records = memoryview(bytes(100_000))
    partition = {"partition_index": 1, "error_code": ErrorCode.none, "records": records}
    chunks = write_response(1, 12, 77, {"responses": [{"topic": "clicks", "partitions": [partition]}]})
    assert records in chunks
    frame = b"".join(chunks)
    assert (int.from_bytes(frame[:4], "big"), int.from_bytes(frame[4:8], "big")) == (len(frame) - 4, 77)


def test_an_unknown_field_fails() -> None:
    with pytest.raises(ValueError, match="no version of FetchableTopicResponse has"):
        write_response(1, 12, 1, {"responses": [{"topik": "clicks"}]})
