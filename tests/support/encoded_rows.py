"""Rows that tests encode: searched for, or simple ones; and the rows that encoded batches decode to."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

from distlog.core.format.record_batch import HEADERS_TYPE, check_crcs, read_headers
from distlog.core.format.record_decoder import decode
from distlog.core.format.record_encoder import EncodedBatches

#: Timestamp, key, value and headers of a record.
Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
BYTES = st.none() | st.binary(max_size=40)
TIMESTAMPS = st.integers(-1, 2**63 - 1) | st.integers(1_700_000_000_000, 1_700_000_100_000)
ROWS = st.lists(st.tuples(TIMESTAMPS, BYTES, BYTES, st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3)))


def table(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([row[0] for row in rows], pa.int64()),
            "key": pa.array([row[1] for row in rows], pa.binary()),
            "value": pa.array([row[2] for row in rows], pa.binary()),
            "headers": pa.array([[{"key": k, "value": v} for k, v in row[3]] for row in rows], HEADERS_TYPE),
        }
    )


def back(encoded: EncodedBatches) -> list[Row]:
    """Decode the batches, after every check."""
    headers = read_headers(encoded.data)
    check_crcs(encoded.data, headers)
    assert headers.tolist() == encoded.batches.tolist()
    decoded = decode(encoded.data, headers)
    decoded.validate(full=True)
    columns = [decoded["timestamp"].cast(pa.int64()), decoded["key"], decoded["value"]]
    pairs = [[(pair["key"], pair["value"]) for pair in row] for row in decoded["headers"].to_pylist()]
    return list(zip(*(column.to_pylist() for column in columns), pairs, strict=True))


def simple(count: int, value: bytes = b"v") -> list[Row]:
    """Rows with keys and times that ascend, and one value."""
    return [(1000 + row, b"k%d" % row, value, []) for row in range(count)]
