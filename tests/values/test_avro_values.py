"""Values of Avro as columns: types, headers, evolving schemas, and invalid values."""

from __future__ import annotations

import json
import sys
import uuid
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from framed_values import avro, framed

import distlog

pytest.importorskip("fastavro")
pytest.importorskip("pyruhvro")

CLICK = {
    "type": "record",
    "name": "Click",
    "namespace": "shop",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "count", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["VIEW", "BUY"]}},
        {
            "name": "address",
            "type": ["null", {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}],
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6000, timezone.utc)


def click(number: int, **other: Any) -> dict[str, Any]:
    return {
        "user": f"user-{number}",
        "count": number,
        "note": "n" if number % 2 else None,
        "at": MOMENT,
        "kind": "VIEW",
        "address": {"city": "Rome"} if number % 2 else None,
        "tags": ["a", "b"],
        **other,
    }


def topic_of(*values: bytes | None) -> distlog.Topic:
    topic = distlog.create(f"memory://{uuid.uuid4().hex}/clicks", config={"retention.ms": -1})
    topic.append([{"key": b"k", "value": value, "timestamp": 1000} for value in values])
    return topic


def record_of(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "One", "fields": [{"name": "x", "type": kind}]}


def test_fields_replace_the_value_with_arrows_types() -> None:
    topic = topic_of(framed(7, avro(CLICK, click(0))), None, framed(7, avro(CLICK, click(1))))
    table = topic.scan(columns=["offset", "value", "key"]).avro(registry={7: CLICK})
    assert table.schema == pa.schema(
        [
            ("offset", pa.int64()),
            ("user", pa.string()),
            ("count", pa.int64()),
            ("note", pa.string()),
            ("at", pa.timestamp("ms", "UTC")),
            ("kind", pa.string()),
            ("address", pa.struct([("city", pa.string())])),
            ("tags", pa.list_(pa.string())),
            ("key", pa.binary()),
        ]
    )
    rows = table.to_pylist()
    assert rows[0] == {"offset": 0, **click(0), "key": b"k"}
    assert rows[2] == {"offset": 2, **click(1), "key": b"k"}
    assert rows[1] == {"offset": 1, **dict.fromkeys(click(0)), "key": b"k"}


KINDS: list[tuple[Any, Any, pa.DataType, Any]] = [
    ("boolean", True, pa.bool_(), True),
    ("int", -5, pa.int32(), -5),
    ("float", 1.5, pa.float32(), 1.5),
    ("bytes", b"\xff\0", pa.binary(), b"\xff\0"),
    (["bytes", "null"], None, pa.binary(), None),
    ({"type": "fixed", "name": "F", "size": 3}, b"abc", pa.binary(3), b"abc"),
    ({"type": "map", "values": ["null", "long"]}, {"a": None, "b": 2}, pa.map_(pa.string(), pa.int64()), None),
    ({"type": "int", "logicalType": "date"}, date(1969, 1, 2), pa.date32(), date(1969, 1, 2)),
    ({"type": "int", "logicalType": "time-millis"}, time(1, 2, 3), pa.time32("ms"), time(1, 2, 3)),
    ({"type": "long", "logicalType": "time-micros"}, time(1, 2, 3, 4), pa.time64("us"), time(1, 2, 3, 4)),
    (["null", {"type": "long", "logicalType": "timestamp-micros"}], MOMENT, pa.timestamp("us", "UTC"), MOMENT),
    ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=5), pa.string(), str(uuid.UUID(int=5))),
    ({"type": "long", "logicalType": "of-no-one"}, 5, pa.int64(), 5),
    (
        ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
        Decimal("-12.34"),
        pa.decimal128(10, 2),
        Decimal("-12.34"),
    ),
    (
        {"type": "fixed", "name": "D", "size": 20, "logicalType": "decimal", "precision": 45, "scale": 1},
        Decimal("7.5"),
        pa.decimal256(45, 1),
        Decimal("7.5"),
    ),
]


@pytest.mark.parametrize(("kind", "value", "arrow", "expected"), KINDS, ids=lambda kind: None)
def test_types_and_logical_types_are_arrows(kind: Any, value: Any, arrow: pa.DataType, expected: Any) -> None:
    schema = record_of(kind)
    table = topic_of(framed(1, avro(schema, {"x": value}))).scan(columns="value").avro(registry={1: schema})
    assert table.schema.field("x").type == arrow
    values = table["x"].to_pylist()[0]
    assert (dict(values) if isinstance(value, dict) else values) == (value if isinstance(value, dict) else expected)


def test_bulk_and_single_decoding_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [{"name": f"x{n}", "type": kind} for n, (kind, *_) in enumerate(KINDS)]
    fields += [{"name": "again", "type": "shop.Address"}]
    schema = {**CLICK, "fields": [*CLICK["fields"][:6], fields[1], fields[2], *fields[6:8], fields[-1]]}
    value = {**click(3), "x1": 1, "x2": 0.5, "x6": {"a": 1}, "x7": date(2026, 1, 1), "again": {"city": "Ulm"}}
    topic = topic_of(*[framed(1, avro(schema, value))] * 3)
    bulk = topic.scan().avro(registry={1: schema})
    called: list[int] = []
    monkeypatch.setattr("fastavro.schemaless_reader", lambda *arguments: called.append(1))
    assert topic.scan().avro(registry={1: schema}) == bulk
    assert called == []
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert topic.scan().avro(registry={1: schema}) == bulk


def test_values_without_headers_are_decoded_by_a_schema() -> None:
    topic = topic_of(avro(CLICK, click(1)), None)
    assert topic.scan(columns="value").avro(CLICK)["user"].to_pylist() == ["user-1", None]
    assert topic.scan(columns="value").avro(json.dumps(CLICK))["count"].to_pylist() == [1, None]
    assert topic_of(avro("string", "text"), None).scan(columns="value").avro("string").to_pydict() == {
        "value": ["text", None]
    }


@pytest.mark.parametrize("count", [1, 200])
def test_values_with_extra_bytes_are_refused(count: int) -> None:
    """Values with a registry's header, when only a schema is given: five zeros are a number and a text."""
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
    }
    topic = topic_of(*[framed(0, avro(schema, {"a": 1, "b": "x"}))] * count)
    with pytest.raises(distlog.InvalidRecordError, match=r"6 bytes follow the value.*offset=0"):
        topic.scan(columns="value").avro(schema)
    assert topic.scan(columns="value").avro(schema, on_error="null")["a"].null_count == count
    assert topic.scan(columns="value").avro(schema, registry={0: schema})["a"].to_pylist() == [1] * count


def test_bytes_after_a_value_of_a_registered_schema_are_ignored() -> None:
    long = framed(7, avro(CLICK, click(1)) + b"more")
    for values in ([long], [long, framed(7, b"\xff")]):
        table = topic_of(*values).scan(columns="value").avro(registry={7: CLICK}, on_error="null")
        assert table["count"].to_pylist() == [1, None][: len(values)]


def test_one_column_may_hold_all_fields() -> None:
    topic = topic_of(framed(7, avro(CLICK, click(1))), None, b"bad")
    table = topic.scan(columns=["value", "offset"]).avro(registry={7: CLICK}, flatten=False, on_error="null")
    assert table.schema.names == ["value", "offset"]
    assert table["value"].to_pylist() == [click(1), None, None]


NEWER = {
    **CLICK,
    "fields": [
        {"name": "count", "type": "double"},
        {"name": "user", "type": ["null", "string"]},
        {"name": "country", "type": "string", "default": "IT"},
    ],
}


def test_older_values_are_resolved_to_the_newest_schema() -> None:
    new = {"count": 2.5, "user": None, "country": "DE"}
    topic = topic_of(framed(3, avro(CLICK, click(1))), framed(9, avro(NEWER, new)), framed(3, avro(CLICK, click(2))))
    table = topic.scan(columns="value").avro(registry={3: CLICK, 9: NEWER})
    assert table.to_pydict() == {
        "count": [1.0, 2.5, 2.0],
        "user": ["user-1", None, "user-2"],
        "country": ["IT", "DE", "IT"],
    }
    reader = {**CLICK, "fields": [{"name": "user", "type": ["null", "string"]}]}
    assert topic.scan(columns="value").avro(reader, registry={3: CLICK, 9: NEWER}).to_pydict() == {
        "user": ["user-1", None, "user-2"]
    }


def time_of(kind: str, unit: str) -> dict[str, str]:
    return {"type": kind, "logicalType": unit}


@pytest.mark.parametrize("more", [[], [{"name": "new", "type": "int", "default": 0}]])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda kind: kind,
        lambda kind: ["null", kind],
        lambda kind: {"type": "array", "items": kind},
        lambda kind: {"type": "map", "values": kind},
        lambda kind: {"type": "record", "name": "Inner", "fields": [{"name": "y", "type": kind}]},
    ],
)
def test_times_keep_their_value_when_the_unit_changes(wrap: Any, more: list[Any]) -> None:
    old = record_of(wrap(time_of("long", "timestamp-millis")))
    new = record_of(wrap(time_of("long", "timestamp-micros")))
    new["fields"] += more

    def value(schema: dict[str, Any], added: dict[str, int]) -> bytes:
        kind = schema["fields"][0]["type"]
        inside = {"array": [MOMENT], "map": {"a": MOMENT}, "record": {"y": MOMENT}}
        moment = inside.get(kind["type"], MOMENT) if isinstance(kind, dict) else MOMENT
        return avro(schema, {"x": moment, **added})

    values = framed(1, value(old, {})), framed(2, value(new, {moment["name"]: 0 for moment in more}))
    read_values = topic_of(*values).scan(columns="value").avro(registry={1: old, 2: new})["x"].to_pylist()
    assert read_values[0] == read_values[1]
    assert "2026" in repr(read_values[0])


def test_times_keep_their_value_when_the_field_is_renamed() -> None:
    def schema(name: str, unit: str, **options: Any) -> dict[str, Any]:
        field = {"name": name, "type": time_of("long", f"timestamp-{unit}"), **options}
        inner = {"type": "record", "name": "Inner", "fields": [field]}
        return {**inner, "name": "One", "fields": [field, {"name": "in", "type": {"type": "array", "items": inner}}]}

    old, new = schema("x", "millis"), schema("y", "micros", aliases=["z", "x"])
    value = framed(1, avro(old, {"x": MOMENT, "in": [{"x": MOMENT}]}))
    rows = topic_of(value).scan(columns="value").avro(new, registry={1: old}).to_pylist()
    assert rows == [{"y": MOMENT, "in": [{"y": MOMENT}]}]


def test_a_time_that_a_coarser_unit_cannot_hold_is_a_bad_value() -> None:
    old, new = (record_of(time_of("long", f"timestamp-{unit}")) for unit in ("micros", "millis"))
    coarse, finer = (framed(1, avro(old, {"x": MOMENT.replace(microsecond=number)})) for number in (6000, 6001))
    topic = topic_of(coarse, finer)
    table = topic.scan(columns="value").avro(new, registry={1: old}, on_error="null")
    assert table["x"].to_pylist() == [MOMENT, None]
    with pytest.raises(distlog.InvalidRecordError, match=r"does not fit its columns.*offset=1"):
        topic.scan().avro(new, registry={1: old})


BYTES_AND_SEVEN = {
    "type": "record",
    "name": "Inner",
    "fields": [{"name": "x", "type": "bytes"}, {"name": "y", "type": "int", "default": 7}],
}


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        ("bytes", "\u00ff\u0001", b"\xff\x01"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        (["null", "bytes"], None, None),
        ({"type": "fixed", "name": "Two", "size": 2}, "\u00ff\u0001", b"\xff\x01"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, "\u00ff", Decimal("-0.01")),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": "bytes"}, {"a": "\u00ff"}, [("a", b"\xff")]),
        (BYTES_AND_SEVEN, {"x": "\u00ff"}, {"x": b"\xff", "y": 7}),
        ({"type": "array", "items": BYTES_AND_SEVEN}, [{"x": "a", "y": 1}], [{"x": b"a", "y": 1}]),
    ],
)
def test_a_default_has_the_value_of_its_json(kind: Any, default: Any, expected: Any) -> None:
    old = record_of("int")
    new = {**old, "fields": [*old["fields"], {"name": "new", "type": kind, "default": default}]}
    table = topic_of(framed(1, avro(old, {"x": 1}))).scan(columns="value").avro(new, registry={1: old})
    assert table.to_pylist() == [{"x": 1, "new": expected}]


@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_an_invalid_default_of_bytes_is_an_invalid_schema(on_error: Any) -> None:
    old = record_of("int")
    new = {**old, "fields": [*old["fields"], {"name": "new", "type": "bytes", "default": "\u0100"}]}
    scan = topic_of(framed(1, avro(old, {"x": 1}))).scan(columns="value")
    with pytest.raises(
        distlog.InvalidConfigError, match="the default of a field in the Avro schema does not have the field's type"
    ):
        scan.avro(new, registry={1: old}, on_error=on_error)


def test_a_reader_schema_leaves_out_unsupported_fields() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    written = record_of(["null", "string", "long"])
    written["fields"] += [{"name": "tree", "type": node}, {"name": "kept", "type": "int"}]
    topic = topic_of(framed(1, avro(written, {"x": 5, "tree": {"next": None}, "kept": 8})))
    with pytest.raises(distlog.InvalidConfigError, match=r"a union of several types has no column.*field=x"):
        topic.scan().avro(registry={1: written})
    with pytest.raises(distlog.InvalidConfigError, match=r"a recursive record.*field=tree.next"):
        topic.scan().avro({**written, "fields": written["fields"][1:]}, registry={1: written})
    reader = {**written, "fields": [{"name": "kept", "type": "int"}]}
    assert topic.scan(columns="value").avro(reader, registry={1: written}).to_pydict() == {"kept": [8]}


WHOLE_VALUE = avro(CLICK, click(1)) if "fastavro" in sys.modules else b""


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "no header"),
        (b"\0\0\0\0", "no header"),
        (b"\1" + framed(7, WHOLE_VALUE)[1:], "no header"),
        (b'{"user": 1}', "no header"),
        (b"\0\xff\xff\xff\xff" + WHOLE_VALUE, "no header"),
        (framed(8, WHOLE_VALUE), "schema 8 is not in the dict"),
        (framed(7, b""), "not Avro"),
        (framed(7, WHOLE_VALUE[:-1]), "not Avro"),
        (framed(7, WHOLE_VALUE.replace(b"user", b"us\xffr")), "not Avro"),
        (framed(7, b"\x81\x80\x80\x80\x80\x80\x80\x80\x80\x01"), "not Avro"),
    ],
)
def test_a_value_that_cannot_be_decoded_is_named_with_its_partition_and_offset(bad: bytes, reason: str) -> None:
    good = framed(7, avro(CLICK, click(1)))
    topic = topic_of(good, None, bad, good, bad)
    with pytest.raises(distlog.InvalidRecordError, match=rf"{reason}.*on_error='null'.*partition=0 offset=2"):
        topic.scan(columns="value").avro(registry={7: CLICK})
    table = topic.scan().avro(registry={7: CLICK}, on_error="null")
    assert table["user"].to_pylist() == ["user-1", None, None, "user-1", None]


def test_a_decimal_that_its_column_cannot_hold_is_a_bad_value() -> None:
    wide = record_of({"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 0})
    narrow = record_of({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 0})
    values = [avro(wide, {"x": Decimal(number)}) for number in (12, 12345, 7)]
    topic = topic_of(*values)
    with pytest.raises(distlog.InvalidRecordError, match=r"does not fit its columns.*offset=1"):
        topic.scan(columns="value").avro(narrow)
    read_values = topic.scan(columns="value").avro(narrow, on_error="null")["x"].to_pylist()
    assert read_values == [Decimal(12), None, Decimal(7)]


def test_names_and_arguments_are_checked() -> None:
    topic = topic_of(framed(1, avro(record_of("int"), {"x": 1})))
    clash = {"type": "record", "name": "R", "fields": [{"name": "key", "type": "int"}]}
    with pytest.raises(distlog.InvalidConfigError, match=r"the column key exists already: use flatten=False"):
        topic.scan().avro(clash)
    with pytest.raises(distlog.InvalidConfigError, match="a schema, a registry, or both"):
        topic.scan().avro()
    with pytest.raises(distlog.InvalidConfigError, match="not an Avro schema"):
        topic.scan().avro('{"type": "record"}')
    with pytest.raises(ValueError, match="on_error must be one of fail, null"):
        topic.scan().avro("int", on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(distlog.InvalidConfigError, match="an array of null or empty records"):
        topic.scan().avro(record_of({"type": "array", "items": "null"}))


def test_a_small_text_cannot_expand_to_a_huge_schema() -> None:
    fields: list[Any] = ["int"]
    for level in range(40):
        inner = fields[-1]
        fields.append({"type": "record", "name": f"L{level}", "fields": [{"name": n, "type": inner} for n in "ab"]})
        fields[-1]["fields"][1]["type"] = f"L{level - 1}" if level else "int"
    with pytest.raises(distlog.InvalidConfigError, match="more than 10000 types"):
        topic_of(b"x").scan().avro(fields[-1])


def test_without_fastavro_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ModuleNotFoundError, match=r"avro\(\) needs fastavro: pip install 'pydistlog\[avro\]'"):
        topic_of(b"x").scan().avro("int")


def test_a_topic_without_values_has_the_columns_of_the_schema() -> None:
    assert topic_of().scan(columns="value").avro(CLICK).schema.names[:2] == ["user", "count"]
    assert topic_of(None).scan(columns=["offset", "value"]).avro(registry={}).to_pydict() == {"offset": [0]}
