"""Routing: Kafka's hash, sticky runs, and a stable sort by partition."""

from __future__ import annotations

import kafka.partitioner.default as kafka
import numpy as np
import pyarrow as pa
import pytest
from compiled import compiled
from hypothesis import given, settings
from hypothesis import strategies as st

from distlog.core.format.kernels import record_write as routing
from distlog.core.format.kernels.record_write import first_out_of_range
from distlog.core.write.rows import Partitioner, group_by_partition

KEYS = st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=40)


hash_of = compiled(routing.murmur2)


def murmur2(key: bytes) -> int:
    data = np.frombuffer(b"\xee" + key + b"\xee", np.uint8)
    return int(np.uint32(hash_of(data, 1, 1 + len(key))).astype(np.int32))


def model(keys: list[bytes | None], sizes: list[int], count: int, partition: int, run: int) -> list[int]:
    """Return the partition of each record, in plain Python."""
    used = 0
    result = []
    for key, size in zip(keys, sizes, strict=True):
        if key is not None:
            result.append((kafka.murmur2(key) & 0x7FFFFFFF) % count)
            continue
        if used >= run:
            partition, used = (partition + 1) % count, 0
        result.append(partition)
        used += size + routing.RECORD_OVERHEAD
    return result


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
        ("", 275646681),
    ],
)
def test_the_hash_gives_kafkas_test_vectors(key: str, expected: int) -> None:
    assert murmur2(key.encode()) == expected


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_the_hash_equals_kafka_pythons(key: bytes) -> None:
    assert murmur2(key) & 0xFFFFFFFF == kafka.murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@settings(deadline=None)
@given(KEYS, st.data(), st.integers(1, 5), st.integers(1, 60))
def test_records_go_by_key_or_by_sticky_runs(
    kind: pa.DataType, keys: list[bytes | None], data: st.DataObject, count: int, run: int
) -> None:
    values = data.draw(st.lists(st.one_of(st.none(), st.binary(max_size=30)), min_size=len(keys), max_size=len(keys)))
    cut = data.draw(st.integers(0, len(keys)))
    first = data.draw(st.integers(0, count - 1))
    expected = model(keys[cut:], [len(value or b"") for value in values[cut:]], count, first, run)
    assigned = Partitioner(count, first, run).assign(pa.array(keys, kind)[cut:], pa.array(values, kind)[cut:])
    assert assigned.dtype == np.int32
    assert assigned.tolist() == expected


@settings(deadline=None)
@given(KEYS, st.integers(0, 40), st.integers(1, 5), st.integers(1, 60))
def test_the_state_carries_over_from_batch_to_batch(keys: list[bytes | None], cut: int, count: int, run: int) -> None:
    column, values = pa.array(keys, pa.binary()), pa.array([b"value"] * len(keys), pa.binary())
    all_partitions = Partitioner(count, 0, run).assign(column, values)
    partitioner = Partitioner(count, 0, run)
    parts = [partitioner.assign(column[:cut], values[:cut]), partitioner.assign(column[cut:], values[cut:])]
    assert [number for part in parts for number in part] == all_partitions.tolist()


def test_a_run_ends_when_it_has_its_bytes() -> None:
    keys, values = pa.nulls(7, pa.binary()), pa.array([b"x" * 92] * 7, pa.binary())
    assert Partitioner(3, 2, 200).assign(keys, values).tolist() == [2, 2, 0, 0, 1, 1, 2]


def test_empty_records_end_runs() -> None:
    keys = pa.nulls(6, pa.binary())
    assert Partitioner(2, 0, 2 * routing.RECORD_OVERHEAD).assign(keys, keys).tolist() == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(("offsets", "row"), [([0, 9, 3], 0), ([0, -1, 3], 1), ([0, 3, 2, 3], 1)])
def test_offsets_outside_the_data_are_refused(offsets: list[int], row: int) -> None:
    buffer = pa.py_buffer(np.array(offsets, np.int32))
    keys = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, buffer, pa.py_buffer(b"abc")])
    keys = keys[row : row + 1]
    with pytest.raises(ValueError, match="do not fit its data"):
        Partitioner(3, 0).assign(keys, pa.array([b"v"] * len(keys), pa.binary()))


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=200))
def test_rows_are_grouped_by_partition_in_their_order(partitions: list[int]) -> None:
    rows = np.array(partitions, np.int32)
    order, counts = group_by_partition(rows, 7)
    assert order.tolist() == np.argsort(rows, kind="stable").tolist()
    assert counts.tolist() == np.bincount(rows, minlength=7).tolist()
    assert order.dtype == counts.dtype == np.int64


@pytest.mark.parametrize("bad", [-1, 3, 2**31 - 1, -(2**31)])
def test_a_partition_out_of_range_is_found_by_its_row_and_never_grouped(bad: int) -> None:
    partitions = np.array([0, 2, bad, 1, bad], np.int32)
    assert first_out_of_range(partitions, 3) == 2
    assert first_out_of_range(partitions[:2], 3) == -1
    with pytest.raises(ValueError, match="not between 0 and 2"):
        group_by_partition(partitions, 3)
