"""Values of Protobuf as columns: types, message indexes, and invalid values."""

from __future__ import annotations

import base64
import pickle
import sys
import uuid
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from framed_values import framed

import distlog
from distlog.core.schemas.protobuf import Message, compile_schema
from distlog.core.schemas.registry import Schema

pytest.importorskip("google.protobuf")
pytest.importorskip("ptars")
pytest.importorskip("grpc_tools")

TEXT = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Kind { VIEW = 0; BUY = 1; }
message Address {
  message Place { int32 floor = 1; }
  string city = 1;
  optional int32 zip = 2;
}
message Click {
  string user = 1;
  int64 count = 2;
  optional string note = 4;
  google.protobuf.Timestamp at = 5;
  Kind kind = 6;
  Address address = 7;
  repeated string tags = 8;
  map<string, int64> counts = 9;
  bytes raw = 10;
  oneof other { string text = 11; int32 number = 12; }
  google.protobuf.UInt32Value wrapped = 13;
}
"""
CLICK, ADDRESS, NESTED_INDEX = b"\x02\x02", b"\0", b"\x04\0\0"
REGISTRY = {7: Schema("PROTOBUF", TEXT)}


def message_class(name: str, text: str = TEXT) -> Any:
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in compile_schema(Schema("PROTOBUF", text)):
        pool.AddSerializedFile(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def click(**fields: Any) -> bytes:
    data: bytes = message_class("shop.Click")(**fields).SerializeToString()
    return data


def topic_of(*values: bytes | None) -> distlog.Topic:
    topic = distlog.create(f"memory://{uuid.uuid4().hex}/clicks", config={"retention.ms": -1})
    topic.append([{"value": value, "timestamp": 1000} for value in values])
    return topic


def test_fields_replace_the_value_with_arrows_types() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, timezone.utc)
    full = click(
        user="ann",
        count=-5,
        note="",
        at=moment,
        kind=1,
        address={"city": "Ulm"},
        tags=["a", "b"],
        counts={"x": 1},
        raw=b"\xff",
        number=3,
        wrapped={"value": 4},
    )
    table = (
        topic_of(framed(7, CLICK + full), framed(7, CLICK + click(user="bob")), None)
        .scan()
        .protobuf(registry=REGISTRY)
    )
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    assert table.schema.field("kind").type == pa.string()
    names = [*table.schema.names[table.schema.names.index("user") :]][:12]
    assert table.select(names).to_pylist() == [
        {
            "user": "ann",
            "count": -5,
            "note": "",
            "at": moment,
            "kind": "BUY",
            "address": {"city": "Ulm", "zip": None},
            "tags": ["a", "b"],
            "counts": [("x", 1)],
            "raw": b"\xff",
            "text": None,
            "number": 3,
            "wrapped": 4,
        },
        {
            **dict.fromkeys(names),
            "user": "bob",
            "count": 0,
            "kind": "VIEW",
            "tags": [],
            "counts": [],
            "raw": b"",
        },
        dict.fromkeys(names),
    ]


def test_a_header_selects_the_message_in_the_schema() -> None:
    data = message_class("shop.Address.Place")(floor=3).SerializeToString()
    assert topic_of(framed(7, NESTED_INDEX + data)).scan(columns="value").protobuf(registry=REGISTRY).to_pydict() == {
        "floor": [3]
    }
    address = message_class("shop.Address")(city="Ulm").SerializeToString()
    for header in (ADDRESS, b"\x02\0"):
        table = topic_of(framed(7, header + address)).scan(columns="value").protobuf(registry=REGISTRY)
        assert table["city"].to_pylist() == ["Ulm"]


def test_a_class_its_descriptor_and_its_text_are_equivalent() -> None:
    scan = topic_of(click(user="ann"), None).scan(columns="value")
    kind = message_class("shop.Click")
    table = scan.protobuf(kind)
    assert table["user"].to_pylist() == ["ann", None]
    assert scan.protobuf(kind.DESCRIPTOR) == table
    assert scan.protobuf(TEXT, message="shop.Click") == table
    message = Message.of(kind)
    assert pickle.loads(pickle.dumps(message)).schema == message.schema


def test_values_of_older_schemas_are_read_by_the_numbers_of_fields() -> None:
    newer = TEXT.replace("string user = 1;", "string who = 1; string country = 14;")
    registry = {7: Schema("PROTOBUF", TEXT), 8: Schema("PROTOBUF", newer)}
    new = message_class("shop.Click", newer)(who="bob", country="DE").SerializeToString()
    topic = topic_of(framed(8, CLICK + new), framed(7, CLICK + click(user="ann")))
    table = topic.scan(columns="value").protobuf(registry=registry)
    assert table.select(["who", "country"]).to_pydict() == {"who": ["bob", "ann"], "country": ["DE", ""]}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "no header"),
        (framed(9, CLICK), "schema 9"),
        (framed(7, b""), "has no indexes of a message"),
        (framed(7, b"\x02"), "has no indexes of a message"),
        (framed(7, b"\xfe\xff\xff\xff\x7f" + b"\0" * 90), "has no indexes of a message"),
        (framed(7, b"\x01"), "has no indexes of a message"),
        (framed(7, b"\x02\x10"), "no message with these indexes"),
        (framed(7, NESTED_INDEX), "a shop.Address.Place, not a shop.Click"),
        (framed(7, CLICK + b"\xff"), "not a shop.Click of Protobuf"),
        (framed(7, CLICK + b"\x0a\x02\xff\xfe"), "not a shop.Click of Protobuf"),
    ],
)
def test_an_invalid_message_is_named_with_its_partition_and_offset(bad: bytes, reason: str) -> None:
    good = framed(7, CLICK + click(user="ann"))
    topic = topic_of(good, None, bad, good)
    with pytest.raises(distlog.InvalidRecordError, match=rf"{reason}.*on_error='null'.*partition=0 offset=2"):
        topic.scan(columns="value").protobuf(registry=REGISTRY, message="shop.Click")
    table = topic.scan(columns="value").protobuf(registry=REGISTRY, on_error="null")
    assert table["user"].to_pylist() == ["ann", None, None, "ann"]


@pytest.mark.parametrize("value", [None, b"17"], ids=["tombstone", "without a header"])
def test_a_batch_without_any_message_has_null_fields(value: bytes | None) -> None:
    scan = topic_of(value, value).scan(columns="value")
    table = scan.protobuf(TEXT, message="shop.Click", registry=REGISTRY, on_error="null")
    assert table["user"].to_pylist() == [None, None]


@pytest.mark.long
def test_bad_messages_among_many_are_detected() -> None:
    values = [framed(7, CLICK + click(user=f"u{number}")) for number in range(300)]
    values[5] = values[299] = framed(7, CLICK + b"\xff")
    read_values = (
        topic_of(*values).scan(columns="value").protobuf(registry=REGISTRY, on_error="null")["user"].to_pylist()
    )
    assert read_values == [None if number in (5, 299) else f"u{number}" for number in range(300)]
    bad = topic_of(*[framed(7, CLICK + b"\xff")] * 3).scan(columns="value")
    assert bad.protobuf(registry=REGISTRY, on_error="null")["user"].to_pylist() == [None] * 3


def test_a_schema_may_be_the_descriptor_of_its_file() -> None:
    descriptor = base64.b64encode(
        compile_schema(Schema("PROTOBUF", 'syntax = "proto3"; message A { int32 x = 1; }'))[-1]
    )
    registry = {1: Schema("PROTOBUF", descriptor.decode())}
    topic = topic_of(framed(1, b"\0\x08\x05"))
    assert topic.scan(columns="value").protobuf(registry=registry).to_pydict() == {"x": [5]}


def test_a_schema_with_imports_is_compiled_with_them() -> None:
    inner = 'syntax = "proto3"; package a; message In { int32 x = 1; }'
    outer = 'syntax = "proto3"; import "a/in.proto"; message Out { a.In inside = 1; }'
    files = compile_schema(Schema("PROTOBUF", outer, (("a/in.proto", inner),)))
    assert Message(files, "Out").schema == pa.schema([("inside", pa.struct([pa.field("x", pa.int32(), False)]))])
    for name in ("/tmp/x.proto", "../x.proto"):
        with pytest.raises(distlog.InvalidConfigError, match="an import's name must be a path in"):
            compile_schema(Schema("PROTOBUF", outer, ((name, inner),)))


def test_invalid_and_empty_schemas_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    scan = topic_of(b"").scan()
    with pytest.raises(distlog.InvalidConfigError, match="not a Protobuf schema"):
        scan.protobuf("message {")
    assert "value.proto:1" in capfd.readouterr().err
    with pytest.raises(distlog.InvalidConfigError, match="a recursive message"):
        scan.protobuf('syntax = "proto3"; message A { A next = 1; }')
    with pytest.raises(
        distlog.InvalidConfigError, match="of Protobuf are not supported: use a schema with proto2 or proto3"
    ):
        scan.protobuf('edition = "2023"; message A { int32 x = 1; }')
    with pytest.raises(distlog.InvalidConfigError, match=r"no message shop\.None"):
        scan.protobuf(TEXT, message="shop.None")
    with pytest.raises(distlog.InvalidConfigError, match="a generated class, its descriptor, or the text"):
        scan.protobuf(5)
    with pytest.raises(distlog.InvalidConfigError, match="a schema, a registry, or both"):
        scan.protobuf()


def test_without_ptars_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ptars", None)
    with pytest.raises(ModuleNotFoundError, match=r"protobuf\(\) needs ptars: pip install 'pydistlog\[protobuf\]'"):
        topic_of(b"").scan().protobuf(TEXT)


def field(number: int, content: bytes) -> bytes:
    """Return a field of bytes, encoded as in a message."""
    return bytes([number << 3 | 2, len(content)]) + content


def time_of(seconds: int) -> bytes:
    """Return a click at a time that may be one that Protobuf's own library refuses."""
    from google.protobuf.timestamp_pb2 import Timestamp

    return field(5, Timestamp(seconds=seconds).SerializeToString())


def test_the_last_field_of_a_oneof_applies_as_in_protobuf() -> None:
    text, number = click(text="a"), click(number=3)
    orders = [text + number, number + text, text, number]
    table = topic_of(*orders).scan(columns="value").protobuf(TEXT, message="shop.Click")
    assert table.select(["text", "number"]).to_pylist() == [
        {"text": None, "number": 3},
        {"text": "a", "number": None},
        {"text": "a", "number": None},
        {"text": None, "number": 3},
    ]


def test_the_last_field_of_a_nested_oneof_applies() -> None:
    text = """syntax = "proto3"; message Out { repeated Way ways = 1; map<string, Way> named = 2; }
        message Way { oneof by { string road = 1; string rail = 2; } }"""
    way = field(1, b"A8") + field(2, b"ICE")
    table = topic_of(field(1, way), field(2, field(1, b"x") + field(2, way))).scan(columns="value").protobuf(text)
    only = {"road": None, "rail": "ICE"}
    assert table.to_pylist() == [{"ways": [only], "named": []}, {"ways": [], "named": [("x", only)]}]


def test_odd_messages_with_a_repeated_oneof_are_read() -> None:
    text = """syntax = "proto2";
        message Way { required int32 id = 1; oneof by { string road = 2; string rail = 3; } }"""
    both_fields, lacking = field(2, b"A8") + field(3, b"ICE"), field(2, b"A1")
    # an unknown group, with the end of another one
    odd = field(2, b"A2") + bytes([15 << 3 | 3, 14 << 3 | 4])
    table = topic_of(both_fields, lacking, odd).scan(columns="value").protobuf(text)
    assert table.select(["road", "rail"]).to_pylist() == [
        {"road": None, "rail": "ICE"},
        {"road": "A1", "rail": None},
        {"road": "A2", "rail": None},
    ]


@pytest.mark.parametrize("seconds", [253_402_300_800, -62_135_596_801, 2**63 - 1])
def test_a_time_out_of_protobufs_range_is_a_bad_value(seconds: int) -> None:
    scan = topic_of(time_of(253_402_300_799), time_of(seconds), time_of(-62_135_596_800)).scan()
    with pytest.raises(distlog.InvalidRecordError, match=r"a Timestamp is out of the range of Protobuf.*offset=1"):
        scan.protobuf(TEXT, message="shop.Click")
    times = scan.protobuf(TEXT, message="shop.Click", on_error="null")["at"].cast(pa.int64()).to_pylist()
    assert times == [253_402_300_799_000_000, None, -62_135_596_800_000_000]
