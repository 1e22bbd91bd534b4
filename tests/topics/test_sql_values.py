"""Values as columns of a query: fields of JSON, Avro and Protobuf, and values that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from command_line import CommandLine
from framed_values import avro, framed, registered

import distlog

CLICK = {"type": "record", "name": "Click", "fields": [{"name": "user", "type": "string"}]}
NEWER = {**CLICK, "fields": [*CLICK["fields"], {"name": "ms", "type": "long", "default": -1}]}


def topic_of(folder: Path, *values: Any) -> distlog.Topic:
    """Return the topic `events` with these values in one partition, as JSON unless they are bytes or None."""
    topic = distlog.create(f"{folder}/events")
    documents = [value if isinstance(value, bytes | None) else json.dumps(value) for value in values]
    topic.append([{"key": b"k", "value": value} for value in documents])
    return topic


def events(folder: Path, **options: Any) -> list[Any]:
    """Return the values of the topic `events`, which are JSON."""
    relation = distlog.sql("SELECT value FROM events", str(folder), values={"events": "json"}, **options)
    return [value for (value,) in relation.fetchall()]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, -2, None], "BIGINT", [1, -2, None]),
        ([1, 2.5], "DOUBLE", [1.0, 2.5]),
        ([True, False], "BOOLEAN", [True, False]),
        (["a", "ü\n"], "VARCHAR", ["a", "ü\n"]),
        (["1", 2], "JSON", ['"1"', "2"]),
        ([{"b": 1}, {"b": 2, "c": None}], "STRUCT(b BIGINT, c JSON)", [{"b": 1, "c": None}, {"b": 2, "c": None}]),
        ([["a"], ["b", "c"]], "VARCHAR[]", [["a"], ["b", "c"]]),
        ([[1], [2.5]], "JSON[]", [["1"], ["2.5"]]),
        ([None, None], "JSON", [None, None]),
    ],
)
def test_a_field_has_the_type_of_its_values(tmp_path: Path, values: list[Any], kind: str, expected: Any) -> None:
    topic_of(tmp_path, *({"x": value} for value in values), {}, None)
    rows = distlog.sql("SELECT value.x, typeof(value.x) FROM events", str(tmp_path), values={"events": "json"})
    assert rows.fetchall() == [*((value, kind) for value in expected), (None, kind), (None, kind)]


def test_names_of_fields_may_be_odd(tmp_path: Path) -> None:
    names = ["a.b", "a/b", "a~b", "{0}", '"', "it's", "fields", "text"]
    topic_of(tmp_path, dict.fromkeys([*names, "", "A.B"], 1))
    assert events(tmp_path) == [dict.fromkeys(names, 1)]


BAD = [b"", b"{", b"nope", b'{"x":1}{"x":2}', b'{"x":"\xff"}', b"\0\0", b"[1]", b'{"x":"1"}', b'{"x":1.5}']


@pytest.mark.parametrize("bad", [*BAD, b'{"x":18446744073709551615}'])
def test_a_value_that_does_not_fit_the_columns_is_named_with_its_offset(tmp_path: Path, bad: bytes) -> None:
    topic = topic_of(tmp_path, *[{"x": 1}] * 100, None, bad)
    topic.append([{"value": b'{"x": 2}'}] * 100)
    with pytest.raises(duckdb.Error, match=r"value of a record of events .* schemas.*null: partition=0 offset=101"):
        events(tmp_path)
    assert events(tmp_path, on_error="null") == [{"x": 1}] * 100 + [None] * 2 + [{"x": 2}] * 100
    query = "SELECT count(*), max(key) FROM events"
    assert distlog.sql(query, str(tmp_path), values={"events": "json"}).fetchall() == [(202, "k")]


def test_a_schema_sets_the_types_of_json(tmp_path: Path) -> None:
    topic_of(tmp_path, {"x": 1, "at": "2026-01-31 12:00:00"}, {"x": 2.5})
    schema = {"x": "DOUBLE", "at": "TIMESTAMP", "later": "VARCHAR"}
    query = "SELECT value.x, year(value.at), value.later FROM events"
    for written in (schema, json.dumps(schema)):
        options: dict[str, Any] = {"values": {"events": "json"}, "schemas": {"events": written}}
        assert distlog.sql(query, str(tmp_path), **options).fetchall() == [(1.0, 2026, None), (2.5, None, None)]
    with pytest.raises(distlog.InvalidConfigError, match="schema of JSON"):
        events(tmp_path, schemas={"events": "x DOUBLE"})


def test_half_of_a_surrogate_pair_is_a_replacement_character(tmp_path: Path) -> None:
    halves = [rb'{"a": "\ud83d"}', rb'{"a": "x\uDE00\ud83d\ude00"}', rb'{"a": "\\ud83d \\\ud83d\n"}']
    topic_of(tmp_path, {"a": "😀"}, *halves)
    assert [value["a"] for value in events(tmp_path)] == ["😀", "\ufffd", "x\ufffd😀", "\\ud83d \\\ufffd\n"]


def test_the_header_of_a_registrys_json_schema_is_skipped(tmp_path: Path) -> None:
    topic_of(tmp_path, framed(5, b'{"x": 1}'), framed(6, b'{"x": 2}'))
    assert events(tmp_path) == [{"x": 1}, {"x": 2}]


def test_avro_has_the_newest_schema_of_the_registry_in_the_folder(tmp_path: Path, cli: CommandLine) -> None:
    pytest.importorskip("fastavro")
    old, new = avro(CLICK, {"user": "ann"}), avro(NEWER, {"user": "bob", "ms": 7})
    topic = topic_of(tmp_path, framed(1, old), framed(2, new), None)
    schemas = distlog.create(f"{tmp_path}/_schemas")
    schemas.append([registered("events-value", 1, 1, CLICK), registered("events-value", 2, 2, NEWER)])
    query = 'SELECT "offset", value.* FROM events WHERE "offset" < 2 AND value.ms < 9 ORDER BY ALL'
    assert distlog.sql(query, str(tmp_path), values={"events": "avro"}).fetchall() == [(0, "ann", -1), (1, "bob", 7)]
    first, *_ = cli.bare("sql", str(tmp_path), query, "--values", "events=avro", "--json").out.splitlines()
    assert json.loads(first) == {"offset": 0, "user": "ann", "ms": -1}
    url = cli.bare("sql", f"{tmp_path}/events", query, "--values", "events=avro", "--registry", schemas.url)
    assert url.rows[1] == ["0", "ann", "-1"]
    topic.append([{"value": framed(3, new)}])
    result = cli.bare("sql", str(tmp_path), "SELECT value.user FROM events", "--values", "events=avro")
    assert result.status == 1
    assert "value of a record of events cannot be decoded: the value's schema 3 cannot be used" in result.err
    assert "(partition=0 offset=3)" in result.err
    query = "SELECT count(value), count(*) FROM events"
    assert cli.bare("sql", str(tmp_path), query, "--values", "events=avro", "--on-error", "null").rows[1] == [
        "2",
        "4",
    ]


def test_a_schema_decodes_values_without_headers(tmp_path: Path, cli: CommandLine) -> None:
    pytest.importorskip("fastavro")
    topic_of(tmp_path, avro(CLICK, {"user": "ann"}))
    (tmp_path / "click.avsc").write_text(json.dumps(CLICK))
    schema = f"events={tmp_path}/click.avsc"
    arguments = ("SELECT value.user FROM events", "--values", "events=avro", "--schema", schema)
    assert cli.bare("sql", str(tmp_path), *arguments).out == "user\nann\n"


def test_protobuf_has_the_fields_of_its_message(tmp_path: Path) -> None:
    pytest.importorskip("ptars")
    pytest.importorskip("grpc_tools")
    topic_of(tmp_path, b"\x08\x05", b"\x08\x06")
    schema = 'syntax = "proto3"; message Click { uint32 count = 1; }'
    options: dict[str, Any] = {"values": {"events": "protobuf"}, "schemas": {"events": schema}}
    query = "SELECT value.count FROM events WHERE partition = 0 AND value.count > 5"
    assert distlog.sql(query, str(tmp_path), **options).fetchall() == [(6,)]


def test_wrong_options_are_errors(tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    topic_of(tmp_path, framed(1, b"\x06ann"))
    for options, problem in (
        ({"values": {"event": "json"}}, "values names a topic that is not in the folder: it has events"),
        ({"values": {"events": "xml"}}, "one of json, avro, protobuf"),
        ({"schemas": {"events": CLICK}}, "a schema needs the format"),
        ({"values": {"events": "avro"}}, r"Avro needs a schema, a registry, or both.*topic=events column=value"),
        ({"values": {"events": "protobuf"}}, "Protobuf needs a schema, a registry, or both"),
        (
            {"values": {"events": "avro"}, "registry": {2: CLICK}},
            "the registry has no schema of the values of events",
        ),
        ({"on_error": "skip"}, "on_error must be one of"),
    ):
        with pytest.raises((distlog.DistlogError, ValueError), match=problem):
            distlog.sql("SELECT * FROM events", str(tmp_path), **options)  # type: ignore[arg-type]


def test_a_topic_without_values_has_blobs(tmp_path: Path) -> None:
    topic_of(tmp_path)
    for kind in ("avro", "protobuf"):
        assert distlog.sql("SELECT value FROM events", str(tmp_path), values={"events": kind}).fetchall() == []
