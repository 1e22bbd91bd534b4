"""Arrow arrays from other libraries: offsets outside their buffers never copy foreign memory into a log."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import distlog
from distlog import Topic
from distlog.core.errors import InvalidRecordError
from distlog.core.format.record_batch import HEADERS_TYPE
from distlog.core.format.record_encoder import encode


class Spoiled(NamedTuple):
    """A column, and the bytes that replace its buffers later: Arrow checks an array only on creation."""

    name: str
    column: pa.Array
    changes: Sequence[tuple[pa.Buffer, bytes]]


def packed(offsets: Sequence[int], large: bool = False) -> bytes:
    return np.array(offsets, np.int64 if large else np.int32).tobytes()


def writable(data: bytes) -> pa.Buffer:
    return pa.py_buffer(np.frombuffer(data, np.uint8).copy())


def strings(kind: pa.DataType, *offsets: int, name: str = "value") -> Spoiled:
    large = kind in (pa.large_binary(), pa.large_string())
    stored = writable(packed([0] * len(offsets), large))
    array = pa.Array.from_buffers(kind, len(offsets) - 1, [None, stored, pa.py_buffer(b"0123456789")])
    return Spoiled(name, array, [(stored, packed(offsets, large))])


def view(size: int, buffer: int, offset: int, name: str = "value") -> Spoiled:
    """Return two strings of type binary_view that claim `size` bytes at `offset` of buffer number `buffer`."""
    data = b"0123456789" * 2
    sound, spoiled = (
        struct.pack("<i4sii", size, data[max(start, 0) :][:4], number, start) * 2
        for number, start in ((0, 0), (buffer, offset))
    )
    stored = writable(sound)
    array = pa.Array.from_buffers(pa.binary_view(), 2, [None, stored, pa.py_buffer(data)])
    return Spoiled(name, array, [(stored, spoiled)])


def dictionary(*indices: int) -> Spoiled:
    stored = writable(packed([0] * len(indices)))
    numbers = pa.Array.from_buffers(pa.int32(), len(indices), [None, stored])
    array = pa.DictionaryArray.from_arrays(numbers, pa.array([b"a", b"b"]))
    return Spoiled("key", array, [(stored, packed(indices))])


def headers(
    lists: Sequence[int] = (0, 1, 2), keys: Sequence[int] = (0, 1, 2), values: Sequence[int] = (0, 1, 2)
) -> Spoiled:
    children = [strings(pa.string(), *keys), strings(pa.binary(), *values)]
    pairs = pa.StructArray.from_buffers(
        HEADERS_TYPE.value_type, 2, [None], children=[child.column for child in children]
    )
    stored = writable(packed([0] * 3))
    array = pa.Array.from_buffers(HEADERS_TYPE, 2, [None, stored], children=[pairs])
    return Spoiled("headers", array, [(stored, packed(lists)), *children[0].changes, *children[1].changes])


KINDS = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
BAD: dict[str, Callable[[], Spoiled]] = {
    **{f"{kind} beyond": partial(strings, kind, 0, 3, 11) for kind in KINDS},
    **{f"{kind} far": partial(strings, kind, 0, 1 << 28, 10) for kind in KINDS},
    **{f"{kind} before": partial(strings, kind, -1, 3, 10) for kind in KINDS},
    **{f"{kind} descending": partial(strings, kind, 0, 9, 4) for kind in KINDS},
    "key": partial(strings, pa.binary(), 0, 3, 11, name="key"),
    "lists beyond": partial(headers, (0, 1, 3)),
    "lists descending": partial(headers, (0, 2, 1)),
    "header keys": partial(headers, keys=(0, 1, 11)),
    "header values": partial(headers, values=(0, -1, 2)),
    "view beyond": partial(view, 13, 0, 8),
    "view of no buffer": partial(view, 13, 3, 0),
    "view before": partial(view, 13, 0, -5, name="key"),
    "dictionary": partial(dictionary, 0, 9),
}
#: The encoder gets these types after conversion.
NARROW = [case for case in BAD if not case.startswith(("view", "dictionary"))]


def batch_with(spoiled: Spoiled) -> pa.RecordBatch:
    count = len(spoiled.column)
    columns = {
        "key": pa.array([b"k"] * count),
        "value": pa.array([b"v"] * count),
        "timestamp": pa.array([5] * count, pa.int64()),
        spoiled.name: spoiled.column,
    }
    batch = pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
    for stored, data in spoiled.changes:
        np.frombuffer(stored, np.uint8)[:] = np.frombuffer(data, np.uint8)
    return batch


def by_append(topic: Topic, batch: pa.RecordBatch) -> None:
    topic.append(batch)


def by_table(topic: Topic, batch: pa.RecordBatch) -> None:
    topic.append(pa.Table.from_batches([batch]))


def by_reader(topic: Topic, batch: pa.RecordBatch) -> None:
    topic.append(pa.RecordBatchReader.from_batches(batch.schema, [batch]))


def by_transaction(topic: Topic, batch: pa.RecordBatch) -> None:
    with topic.transaction() as transaction:
        transaction.append(batch)


def by_task(topic: Topic, batch: pa.RecordBatch) -> None:
    task = pytest.importorskip("distlog.spark.sink")
    task.write_rows(task.WriteOptions(topic.storage), task.PlannedTopic.of(topic.snapshot, None, None), [batch])


@pytest.mark.parametrize("append", [by_append, by_table, by_reader, by_transaction, by_task])
@pytest.mark.parametrize("case", BAD)
def test_an_array_with_offsets_outside_its_buffers_is_refused(
    tmp_path: Path, case: str, append: Callable[[Topic, pa.RecordBatch], None]
) -> None:
    topic = distlog.create(str(tmp_path / "log"), partitions=2)
    spoiled = BAD[case]()
    with pytest.raises(InvalidRecordError, match=f"column {spoiled.name} "):
        append(topic, batch_with(spoiled))
    assert topic.refresh().end_offsets() == {0: 0, 1: 0}


@pytest.mark.parametrize("case", NARROW)
def test_the_encoder_checks_offsets_itself(case: str) -> None:
    spoiled = BAD[case]()
    with pytest.raises(InvalidRecordError, match=f"column {spoiled.name} "):
        encode(batch_with(spoiled))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_offsets_inside_the_buffers_are_accepted(tmp_path: Path, kind: pa.DataType) -> None:
    topic = distlog.create(str(tmp_path / "log"))
    topic.append(batch_with(strings(kind, 0, 3, 10)).slice(1))
    topic.append(batch_with(strings(kind, 2, 2, 5)))
    topic.append(batch_with(strings(kind, 0)))
    assert topic.scan(columns=["value"]).to_table()["value"].to_pylist() == [b"3456789", b"", b"234"]


def test_valid_views_dictionaries_and_headers_are_accepted(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "log"))
    topic.append(batch_with(view(13, 0, 7)))
    topic.append(batch_with(dictionary(1, 0)))
    topic.append(batch_with(headers((1, 1, 2))))
    rows = topic.scan(columns=["key", "value", "headers"]).to_table().to_pylist()
    assert [row["value"] for row in rows] == [b"7890123456789"] * 2 + [b"v"] * 4
    assert [row["key"] for row in rows] == [b"k", b"k", b"b", b"a", b"k", b"k"]
    assert rows[-1]["headers"] == [{"key": "1", "value": b"1"}]
