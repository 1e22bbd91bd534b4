"""JSON objects, one a line, equal the results of Python's `json`, with fields as written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsed_lines import bad_lines, objects, parsed, rows

FIELDS = {"key": "k", "value": "v"}


def line_by_line(block: bytes) -> tuple[list[tuple[bytes | None, bytes | None]], list[int]]:
    """Return the (key, value) of each object, and the numbers of malformed lines, by Python."""
    pairs, bad = list[tuple[bytes | None, bytes | None]](), list[int]()
    for number, line in enumerate(block.split(b"\n"), 1):
        if not line.strip(b" \t\r"):
            continue
        try:
            value = json.loads(line.decode(), parse_float=str, parse_int=str, parse_constant=str)
            if not isinstance(value, dict):
                raise ValueError
            pairs.append((text_of(value.get("k")), text_of(value.get("v"))))
        except (ValueError, RecursionError):
            bad.append(number)
    return pairs, bad


def text_of(value: Any) -> bytes | None:
    """Return texts and numbers as written; containers are compared by their values."""
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return json.dumps(value).encode()


def same(written: bytes | None, expected: bytes | None) -> bool:
    if written == expected or written is None or expected is None:
        return written == expected
    return bool(
        json.dumps(json.loads(written, parse_float=str, parse_int=str, parse_constant=str)).encode() == expected
    )


def check(block: bytes) -> None:
    result = parsed(objects(**FIELDS), block)
    expected, bad = line_by_line(block)
    assert [line for line, _ in bad_lines(result, block)] == bad, block
    assert len(expected) == result.records.num_rows, block
    for row, pair in zip(rows(result), expected, strict=True):
        assert same(row["key"], pair[0]), block
        assert same(row["value"], pair[1]), block


@pytest.mark.parametrize(
    "block",
    [
        b'{"k": "a"}{"k": "b"}\n{"k": "c"',
        b'{"k": "a",\n"v": "b"}',
        b'{"k": "a", "v": {"k": "x"}\n{"v": "b"}}',
        b'{"k": "\xff"}\n{"x": "\xed\xa0\x80"}\n{"x": "\xf4\x90\x80\x80"}\n{"x": "\xc0\x80"}\n{"x": "\xe2\x82"}',
        '{"k": "é€𝄞", "v": "\u2028"}'.encode(),
        b'{"k": "a", "k": "b", "v": 1, "v": null}\n{"k": null, "k": [1]}',
        b'{"k": {"base64": "YQ=="}, "v": [1, {"k": 2}]}\n{"k": true, "v": false}',
        b'{"k": 123456789012345678901234567890, "v": 1.10}\n{"k": -0, "v": 1E+400}',
        b'  {"k": "a"}  \r\n\n \t\r\n{"k" : "b" , "v":\t7}\r',
        b'{"k": NaN, "v": -Infinity}\n{"x": Infinity, "k": "a"}',
        b'[1]\n7\nnull\n{\n}\n{}\n[]\n"a"',
        b'{"k": 01}\n{"k": 1.}\n{"k": .5}\n{"k": +1}\n{"k": 1e}\n{"k": -}\n{"k": 0x1}',
        b'{"k": "a",}\n{,}\n{"k"}\n{"k": }\n{"k": [1,]}\n{"k": [,1]}\n{k: 1}\n{"k": tru}\n{"k": nul',
        b'{"k": "a\tb"}\n{"k": "a\\qb"}\n{"k": "\\u12g4"}\n{"k": "\\ud800"}\n{"x": "\\ud800"}\n{"k": "a\\',
        b'{"k": "\\u00e9\\n\\"", "v": "\\ud834\\udd1e"}\n{"\\u006b": "x", "a\\/b": 1}',
        b'{"k": [1}\n{"k": {]}\n{"k": [}]\n{"k": {"a": 1]}',
        b'{"v": ' + b"[" * 70 + b"]" * 70 + b', "k": 1}\n{"v": ' + b"[" * 100_000,
        b"",
    ],
)
def test_lines_equal_the_results_of_python(block: bytes) -> None:
    check(block)
    # at each alignment of words
    for space in range(8):
        check(b" " * space + block)


LEAVES = st.none() | st.booleans() | st.integers(-3, 2**64) | st.floats() | st.text(max_size=12)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(["k", "v", "key", "", "é"]), VALUES, max_size=4)


@given(st.lists(OBJECTS | LEAVES, min_size=1, max_size=4), st.booleans(), st.sampled_from([None, (",", ":")]))
def test_objects_equal_the_results_of_python(values: list[object], is_ascii: bool, separators: Any) -> None:
    check("\n".join(json.dumps(value, ensure_ascii=is_ascii, separators=separators) for value in values).encode())


@given(st.lists(OBJECTS, min_size=1, max_size=3), st.integers(0, 200), st.binary(max_size=2))
def test_damaged_objects_are_bad_where_python_refuses_them(
    values: list[object], position: int, damage: bytes
) -> None:
    text = "\n".join(json.dumps(value, ensure_ascii=False) for value in values).encode()
    check(text[:position] + damage + text[position + 1 :])


def test_a_nested_field_is_not_the_key() -> None:
    result = parsed(objects(key="id"), b'{"m": {"id": 3.00}, "id": 3.0}\n{"id": {"id": 1}}')
    assert [row["key"] for row in rows(result)] == [b"3.0", b'{"id": 1}']


def test_an_object_as_key_or_value_keeps_its_text() -> None:
    result = parsed(objects(key="a", value="b"), b'{"a": {"x":1.50,  "y": "\\u00e9"}, "b":[ 12345678901234567.89 ]}')
    assert rows(result)[0]["key"] == b'{"x":1.50,  "y": "\\u00e9"}'
    assert rows(result)[0]["value"] == b"[ 12345678901234567.89 ]"


def test_times_of_objects_are_numbers_and_texts() -> None:
    times = (b"5", b'"7"', b'"1970-01-01T00:00:01Z"', b"null", b"[]", b"1.5", b"true", b'"\\u0038"')
    block = b"\n".join(b'{"t": %b}' % time for time in times)
    result = parsed(objects(timestamp="t"), block)
    assert [row["timestamp"] for row in rows(result)] == [5, 7, 1000, None, 8]
    assert bad_lines(result, block) == [(5, 4), (6, 4), (7, 4)]
