"""Values with schemas in Spark: JSON, Avro and Protobuf as columns, of batches and of streams, without jars."""

from __future__ import annotations

import uuid
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from framed_values import avro, framed, registered, registry
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import distlog
from distlog.spark import decode, read, stream

pytest.importorskip("fastavro")
pytest.importorskip("pandas")

pytestmark = pytest.mark.spark

OLD = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "user", "type": ["null", "string"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "long"}}},
    ],
}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "country", "type": "string", "default": "IT"}]}
MOMENT = datetime(2026, 1, 2, 3, 4, 5)
CLICK = {
    "user": "ann",
    "day": date(2026, 1, 2),
    "clock": time(0, 0, 1),
    "at": MOMENT.replace(tzinfo=timezone.utc),
    "price": Decimal("1.50"),
    "tags": {"a": [1, 2]},
}
ROW = {**CLICK, "at": MOMENT, "clock": 1_000_000}


def topic_of(folder: Path, *values: Any) -> distlog.Topic:
    topic = distlog.create(str(folder / uuid.uuid4().hex / "clicks"), config={"retention.ms": -1})
    topic.append([{"key": b"k", "value": value} for value in values])
    return topic


def test_avro_is_decoded_by_a_registry_s_topic_in_tasks(spark: SparkSession, tmp_path: Path) -> None:
    schemas = distlog.create(str(tmp_path / "_schemas"), config={"retention.ms": -1})
    schemas.append([registered("clicks-value", 1, 3, OLD), registered("clicks-value", 2, 9, NEW)])
    values = [framed(3, avro(OLD, CLICK)), None, framed(9, avro(NEW, {**CLICK, "country": "DE"})), b"bad"]
    frame = read(spark, topic_of(tmp_path, *values).url, columns=["partition", "offset", "value"])
    schema_registry = distlog.SchemaRegistry(schemas)
    decoded = decode(frame, "avro", schema_registry.latest("clicks-value"), registry=schema_registry, on_error="null")
    rows = [row.asDict() for row in decoded.orderBy("offset").collect()]
    assert decoded.columns == ["partition", "offset", *ROW, "country"]
    assert rows[0] == {"partition": 0, "offset": 0, **ROW, "country": "IT"}
    assert rows[2] == {"partition": 0, "offset": 2, **ROW, "country": "DE"}
    assert rows[1] == {"partition": 0, "offset": 1, **dict.fromkeys([*ROW, "country"])}
    assert rows[3] == {**rows[1], "offset": 3}
    with pytest.raises(Exception, match=r"no header with a schema's id.*partition=0 offset=3"):
        decode(frame, "avro", NEW, registry=schema_registry).collect()
    nested = decode(frame, "avro", OLD, registry=schema_registry, flatten=False, on_error="null")
    assert [row.value is None for row in nested.orderBy("offset").collect()] == [False, True, False, True]


def test_protobuf_is_decoded_by_a_registry_server(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("ptars")
    pytest.importorskip("grpc_tools")
    text = 'syntax = "proto3"; message Click { string user = 1; uint64 count = 2; uint32 small = 3; }'
    topic = topic_of(tmp_path, framed(7, b"\0\x0a\x03ann\x10\x05\x18\x06"), None)
    with registry({"/schemas/ids/7": {"schema": text, "schemaType": "PROTOBUF"}}) as server:
        decoded = decode(read(spark, topic.url, columns=["value"]), "protobuf", text, registry=server.url)
        assert [row.asDict() for row in decoded.collect()] == [
            {"user": "ann", "count": Decimal(5), "small": 6},
            {"user": None, "count": None, "small": None},
        ]


def test_a_stream_is_decoded(spark: SparkSession, tmp_path: Path) -> None:
    topic = topic_of(tmp_path, framed(3, avro(OLD, CLICK)))
    decoded = decode(stream(spark, topic.url, ["value"], start=distlog.EARLIEST), "avro", OLD, registry={3: OLD})
    query = decoded.writeStream.format("memory").queryName("decoded").trigger(availableNow=True).start()
    query.awaitTermination()
    assert [row.asDict() for row in spark.table("decoded").collect()] == [ROW]


def test_json_is_decoded_by_a_schema_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    frame = read(spark, topic_of(tmp_path, '{"user": "ann", "n": 1}', None, "{}").url, columns=["value", "offset"])
    decoded = decode(frame, "json", "user string, n long")
    assert [tuple(row) for row in decoded.orderBy("offset").collect()] == [
        ("ann", 1, 0),
        (None, None, 1),
        (None, None, 2),
    ]
    assert decoded.columns == ["user", "n", "offset"]
    bad = read(spark, topic_of(tmp_path, '{"n": 1}', "{", '{"n": "x"}', b"").url, columns=["offset", "value"])
    assert [row.n for row in decode(bad, "json", "n long", on_error="null").orderBy("offset").collect()] == [
        1,
        None,
        None,
        None,
    ]
    with pytest.raises(Exception, match=r"the value is not JSON.*offset=1"):
        decode(bad.where("offset = 1"), "json", "n long").collect()
    nested = decode(frame, "json", "user string", flatten=False)
    assert [row.value and row.value.user for row in nested.orderBy("offset").collect()] == ["ann", None, None]


def test_a_lone_surrogate_is_a_replacement_character(spark: SparkSession, tmp_path: Path) -> None:
    halves = [
        rb'{"a": "\ud83d", "n": 1}',
        rb'{"a": "x\uDE00\ud83d\ude00", "n": 2}',
        rb'{"a": "\\ud83d \\\ud83d", "n": 3}',
        rb'{"a": "\ud83d\ud83d\ude00\u00e4\ude00\ude00", "n": 4}',
        rb'{"\udfff": 0, "a": "b", "n": 5}',
    ]
    frame = read(spark, topic_of(tmp_path, *halves).url, columns=["offset", "value"])
    rows = decode(frame, "json", "a string, n long").orderBy("offset").collect()
    texts = ["\ufffd", "x\ufffd😀", "\\ud83d \\\ufffd", "\ufffd😀ä\ufffd\ufffd", "b"]
    assert [(row.a, row.n) for row in rows] == list(zip(texts, range(1, 6), strict=True))


def test_json_is_parsed_once_for_any_number_of_fields(spark: SparkSession, tmp_path: Path) -> None:
    frame = read(spark, topic_of(tmp_path, "{}").url, columns=["offset", "value"])

    def reads(fields: int, where: str = "true", **how: Any) -> int:
        decoded = decode(frame, "json", ", ".join(f"n{number} long" for number in range(fields)), **how).where(where)
        return int(decoded._jdf.queryExecution().optimizedPlan().toString().count("from_json("))

    assert (reads(9), reads(9, on_error="null"), reads(9, flatten=False)) == (1, 1, 1)
    assert reads(9, "n1 = 1") == reads(3, "n1 = 1")
    assert reads(9, "value.n1 = 1", flatten=False) == reads(3, "value.n1 = 1", flatten=False)


def test_columns_with_dots_stay_next_to_json_fields(spark: SparkSession, tmp_path: Path) -> None:
    frame = read(spark, topic_of(tmp_path, '{"c.d": 1}').url, columns=["value"]).withColumn("a.b`", F.lit("x"))
    (row,) = decode(frame, "json", "`c.d` long").collect()
    assert row.asDict() == {"c.d": 1, "a.b`": "x"}


def test_text_after_a_json_object_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    values = '{"n": 1} \r\n\t', '{"n": 1}{"n": 2}', '{"n": 1}]', '{"n": 1},{"n": 2}', '{"n": 1} x'
    frame = read(spark, topic_of(tmp_path, *values).url, columns=["offset", "value"])
    decoded = decode(frame, "json", "n long", on_error="null").orderBy("offset")
    assert [row.n for row in decoded.collect()] == [1, None, None, None, None]


def test_the_header_of_json_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    topic = topic_of(tmp_path, framed(5, b'{"n": 1}'), b'{"n": 2}', None)
    frame = read(spark, topic.url, columns=["offset", "value"])
    decoded = decode(frame, "json", "n long", framed=True, on_error="null")
    assert [row.n for row in decoded.orderBy("offset").collect()] == [1, None, None]
    with pytest.raises(Exception, match=r"the value is not JSON.*offset=1"):
        decode(frame, "json", "n long", framed=True).collect()


def test_arguments_are_checked_before_any_task_runs(spark: SparkSession, tmp_path: Path) -> None:
    frame = read(spark, topic_of(tmp_path, "x").url)
    for arguments, reason in (
        (("xml", "n long"), "a format must be one of"),
        (("json", "key string"), "the column key exists already"),
        (("json", 5), "a schema of JSON"),
        (("avro", {"type": "record", "name": "R", "fields": [{"name": "key", "type": "int"}]}), "key exists already"),
        (("avro", "nope"), "not an Avro schema"),
    ):
        with pytest.raises(distlog.InvalidConfigError, match=reason):
            decode(frame, *arguments)  # type: ignore[arg-type]
    with pytest.raises(distlog.InvalidConfigError, match="a binary column `value`"):
        decode(frame.drop("value"), "json", "n long")
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 45, "scale": 1}
    with pytest.raises(distlog.InvalidConfigError, match="more than 38 digits"):
        decode(frame.select("value"), "avro", wide)
