"""Checkpoints: the state comes back as it was, and a wrong file is known as one."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Address
from histories import History, segment, topic_storage

from distlog.core import paths
from distlog.core.commits.checkpoints import checkpoint, checkpoint_format
from distlog.core.commits.format.actions import (
    Active,
    Add,
    Drop,
    GcFloor,
    Pin,
    SetConfig,
    SetLogStartOffset,
    SetTransaction,
)
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.segment_table import SegmentTable
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import CorruptMetadataError, UnsupportedVersionError
from distlog.core.storage.storage import Storage


@pytest.fixture
def snapshot() -> Snapshot:
    """A topic that has some of everything."""
    history = History()
    history.create(4)
    history.commit(*(Add(segment(0, base, 10)) for base in (0, 10, 20)), Add(segment(3, 0, 7)))
    history.commit(SetTransaction("app", 7, {0: (20, 30), 3: (0, 7)}), SetTransaction("app", "7", {}))
    history.commit(SetConfig({"retention.ms": "5", "cleanup.policy": "compact"}), Pin("a", 1, 10), GcFloor(2))
    history.commit(SetLogStartOffset(0, 5), Active(3, segment(read_version=2).stem, 7))
    return history.snapshot()


@pytest.fixture
def storage(memory_url: Address) -> Storage:
    return topic_storage(memory_url.url)


def with_state(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The checkpoint `data` with its JSON changed."""
    table = pq.read_table(io.BytesIO(data))
    state = json.loads(table.schema.metadata[b"distlog"])
    change(state)
    return rewritten(table.replace_schema_metadata({"distlog": json.dumps(state)}))


def with_segments(data: bytes, change: Callable[[list[dict[str, Any]]], object]) -> bytes:
    """The checkpoint `data` with its rows changed."""
    table = pq.read_table(io.BytesIO(data))
    rows = table.to_pylist()
    change([row["segment"] for row in rows])
    return rewritten(pa.Table.from_pylist(rows, table.schema))


def rewritten(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def test_the_state_comes_back_as_it_was(storage: Storage, snapshot: Snapshot) -> None:
    assert checkpoint.read(storage, checkpoint.write(storage, snapshot)) == snapshot


def test_the_state_of_a_new_and_of_a_dropped_topic_come_back(storage: Storage) -> None:
    history = History()
    history.create(1)
    assert checkpoint.read(storage, checkpoint.write(storage, history.snapshot())) == history.snapshot()
    history.commit(Drop())
    assert checkpoint.read(storage, checkpoint.write(storage, history.snapshot())) == history.snapshot()


def test_the_file_is_parquet_with_a_row_per_segment_and_per_batch(snapshot: Snapshot) -> None:
    rows = pq.read_table(io.BytesIO(checkpoint_format.encode(snapshot))).to_pylist()
    segments = [row["segment"] for row in rows if row["transaction"] is None]
    assert [(row["partition"], row["base_offset"]) for row in segments] == [(0, 0), (0, 10), (0, 20), (3, 0)]
    assert [row["transaction"]["batch_id"] for row in rows[4:]] == ["7", '"7"']
    assert len(rows) == 6


def test_the_hint_names_the_checkpoint_written_last(storage: Storage, snapshot: Snapshot) -> None:
    assert checkpoint.read_hint(storage) is None
    name = checkpoint.write(storage, snapshot)
    assert checkpoint.read_hint(storage) == name
    assert checkpoint.version_of(name) == snapshot.version == 4


@pytest.mark.parametrize(
    "hint", [b"", b"\xff\x00", b"../../etc/passwd", b"_commits/7.parquet", b"x" * 100_000, b"_commits/../x"]
)
def test_a_hint_that_is_no_name_of_a_checkpoint_is_no_hint(storage: Storage, hint: bytes) -> None:
    storage.put(paths.LAST_CHECKPOINT, hint)
    assert checkpoint.read_hint(storage) is None


def test_a_missing_checkpoint_is_told_from_a_wrong_one(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        checkpoint.read(storage, paths.checkpoint_file(4, "0" * 32))


def test_any_flipped_bit_is_noticed(storage: Storage, snapshot: Snapshot) -> None:
    name = checkpoint.write(storage, snapshot)
    data = storage.read(name)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        storage.put(name, bytes(flipped))
        with pytest.raises(CorruptMetadataError, match="checksum"):
            checkpoint.read(storage, name)


def test_a_checkpoint_cut_anywhere_is_noticed(storage: Storage, snapshot: Snapshot) -> None:
    name = checkpoint.write(storage, snapshot)
    data = storage.read(name)
    for size in range(0, len(data), 101):
        storage.put(name, data[:size])
        with pytest.raises(CorruptMetadataError, match="checksum"):
            checkpoint.read(storage, name)


def test_a_checkpoint_under_the_name_of_another_version_is_refused(storage: Storage, snapshot: Snapshot) -> None:
    data = checkpoint_format.encode(snapshot)
    name = paths.checkpoint_file(snapshot.version + 1, hashlib.sha256(data).hexdigest()[:32])
    storage.put(name, data)
    with pytest.raises(CorruptMetadataError, match="version"):
        checkpoint.read(storage, name)


def test_even_without_the_checksum_a_flipped_bit_is_no_crash(snapshot: Snapshot) -> None:
    data = checkpoint_format.encode(snapshot)
    outcomes = set()
    for position in range(0, len(data), 31):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        try:
            outcomes.add(checkpoint_format.decode(bytes(flipped), "a file").version >= 0)
        except (CorruptMetadataError, UnsupportedVersionError):
            outcomes.add("refused")
    assert outcomes == {True, "refused"}


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(format=2),
        lambda state: state.update(version=-1),
        lambda state: state.update(commit_id="x"),
        lambda state: state.update(name="../x"),
        lambda state: state.update(config={"no.such.setting": 1}),
        lambda state: state.update(requires=["a feature"]),
        lambda state: state.update(transactions=3),
        lambda state: state.update(partitions=None),
        lambda state: state.update(pins=[1]),
        lambda state: state.pop("topic_id"),
        lambda state: state["partitions"].pop(),
        lambda state: state["partitions"][0].update(segments=2),
        lambda state: state["partitions"][0].update(segments=-1),
        lambda state: state["partitions"][0].update(segments=2**62),
        lambda state: state["partitions"][0].update(log_end_offset=29),
        lambda state: state["partitions"].insert(0, state["partitions"].pop()),
        lambda state: state["active"][0].update(stem="../../x"),
        lambda state: state.update(timestamp_ms=5),
    ],
)
def test_metadata_that_does_not_agree_with_the_rows_is_refused(
    snapshot: Snapshot, change: Callable[[dict[str, Any]], object]
) -> None:
    data = checkpoint_format.encode(snapshot)
    assert checkpoint_format.decode(with_state(data, lambda state: None), "a file") == snapshot
    with pytest.raises(CorruptMetadataError, match="a file"):
        checkpoint_format.decode(with_state(data, change), "a file")


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[0].update(next_offset=11),
        lambda rows: rows[0].update(next_offset=0),
        lambda rows: rows[1].update(base_offset=9),
        lambda rows: rows[2].update(next_offset=31),
        lambda rows: rows[0].update(partition=1),
        lambda rows: rows[0].update(record_count=11),
        lambda rows: rows[0].update(log_bytes=-1),
        lambda rows: rows[0].update(crc32c=2**32),
        lambda rows: rows[0].update(stem="../../etc/passwd"),
        lambda rows: rows[0].update(stem=rows[0]["stem"] + "\n"),
        lambda rows: rows[0].update(compression=""),
        lambda rows: rows[0].update(stem=None),
        lambda rows: rows[0].update(base_offset=None),
        lambda rows: rows[0].update(compacted=None),
    ],
)
def test_segments_that_cannot_be_are_refused(
    snapshot: Snapshot, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    data = checkpoint_format.encode(snapshot)
    assert checkpoint_format.decode(with_segments(data, lambda rows: None), "a file") == snapshot
    with pytest.raises(CorruptMetadataError, match="a file"):
        checkpoint_format.decode(with_segments(data, change), "a file")


def test_segments_of_another_partition_than_the_metadata_says_are_refused(snapshot: Snapshot) -> None:
    data = checkpoint_format.encode(snapshot)
    roomy = with_state(data, lambda state: state["partitions"][1].update(log_end_offset=100))
    assert checkpoint_format.decode(roomy, "a file")
    with pytest.raises(CorruptMetadataError, match="order of their partitions"):
        checkpoint_format.decode(with_segments(roomy, lambda rows: rows[2].update(partition=1)), "a file")


def test_columns_that_a_newer_library_added_are_kept(snapshot: Snapshot) -> None:
    table = pq.read_table(io.BytesIO(checkpoint_format.encode(snapshot)))
    rows = [{**row, "segment": row["segment"] and {**row["segment"], "colour": "blue"}} for row in table.to_pylist()]
    wider = pa.Table.from_pylist(rows).replace_schema_metadata(table.schema.metadata)
    transactions = table.column("transaction")
    data = rewritten(wider.set_column(1, "transaction", transactions))
    kept = checkpoint_format.decode(data, "a file")
    assert [info.unknown for state in kept.partitions for info in state.segments] == ['{"colour": "blue"}'] * 4
    again = checkpoint_format.decode(checkpoint_format.encode(kept), "a file")
    assert again == kept


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 100, b"\0" * 10_000])
def test_what_is_no_parquet_file_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptMetadataError, match="a file"):
        checkpoint_format.decode(data, "a file")


def test_a_parquet_file_of_something_else_is_refused() -> None:
    with pytest.raises(CorruptMetadataError, match="a file"):
        checkpoint_format.decode(rewritten(pa.table({"x": [1]})), "a file")


def large(snapshot: Snapshot, segments: int) -> Snapshot:
    """`snapshot` with `segments` segments in partition 0, and as many batches."""
    infos = [segment(0, base, 1) for base in range(segments)]
    columns = snapshot.transactions.columns().take([0] * segments)
    state = dataclasses.replace(
        snapshot.partitions[0], log_end_offset=segments, segments=SegmentTable.of(infos), first_dirty_offset=0
    )
    transactions = type(snapshot.transactions)(columns)
    return dataclasses.replace(snapshot, partitions=(state, *snapshot.partitions[1:]), transactions=transactions)


def calls_to_decode(data: bytes) -> int:
    """How many Python and C functions are called to open a checkpoint."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        checkpoint_format.decode(data, "a file")
    finally:
        sys.setprofile(None)
    return calls


def test_opening_makes_no_python_object_per_segment(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (checkpoint_format.encode(large(snapshot, count)) for count in (10, 3_000))
    monkeypatch.setattr(SegmentInfo, "__init__", lambda *_, **__: pytest.fail("a SegmentInfo was made"))
    checkpoint_format.decode(few, "a file")
    assert calls_to_decode(many) - calls_to_decode(few) < 1_000
