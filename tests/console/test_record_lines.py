"""Lines of many records equal the lines of single records."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.console import output
from distlog.core.format.record_batch import COLUMNS, SCHEMA

BYTES = st.none() | st.binary(max_size=8) | st.text(max_size=8).map(lambda text: text.encode("utf-8", "replace"))
HEADERS = st.lists(st.fixed_dictionaries({"key": st.text('abé\n"', max_size=3), "value": BYTES}), max_size=2)
NAMED_TIMES = [-1, 0, 1, 999, 951_782_400_000, 1_700_000_000_123, 253_402_300_799_999, 253_402_300_800_000]
#: Around the start of the years 1 and 1000, as in logs of other writers.
EARLY_TIMES = [-2, -62_135_596_800_001, -62_135_596_800_000, -30_610_224_000_001, -30_610_224_000_000]
TIMES = (
    st.sampled_from(NAMED_TIMES + EARLY_TIMES)
    | st.integers(-(2**60), 2**60)
    | st.integers(-62_135_596_800_000, 253_402_300_799_999)
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "partition": st.integers(0, 3),
            "offset": st.integers(0, 2**62),
            "timestamp": TIMES,
            "timestamp_type": st.sampled_from([-1, 0, 1]),
            "key": BYTES,
            "value": BYTES,
            "headers": HEADERS,
        }
    ),
    min_size=1,
    max_size=6,
)
EMPTY = {**dict.fromkeys(COLUMNS), "partition": 0, "offset": 1, "timestamp": 5, "timestamp_type": 0, "headers": []}
TEXTS = [
    "plain",
    "a\tb\nc\rd",
    'quote " and \\ backslash',
    "bell \x07 and \x7f and \x9b",
    "\x00",
    "é 日本 🙂",
    "",
    "\\n is not a break",
]


def batch_of(rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def check(batch: pa.RecordBatch) -> None:
    rows = output.rows_of(batch)
    names = batch.schema.names
    tabbed = "".join("\t".join(output.text(row[name]) for name in names) + "\n" for row in rows)
    assert bytes(output.tabbed(batch)).decode() == tabbed
    objects = [json.dumps(row, default=output.to_json, ensure_ascii=False) for row in rows]
    assert bytes(output.json_objects(batch)).decode() == "".join(f"{line}\n" for line in objects)


@given(ROWS)
def test_records_are_printed_like_single_rows(rows: list[dict[str, object]]) -> None:
    check(batch_of(rows))
    check(batch_of(rows).slice(len(rows) // 2))


def test_times_before_1970_are_printed_alike_with_four_digit_years() -> None:
    batch = batch_of([{**EMPTY, "timestamp": time} for time in EARLY_TIMES])
    check(batch)
    lines = bytes(output.tabbed(batch.select(["timestamp"]))).decode().split()
    assert lines[1:4] == ["-62135596800001", "0001-01-01T00:00:00.000Z", "0999-12-31T23:59:59.999Z"]


def test_every_kind_of_text_is_escaped_alike() -> None:
    rows = [{**EMPTY, "offset": n, "timestamp": n, "value": text.encode()} for n, text in enumerate(TEXTS)]
    check(batch_of(rows))
    check(batch_of(rows).slice(2, 3))
    for row in rows:
        check(batch_of([row]))
    lines = bytes(output.json_objects(batch_of(rows))).decode().splitlines()
    assert len(lines) == len(TEXTS)
    assert [json.loads(line)["value"] for line in lines] == TEXTS


@pytest.mark.parametrize("names", [["value"], ["offset"], ["headers", "timestamp"]])
def test_some_columns_are_some_fields(names: list[str]) -> None:
    check(batch_of([EMPTY]).select(names))
    assert bytes(output.tabbed(batch_of([]))) == b""
