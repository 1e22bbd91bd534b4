"""Which partition a record goes to."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from distlog.core.errors import InvalidRecordError
from distlog.core.write.rows import STICKY_BYTES, Partitioner

TEXTS = ["21", "foobar", "a-little-bit-long-string", "abc", ""]


def batch(keys: list[bytes | None], partition: list[int | None] | None = None, value: bytes = b"v") -> pa.RecordBatch:
    columns = {"timestamp": pa.array(range(len(keys)), pa.int64()), "key": pa.array(keys, pa.binary())}
    columns["value"] = pa.array([value] * len(keys), pa.binary())
    if partition is not None:
        columns = {"partition": pa.array(partition, pa.int32()), **columns}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def split(partitioner: Partitioner, records: pa.RecordBatch, partition: int | None = None) -> dict[int, list[int]]:
    return {number: rows.tolist() for number, rows in partitioner.split(records, partition)}


def test_keys_go_where_kafkas_default_partitioner_sends_them() -> None:
    kafka = pytest.importorskip("kafka.partitioner.default")
    keys = [text.encode() for text in TEXTS]
    expected: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        number = (kafka.murmur2(key) & 0x7FFFFFFF) % 7
        expected.setdefault(number, []).append(row)
    assert split(Partitioner(7, 0), batch(keys)) == dict(sorted(expected.items()))


def test_the_order_within_a_partition_is_the_order_given() -> None:
    keys: list[bytes | None] = [b"%d" % (row % 13) for row in range(1000)]
    for rows in split(Partitioner(4, 0), batch(keys)).values():
        assert rows == sorted(rows)


def test_an_explicit_partition_overrides_the_key() -> None:
    assert split(Partitioner(3, 0), batch([b"abc", b"abc"], partition=[1, None])) == {1: [0], 479470107 % 3: [1]}
    assert split(Partitioner(3, 0), batch([b"abc", None]), partition=2) == {2: [0, 1]}


def test_records_without_a_key_fill_partitions_in_runs() -> None:
    partitioner = Partitioner(3, 2)
    value = b"x" * (STICKY_BYTES // 4)
    visited = [next(iter(split(partitioner, batch([None], value=value)))) for _ in range(24)]
    runs = [visited[0], *[after for previous, after in pairwise(visited) if after != previous]]
    assert runs == [(2 + step) % 3 for step in range(len(runs))]
    assert len(runs) >= 5


def test_a_single_partition_takes_everything() -> None:
    assert split(Partitioner(1, 0), batch([b"a", None])) == {0: [0, 1]}


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_partition_that_the_topic_does_not_have_is_refused_with_its_row(partition: int) -> None:
    with pytest.raises(
        InvalidRecordError,
        match=rf"the partition does not exist: give one from 0 to 2 \(partition={partition} row=1\)",
    ):
        split(Partitioner(3, 0), batch([b"a", b"b"], partition=[0, partition]))
    with pytest.raises(InvalidRecordError, match="give one from 0 to 2"):
        split(Partitioner(3, 0), batch([b"a"]), partition=partition)


@pytest.mark.parametrize("partition", ["1", 1.0, True])
def test_a_partition_that_is_not_an_integer_is_refused(partition: Any) -> None:
    with pytest.raises(InvalidRecordError, match="a partition must be an integer"):
        split(Partitioner(3, 0), batch([b"a"]), partition=partition)


def test_a_partition_that_numpy_made_is_a_plain_integer_afterwards() -> None:
    ((number, _),) = Partitioner(3, 0).split(batch([b"a"]), np.int64(2))  # type: ignore[arg-type]
    assert type(number) is int


def test_rows_are_counted_from_the_first_row_of_the_append() -> None:
    with pytest.raises(InvalidRecordError, match=r"does not exist: .*partition=3 row=101"):
        list(Partitioner(3, 0).split(batch([b"a", b"b"], partition=[0, 3]), first_row=100))


def test_no_rows_are_no_parts() -> None:
    assert split(Partitioner(3, 0), batch([])) == {}
