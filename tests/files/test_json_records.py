"""Lines of files become records: text with or without keys, and JSON objects."""

from __future__ import annotations

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsed_lines import bad_lines, parsed, records

from distlog.cli.input import blocks
from distlog.console import output
from distlog.console.arguments import unescaped
from distlog.core.files.text_lines import TextLines


def values(block: bytes) -> list[bytes]:
    return parsed(TextLines(), block).records.column("value").to_pylist()


def one_line(**record: object) -> dict[str, object]:
    return parsed(records(), json.dumps(record).encode()).records.to_pylist()[0]


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), min_size=1), st.integers(1, 50))
def test_blocks_hold_all_lines_whole(lines: list[bytes], size: int) -> None:
    content = b"\n".join(lines) + b"\n"
    parts = list(blocks(io.BytesIO(content), size))
    assert b"\n".join(parts) + b"\n" == content
    assert list(blocks(io.BytesIO(content[:-1] + b"x"), size))[-1].endswith(b"x")


def test_an_empty_file_has_no_blocks() -> None:
    assert list(blocks(io.BytesIO(b""))) == []


def test_each_line_of_text_is_a_value_without_its_end() -> None:
    assert values(b"a\r\n\nb c\xff\r") == [b"a", b"", b"b c\xff"]


def test_the_first_separator_ends_the_key() -> None:
    table = parsed(TextLines("::"), b"k::v::w\n::x\ny::").records
    assert table.column("key").to_pylist() == [b"k", b"", b"y"]
    assert table.column("value").to_pylist() == [b"v::w", b"x", b""]


def test_a_line_without_the_separator_is_left_out_and_named() -> None:
    block = b"a:b\nab\ncd\ne:f"
    result = parsed(TextLines(":"), block)
    assert result.records.to_pylist() == [{"key": b"a", "value": b"b"}, {"key": b"e", "value": b"f"}]
    assert bad_lines(result, block) == [(2, 1), (3, 1)]
    assert "no key separator" in result.bad[0].reason


def test_a_separator_may_have_the_escapes_of_a_format() -> None:
    assert unescaped(r"\t|\x41\\") == "\t|A\\"
    for wrong in ("\\q", "a\\"):
        with pytest.raises(ValueError, match=r"\\"):
            unescaped(wrong)


def test_an_object_is_a_record() -> None:
    record = one_line(key="k", value="é", timestamp=5, partition=1, headers=[{"key": "h", "value": None}])
    assert record == {
        "partition": 1,
        "timestamp": 5,
        "key": b"k",
        "value": "é".encode(),
        "headers": [{"key": "h", "value": None}],
    }


def test_a_null_value_is_a_tombstone_and_base64_is_bytes() -> None:
    assert one_line(key={"base64": "/w=="}, value=None) == {
        "partition": None,
        "timestamp": None,
        "key": b"\xff",
        "value": None,
        "headers": [],
    }


def test_a_timestamp_may_be_iso_8601() -> None:
    assert one_line(value="", timestamp="1970-01-01T00:00:01.500Z")["timestamp"] == 1500


def test_added_fields_of_a_scan_are_ignored() -> None:
    assert "offset" not in one_line(value="v", offset=7, timestamp_type=0)


def test_blank_lines_are_skipped_but_counted() -> None:
    assert parsed(records(), b'\n{"value": "a"}\n  \n{"value": "b"}').records.num_rows == 2
    block = b'\n{"value": "a"}\n{'
    assert bad_lines(parsed(records(), block), block) == [(3, 1)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1]", 'at least a "value"'),
        (b'{"key": "k"}', 'at least a "value"'),
        (b'{"value": 5}', "bytes must be text"),
        (b'{"value": {"base64": "*"}}', "not a record"),
        (b'{"value": {"base64": 1}}', "bytes must be text"),
        (b'{"value": "\\ud800"}', "not a record"),
        (b'{"value": "\xff"}', "not a record"),
        (b'{"value": "v", "vaule": 1}', "unknown field vaule"),
        (b'{"value": "v", "timestamp": 1.5}', "whole number of milliseconds.*not 1.5"),
        (b'{"value": "v", "timestamp": true}', "whole number of milliseconds"),
        (b'{"value": "v", "timestamp": 9223372036854775808}', "whole number of milliseconds"),
        (b'{"value": "v", "timestamp": "yesterday"}', "(?i)iso"),
        (b'{"value": "v", "partition": 2147483648}', "must be an integer from -1 to"),
        (b'{"value": "v", "partition": "0"}', "partition must be an integer"),
        (b'{"value": "v", "headers": {"a": 1}}', "headers must be a list"),
        (b'{"value": "v", "headers": [{"key": 1, "value": null}]}', "a header must be"),
        (b'{"value": "v", "headers": 5}', "headers must be a list"),
        (b"[" * 100_000, "not a record"),
    ],
)
def test_an_invalid_record_is_refused_with_the_reason(line: bytes, reason: str) -> None:
    (bad,) = parsed(records(), line).bad
    assert re.search(reason, bad.reason)


@given(
    key=st.none() | st.binary(),
    value=st.none() | st.binary() | st.text().map(str.encode),
    timestamp=st.integers(-1, 2**63 - 1),
    headers=st.lists(st.fixed_dictionaries({"key": st.text(), "value": st.none() | st.binary()})),
)
def test_json_of_read_round_trips(
    key: bytes | None, value: bytes | None, timestamp: int, headers: list[dict[str, object]]
) -> None:
    record = {"partition": 3, "timestamp": timestamp, "key": key, "value": value, "headers": headers}
    line = json.dumps(record, default=output.to_json)
    assert parsed(records(), line.encode()).records.to_pylist() == [record]
