"""Fields of JSON values as columns: types, paths and names, and values that are not JSON."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from framed_values import framed

import distlog

pytest.importorskip("duckdb")


def topic_of(*values: Any) -> distlog.Topic:
    """Return a topic with these values in one partition, as JSON unless they are bytes or None."""
    topic = distlog.create(f"memory://{uuid.uuid4().hex}/events", config={"retention.ms": -1})
    documents = [
        value if isinstance(value, bytes | None) else json.dumps(value, ensure_ascii=False) for value in values
    ]
    topic.append([{"key": b"k", "value": value, "timestamp": 1000 + n} for n, value in enumerate(documents)])
    return topic


def fields(topic: distlog.Topic, *paths: str, **named: str) -> dict[str, list[Any]]:
    return topic.scan(columns="value").json(*paths, **named).to_pydict()


def test_fields_replace_the_value() -> None:
    topic = topic_of({"user": "ann", "n": 1}, {"user": "bob", "n": 2})
    table = topic.scan(columns=["offset", "value", "timestamp"]).json("$.user", number="$.n")
    assert table.schema == pa.schema(
        [
            ("offset", pa.int64()),
            ("user", pa.string()),
            ("number", pa.int64()),
            ("timestamp", pa.timestamp("ms", "UTC")),
        ]
    )
    moment = datetime.fromtimestamp(1.001, timezone.utc)
    assert table.to_pylist()[1] == {"offset": 1, "user": "bob", "number": 2, "timestamp": moment}
    assert topic.scan(columns="key").json("$.n").schema.names == ["key", "n"]
    assert topic.scan(columns=["value", "key"]).json("$").schema.names == ["value", "key"]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, -2, None], pa.int64(), [1, -2, None]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([True, False], pa.bool_(), [True, False]),
        (["a", "ü\n"], pa.string(), ["a", "ü\n"]),
        (["1", 2, True, 1.5], pa.string(), ["1", "2", "true", "1.5"]),
        ([{"b": [1, 2]}, [3]], pa.string(), ['{"b":[1,2]}', "[3]"]),
        ([2**64 - 1, 1], pa.string(), [str(2**64 - 1), "1"]),
        ([2**60, 1.5], pa.float64(), [2.0**60, 1.5]),
        ([2**53 + 1, 1.5], pa.string(), [str(2**53 + 1), "1.5"]),
        ([2**70 + 1], pa.string(), [str(2**70 + 1)]),
        ([None, None], pa.string(), [None, None]),
    ],
)
def test_a_column_has_the_type_that_all_its_values_have(values: list[Any], kind: Any, expected: list[Any]) -> None:
    table = topic_of(*({"x": value} for value in values)).scan(columns="value").json("$.x")
    assert table.schema.field("x").type == kind
    assert table["x"].to_pylist() == expected


def test_a_type_fits_all_batches_of_a_scan() -> None:
    topic = topic_of({"x": 1})
    topic.append([{"value": '{"x": "text"}'}])
    assert fields(topic, "$.x") == {"x": ["1", "text"]}


def test_paths_go_into_objects_and_arrays_and_odd_names() -> None:
    topic = topic_of({"a": {"b": [{"c": 5}, {"c": 6}]}, "odd.name": "o"}, {"a": 7})
    selected = fields(topic, "$.a.b[1].c", '$."odd.name"', last="$.a.b[#-1].c", all="$")
    assert selected["a.b[1].c"] == selected["last"] == [6, None]
    assert selected['"odd.name"'] == ["o", None]
    assert json.loads(selected["all"][1]) == {"a": 7}


def test_missing_and_null_fields_are_nulls() -> None:
    assert fields(topic_of({"x": 1}, {}, {"x": None}, None, [1], 5), "$.x") == {
        "x": [1, None, None, None, None, None]
    }
    assert fields(topic_of(), "$.x", "$.y") == {"x": [], "y": []}


BAD = [b"", b"{", b"nope", b'{"x":1}{"x":2}', b'{"x":1},"y":{', b'{"x":"\xff"}']


@pytest.mark.parametrize("bad", BAD)
def test_a_value_that_is_not_json_is_named_with_its_offset(bad: bytes) -> None:
    topic = topic_of({"x": 1}, None, bad, {"x": 2}, bad)
    with pytest.raises(distlog.InvalidRecordError, match=r"isn't JSON.*on_error='null'.*partition=0 offset=2"):
        fields(topic, "$.x")
    assert topic.scan().json("$.x", on_error="null")["x"].to_pylist() == [1, None, None, 2, None]


def test_all_kinds_of_invalid_json_are_refused() -> None:
    topic = topic_of(*BAD * 50, {"x": 1})
    assert topic.scan().json("$.x", on_error="null")["x"].to_pylist() == [None] * 300 + [1]


HALVES = [
    rb'{"a": "\ud83d", "n": 1}',
    rb'{"a": "x\uDE00\ud83d\ude00", "n": 2}',
    rb'{"a": "\\ud83d \\\ud83d", "n": 3}',
    rb'{"a": "\ud83d\ud83d\ude00\u00e4", "n": 4}',
    rb'{"\udfff": 0, "a": "b", "n": 5}',
]


@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_a_lone_surrogate_is_a_replacement_character(on_error: Any) -> None:
    topic = topic_of({"a": "😀", "n": 0}, *HALVES, None, {"a": "last", "n": 6})
    columns = topic.scan(columns="value").json("$.a", "$.n", on_error=on_error).to_pydict()
    assert columns == {
        "a": ["😀", "\ufffd", "x\ufffd😀", "\\ud83d \\\ufffd", "\ufffd😀ä", "b", None, "last"],
        "n": [0, 1, 2, 3, 4, 5, None, 6],
    }


def test_a_bad_value_next_to_lone_surrogates_is_named() -> None:
    topic = topic_of({"a": 1}, HALVES[0], b'{"a": "\\ud83d"')
    with pytest.raises(distlog.InvalidRecordError, match=r"isn't JSON.*partition=0 offset=2"):
        fields(topic, "$.a")
    assert topic.scan().json("$.a", on_error="null")["a"].to_pylist() == ["1", "\ufffd", None]


@pytest.mark.parametrize("path", ["user", "", "$.", "$.a[", "$.a[*]", "$..a", 5])
def test_an_invalid_path_is_refused(path: Any) -> None:
    with pytest.raises(distlog.InvalidConfigError, match="path"):
        fields(topic_of({"user": 1}), path)


def test_column_names_are_unique() -> None:
    topic = topic_of({"offset": 1})
    with pytest.raises(distlog.InvalidConfigError, match="a column is called offset already"):
        topic.scan().json("$.offset")
    for wrong in ((), ("$.a", "$.a")):
        with pytest.raises(distlog.InvalidConfigError, match="each column once"):
            topic.scan().json(*wrong)
    assert topic.scan(columns="value").json("$.offset")["offset"].to_pylist() == [1]
    with pytest.raises(ValueError, match="on_error must be one of fail, null"):
        topic.scan().json("$.x", on_error="skip")  # type: ignore[arg-type]


class Interrupted:
    """A connection of DuckDB whose query ends by Ctrl-C: it raises its own error."""

    def register(self, *arguments: Any) -> None:
        """Take a table."""

    def sql(self, *arguments: Any, **parameters: Any) -> Any:
        """Be interrupted."""
        raise RuntimeError("Query interrupted")


def test_ctrl_c_in_a_query_is_a_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = topic_of({"a": 1}).scan()
    monkeypatch.setattr("duckdb.connect", lambda *arguments, **settings: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        scan.json("$.a")


def test_the_header_of_a_registrys_json_schema_is_skipped() -> None:
    topic = topic_of(framed(5, b'{"x": 1}'), None, framed(6, b'{"x": 2}'))
    assert topic.scan().json("$.x", framed=True)["x"].to_pylist() == [1, None, 2]
    topic = topic_of(framed(5, b'{"x": 1}'), {"x": 2}, b"\0\0", framed(5, b"{"))
    with pytest.raises(distlog.InvalidRecordError, match=r"no header with a schema's id.*partition=0 offset=1"):
        topic.scan(columns="value").json("$.x", framed=True)
    assert topic.scan().json("$.x", framed=True, on_error="null")["x"].to_pylist() == [1, None, None, None]
