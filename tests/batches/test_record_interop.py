"""Both directions against two independent implementations: kafka-python and aiokafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from searches import examples

from distlog.core.format.compression import CODEC_NAMES
from distlog.core.format.record_batch import HEADERS_TYPE, check_crcs, read_headers
from distlog.core.format.record_decoder import decode
from distlog.core.format.record_encoder import encode

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
Records = Callable[[bytes], Any]
BYTES = st.none() | st.binary(max_size=60) | st.integers(0, 5000).map(lambda size: b"ab" * size)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3)
ROWS = st.lists(st.tuples(st.integers(0, 2**42), BYTES, BYTES, HEADERS), min_size=1, max_size=20)
CODEC_LIBRARIES = {2: "snappy", 3: "lz4", 4: "zstandard"}

codecs = pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES.__getitem__)
quick = examples(15)


def ours(data: bytes) -> list[tuple[int, Row]]:
    headers = read_headers(data)
    assert headers["size"].sum() == len(data)
    check_crcs(data, headers)
    decoded = decode(data, headers)
    columns = [decoded["offset"], decoded["timestamp"].cast(pa.int64()), decoded["key"], decoded["value"]]
    pairs = [[(pair["key"], pair["value"]) for pair in row] for row in decoded["headers"].to_pylist()]
    rows = zip(*(column.to_pylist() for column in columns), pairs, strict=True)
    return [(offset, tuple(row)) for offset, *row in rows]


def theirs(records: Any) -> list[tuple[int, Row]]:
    result = []
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        result += [
            (record.offset, (record.timestamp, record.key, record.value, list(record.headers))) for record in batch
        ]
    return result


def encoded(rows: list[Row], codec: int) -> bytes:
    columns = {
        "timestamp": pa.array([row[0] for row in rows], pa.int64()),
        "key": pa.array([row[1] for row in rows], pa.binary()),
        "value": pa.array([row[2] for row in rows], pa.binary()),
        "headers": pa.array([[{"key": k, "value": v} for k, v in row[3]] for row in rows], HEADERS_TYPE),
    }
    return bytes(encode(pa.RecordBatch.from_pydict(columns), codec=codec, batch_bytes=8000, base_offset=70).data)


def numbered(rows: list[Row], first: int) -> list[tuple[int, Row]]:
    return list(enumerate(rows, first))


@codecs
@quick
@given(rows=ROWS)
def test_kafka_python_reads_what_we_write(codec: int, rows: list[Row]) -> None:
    memory_records = kafka_python(codec).MemoryRecords
    assert theirs(memory_records(encoded(rows, codec))) == numbered(rows, 70)


@codecs
@quick
@given(rows=ROWS)
def test_we_read_what_kafka_python_writes(codec: int, rows: list[Row]) -> None:
    builder = kafka_python(codec).MemoryRecordsBuilder(2, codec, 1 << 20, offset=5)
    for row in rows:
        builder.append(*row)
    builder.close()
    assert ours(bytes(builder.buffer())) == numbered(rows, 5)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", range(4), ids=CODEC_NAMES.__getitem__)
@quick
@given(rows=ROWS)
def test_we_read_the_old_formats_that_kafka_python_writes(magic: int, codec: int, rows: list[Row]) -> None:
    if (magic, codec) == (0, 3):
        pytest.importorskip("xxhash")
    builder = kafka_python(codec).MemoryRecordsBuilder(magic, codec, 1 << 20)
    for timestamp, key, value, _ in rows:
        builder.append(timestamp, key, value)
    builder.close()
    expected: list[Row] = [(timestamp if magic else -1, key, value, []) for timestamp, key, value, _ in rows]
    assert ours(bytes(builder.buffer())) == numbered(expected, 0)


@codecs
@quick
@given(rows=ROWS)
def test_aiokafka_reads_what_we_write(codec: int, rows: list[Row]) -> None:
    records = aiokafka(codec, "memory_records").MemoryRecords(encoded(rows, codec))
    assert theirs(records) == numbered(rows, 70)


@codecs
@quick
@given(rows=ROWS)
def test_we_read_what_aiokafka_writes(codec: int, rows: list[Row]) -> None:
    builder = aiokafka(codec, "default_records").DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for offset, (timestamp, key, value, headers) in numbered(rows, 0):
        builder.append(offset, timestamp, key, value, headers)
    assert ours(bytes(builder.build())) == numbered(rows, 0)


def kafka_python(codec: int) -> Any:
    if codec in CODEC_LIBRARIES:
        pytest.importorskip(CODEC_LIBRARIES[codec])
    return pytest.importorskip("kafka.record.memory_records")


def aiokafka(codec: int, module: str) -> Any:
    if codec in CODEC_LIBRARIES:
        pytest.importorskip("cramjam")
    return pytest.importorskip(f"aiokafka.record.{module}")
