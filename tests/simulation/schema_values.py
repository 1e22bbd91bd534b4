"""An actor that appends values with schemas among other records, and reads them with a schema registry."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from random import Random
from typing import Any, Literal

import pyarrow as pa

import distlog
from distlog import InvalidRecordError, OffsetOutOfRangeError, SnapshotTooOldError, TopicExistsError
from distlog.core.errors import CommitStateUnknownError, SchemaNotFoundError, TopicNotFoundError
from distlog.core.schemas.registry import Schema, SchemaRegistry
from simulation.actors import PASSING, Memory, Stage, make
from simulation.oracle import NewRecord, Rows
from simulation.world import Process

_OLD_FIELDS: list[Any] = [{"name": "number", "type": "long"}, {"name": "page", "type": "string"}]
_NEW_FIELDS: list[Any] = [
    {"name": "spent", "type": ["null", "double"], "default": None},
    {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
]
_AVRO = {1: _OLD_FIELDS, 2: [*_OLD_FIELDS, *_NEW_FIELDS]}
_PROTOBUF = 'syntax = "proto3"; message Click { int64 number = 1; string page = 2; optional double spent = 3; }'
#: The schemas by their ids. No registry has the last id.
_SCHEMAS = {
    **{id_: Schema("AVRO", json.dumps({"type": "record", "name": "Click", "fields": _AVRO[id_]})) for id_ in _AVRO},
    3: Schema("PROTOBUF", _PROTOBUF),
}
_UNKNOWN = 9
_EPOCH = datetime.fromtimestamp(0, timezone.utc)
_Fields = Mapping[str, Any]


def appends_values(stage: Stage, process: Process, memory: Memory) -> None:
    """Append good and bad values of several schemas, and decode what the topic has."""
    oracle, random, topic = stage.oracle, process.random, stage.open()
    while stage.goes_on():
        batch, table = stage.batch_of([_record(stage, random) for _ in range(random.choice((1, 3, 6)))], memory.name)
        topic_id = topic.snapshot.topic_id
        batch.tried.add(topic_id)
        try:
            batch.acknowledge(topic_id, topic.append(table).offsets)
        except CommitStateUnknownError:
            pass
        except PASSING as error:
            batch.refused = True
            topic = stage.open() if isinstance(error, TopicNotFoundError) else topic
        stage.pause(random)
        if random.random() < 0.5:
            continue
        start_s = oracle.world.now
        with suppress(*stage.passing, OffsetOutOfRangeError, TopicExistsError):
            registry = SchemaRegistry(_SCHEMAS) if random.random() < 0.3 else _stored_registry(stage)
            read = stage.open()
            try:
                for text in _wrong_values(read, oracle.rows_at(read.version), registry, random):
                    oracle.says(f"version {read.version}: {text}")
            except SnapshotTooOldError:
                if not oracle.may_lack_files(read.version, start_s):
                    oracle.says(f"version {read.version} is too old to be decoded, and its files are kept")


def _record(stage: Stage, random: Random) -> NewRecord:
    number = next(stage.names)
    value = _value(random.choice((1, 1, 2, 2, 3, 3, _UNKNOWN)), number)
    if random.random() < 0.15:
        # its text is longer than its bytes
        value = value[:-1]
    return NewRecord(None, b"k%d" % random.randrange(stage.keys) if stage.keys else None, value, ())


def _stored_registry(stage: Stage) -> SchemaRegistry:
    """Open a registry whose schemas are in a topic, and register those that it does not have."""
    url = f"{stage.url.rpartition('/')[0]}/schemas/_schemas"
    with suppress(TopicExistsError):
        make(url, 1, {"cleanup.policy": "compact"})
    topic = distlog.open(url)
    registry = SchemaRegistry(topic)
    for id_, schema in _SCHEMAS.items():
        with suppress(SchemaNotFoundError):
            if registry.schema(id_) != schema:
                stage.oracle.says(f"the registry has {registry.schema(id_)} with the id {id_}, not {schema}")
            continue
        key = {"keytype": "SCHEMA", "subject": "clicks-value", "version": id_, "magic": 1}
        # a deleted version has its schema for its values
        value = {"schema": schema.text, "schemaType": schema.kind, "id": id_, "deleted": id_ == 1}
        topic.append([{"key": json.dumps(key).encode(), "value": json.dumps(value).encode()}])
    newest = registry.latest("clicks-value")
    if newest != _SCHEMAS[max(_SCHEMAS)]:
        stage.oracle.says(f"the newest schema of the registry is {newest}")
    return registry


def _wrong_values(topic: distlog.Topic, rows: Rows, registry: SchemaRegistry, random: Random) -> Iterator[str]:
    """Yield what is wrong with the decoded values of a range of a partition."""
    number = random.randrange(topic.partitions)
    first = random.randint(topic.start_offsets()[number], topic.end_offsets()[number])
    values = {location: row.value for location, row in sorted(rows.items()) if location >= (number, first)}
    values = {location: value for location, value in values.items() if location[0] == number}
    scan = topic.scan(number, start=first, columns=("partition", "offset", "value"))
    kind: Literal["avro", "protobuf"] = random.choice(("avro", "protobuf"))
    ids = {value[4] for value in values.values() if value and value[:4] == bytes(4)}
    reader = max(ids & ({*_AVRO} if kind == "avro" else {3}), default=0)
    schema: str | None = None
    if not reader or random.random() < 0.5:
        reader = random.choice([*_AVRO]) if kind == "avro" else 3
        schema = _SCHEMAS[reader].text
    expected = {location: _decoded(value, kind, reader) for location, value in values.items()}
    decode: Callable[..., pa.Table] = partial(getattr(scan, kind), schema, registry=registry)
    is_flat = random.random() < 0.5
    answer = _fields_by_offset(decode(flatten=is_flat, on_error="null"), is_flat)
    blank: _Fields | None = dict.fromkeys(_names(reader)) if is_flat else None
    if answer != {location: fields or blank for location, fields in expected.items()}:
        yield f"the {kind} values of partition {number} from {first} on are {answer}, not {expected}"
    bad = [location for location, value in values.items() if value is not None and expected[location] is None]
    try:
        decode(on_error="fail")
    except InvalidRecordError as error:
        location = error.details["partition"], error.details["offset"]
        if location not in bad[:1]:
            yield f"{location} is reported as the first bad {kind} value, and the bad values are at {bad}"
    else:
        if bad:
            yield f"a scan reports no bad {kind} value, and the bad values are at {bad}"


def _fields_by_offset(table: pa.Table, is_flat: bool) -> dict[tuple[int, int], _Fields | None]:
    rows = {(row.pop("partition"), row.pop("offset")): row for row in table.to_pylist()}
    return rows if is_flat else {location: row["value"] for location, row in rows.items()}


# ---
# Values in Confluent's wire format, by the specifications of Avro and Protobuf. Their fields depend on their numbers.


def _names(schema_id: int) -> Sequence[str]:
    return [field["name"] for field in _AVRO[schema_id]] if schema_id in _AVRO else ("number", "page", "spent")


def _fields(number: int) -> dict[str, Any]:
    spent = None if number % 3 == 0 else number / 4
    return {
        "number": number,
        "page": "/é" + "x" * (number % 70),
        "spent": spent,
        "time": _EPOCH + timedelta(seconds=number),
    }


def _value(schema_id: int, number: int) -> bytes:
    """Return the value that has a number, and its fields in a schema."""
    fields = _fields(number)
    page: bytes = fields["page"].encode()
    spent: float | None = fields["spent"]
    double = b"" if spent is None else struct.pack("<d", spent)
    header = struct.pack(">bi", 0, schema_id)
    if schema_id == 3:
        # the indexes of the message, and its fields with their numbers and types
        optional = b"" if spent is None else b"\x19" + double
        return header + b"\0\x08" + _varint(number) + optional + b"\x12" + _varint(len(page)) + page
    value = header + _varint(2 * number)
    if schema_id == 2:
        page += (b"\0" if spent is None else b"\x02" + double) + _varint(2 * 1000 * number)
    return value + _varint(2 * len(fields["page"].encode())) + page


def _decoded(value: bytes | None, kind: str, reader: int) -> _Fields | None:
    """Return the fields of a value in the schema of the columns; None if it is bad."""
    if value is None or len(value) < 6 or value[:4] != bytes(4):
        return None
    written = value[4]
    if written not in (_AVRO if kind == "avro" else (3,)):
        return None
    number = _number(value[7:]) if written == 3 else _number(value[5:]) // 2
    if value != _value(written, number):
        return None
    missing = {"spent": None, "time": _EPOCH} if written == 1 else {}
    fields = {**_fields(number), **missing}
    return {name: fields[name] for name in _names(reader)}


def _varint(number: int) -> bytes:
    data = b""
    while number > 127:
        data, number = data + bytes([number & 127 | 128]), number >> 7
    return data + bytes([number])


def _number(data: bytes) -> int:
    number = 0
    for index, byte in enumerate(data):
        number |= (byte & 127) << 7 * index
        if byte < 128:
            break
    return number


def has_values(seed: int) -> bool:
    """Whether a history has this actor."""
    return seed % 28 in (3, 19)
