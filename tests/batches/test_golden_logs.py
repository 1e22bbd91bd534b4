"""Every log file that a real broker wrote decodes to exactly what a real consumer read."""

from __future__ import annotations

import gzip
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from golden import DATA, GoldenPartition, partitions

from distlog.core.format.compression import CODEC_NAMES
from distlog.core.format.record_batch import (
    APPEND_TIME,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    TRANSACTIONAL,
    check_crcs,
    increment_sequence,
    read_headers,
)
from distlog.core.format.record_decoder import decode

PARTITIONS = partitions()
DUMPS = sorted((DATA / "kafka-4.1").glob("dump.*.log.txt.gz"))


def as_rows(decoded: pa.RecordBatch) -> list[dict[str, Any]]:
    stamps = decoded["timestamp"].cast(pa.int64())
    columns = decoded.set_column(2, "timestamp", stamps).drop_columns(["partition"])
    rows: list[dict[str, Any]] = columns.to_pylist()
    return rows


def expected(partition: GoldenPartition) -> list[dict[str, Any]]:
    return partition.records()


def first_readable(partition: GoldenPartition) -> int:
    """DeleteRecords moves the log's start above records that are still in its first segment."""
    return 137 if partition.name == "first.deleted-records-0" else 0


@pytest.mark.parametrize("name", PARTITIONS)
def test_each_log_file_decodes_to_the_records_of_the_consumer(name: str) -> None:
    result = []
    for log in PARTITIONS[name].logs:
        data = log.read_bytes()
        headers = read_headers(data, file=log.name)
        assert headers["size"].sum() == len(data)
        check_crcs(data, headers, file=log.name)
        decoded = decode(data, headers, start_offset=first_readable(PARTITIONS[name]), file=log.name)
        decoded.validate(full=True)
        result += as_rows(decoded)
    assert result == expected(PARTITIONS[name])


def test_all_log_files_of_one_format_line_decode_in_one_call() -> None:
    logs = [(number, log) for number, name in enumerate(PARTITIONS) for log in PARTITIONS[name].logs]
    data = b"".join(log.read_bytes() for _, log in logs)
    headers = read_headers(data)
    check_crcs(data, headers)
    ends = np.cumsum([log.stat().st_size for _, log in logs])
    owners = np.array([number for number, _ in logs])[np.searchsorted(ends, headers["position"], side="right")]
    decoded = decode(data, headers, partition=owners)
    names = list(PARTITIONS)
    for number, name in enumerate(names):
        selected = decoded.filter(pa.compute.equal(decoded["partition"], number))
        start = first_readable(PARTITIONS[name])
        assert [row for row in as_rows(selected) if row["offset"] >= start] == expected(PARTITIONS[name])


@pytest.mark.parametrize("name", ["first.codec-zstd-0", "first.txn-0", "logs.v1-gzip-0", "logs.mixed-0"])
def test_bounds_select_their_part_of_the_records(name: str) -> None:
    (log, *_) = PARTITIONS[name].logs
    data = log.read_bytes()
    headers = read_headers(data)
    every = as_rows(decode(data, headers))
    for start, end in [(0, 1), (17, 18), (33, 90), (5, 5), (60, 10**9)]:
        part = as_rows(decode(data, headers, start_offset=start, end_offset=end))
        assert part == [row for row in every if start <= row["offset"] < end]


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.name)
def test_headers_are_those_that_kafkas_dump_tool_prints(dump: Any) -> None:
    _, partition, file, *_ = dump.name.split(".")
    data = (DATA / "kafka-4.1" / "first" / partition / f"{file}.log").read_bytes()
    with gzip.open(dump, "rt", encoding="utf-8", errors="replace") as lines:
        printed = [dict(re.findall(r"(\w+): (\S+)", line)) for line in lines if line.startswith("baseOffset: ")]
    assert len(printed) > 3
    assert [as_dumped(row) for row in read_headers(data)] == printed


def as_dumped(row: Any) -> dict[str, str]:
    attributes = int(row["attributes"])
    sequence, delta = int(row["base_sequence"]), int(row["last_offset_delta"])
    horizon = f"OptionalLong[{row['base_timestamp']}]" if attributes & DELETE_HORIZON else "OptionalLong.empty"
    kind = "LogAppendTime" if attributes & APPEND_TIME else "CreateTime"
    return {
        "baseOffset": str(row["base_offset"]),
        "lastOffset": str(row["base_offset"] + delta),
        "count": str(row["record_count"]),
        "baseSequence": str(sequence),
        "lastSequence": str(increment_sequence(sequence, delta) if sequence >= 0 else -1),
        "producerId": str(row["producer_id"]),
        "producerEpoch": str(row["producer_epoch"]),
        "partitionLeaderEpoch": str(row["leader_epoch"]),
        "isTransactional": str(bool(attributes & TRANSACTIONAL)).lower(),
        "isControl": str(bool(attributes & CONTROL)).lower(),
        "deleteHorizonMs": horizon,
        "position": str(row["position"]),
        kind: str(row["max_timestamp"]),
        "size": str(row["size"]),
        "magic": str(row["magic"]),
        "compresscodec": CODEC_NAMES[attributes & CODEC_MASK],
        "crc": str(row["crc"]),
        "isvalid": "true",
    }
