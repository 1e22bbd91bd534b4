"""Checkpoints: the state round trips, and a damaged file is detected."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from histories import History, former_file, segment

from distlog.core import paths
from distlog.core.commits import checkpoint, segment_table
from distlog.core.commits.actions import (
    Active,
    Add,
    Drop,
    SetConfig,
    SetLogStartOffset,
    SetTransaction,
    SetVacuumHorizon,
)
from distlog.core.commits.deduplication import BATCH_SCHEMA, PRODUCER_SCHEMA
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.snapshot_loader import read_hint
from distlog.core.errors import CorruptMetadataError, UnsupportedVersionError
from distlog.core.storage.storage import Storage


@pytest.fixture
def snapshot() -> Snapshot:
    history = History()
    history.create(4)
    history.commit(*(Add(segment(0, base, 10)) for base in (0, 10, 20)), Add(segment(3, 0, 7)))
    history.commit(SetTransaction("app", 7, {0: (20, 30), 3: (0, 7)}), SetTransaction("app", "7", {}))
    history.commit(SetConfig({"retention.ms": "5", "cleanup.policy": "compact"}), SetVacuumHorizon(2))
    history.commit(SetLogStartOffset(0, 5), Active(3, segment(read_version=2).stem, 7))
    return history.snapshot()


def with_state(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    state, batches = checkpoint.unpack(data)
    change(state)
    return checkpoint.pack(state, batches)


def with_segments(data: bytes, change: Callable[[list[dict[str, Any]]], object]) -> bytes:
    state, batches = checkpoint.unpack(data)
    rows = batches["segments"].to_pylist()
    change(rows)
    return checkpoint.pack(
        state, {**batches, "segments": pa.RecordBatch.from_pylist(rows, batches["segments"].schema)}
    )


def test_the_state_round_trips(storage: Storage, snapshot: Snapshot) -> None:
    assert checkpoint.read(storage, checkpoint.write(storage, snapshot)) == snapshot


def test_the_state_of_a_new_and_of_a_dropped_topic_round_trip(storage: Storage) -> None:
    history = History()
    history.create(1)
    assert checkpoint.read(storage, checkpoint.write(storage, history.snapshot())) == history.snapshot()
    history.commit(Drop())
    assert checkpoint.read(storage, checkpoint.write(storage, history.snapshot())) == history.snapshot()


def test_the_file_is_json_and_arrow_messages_in_a_zstd_frame(snapshot: Snapshot) -> None:
    file = pa.BufferReader(pa.input_stream(io.BytesIO(checkpoint.encode(snapshot)), compression="zstd").read())
    state = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    all_schemas = (segment_table.SCHEMA, BATCH_SCHEMA, PRODUCER_SCHEMA)
    kinds = {str(kind): kind for schema in all_schemas for kind in schema.types}
    schemas = [pa.schema({name: kinds[kind] for name, kind in part.items()}) for part in state["columns"].values()]
    batches = [pa.ipc.read_record_batch(pa.ipc.read_message(file), schema) for schema in schemas]
    segments, transactions, producers = (batch.to_pylist() for batch in batches)
    assert [(row["partition"], row["base_offset"]) for row in segments] == [(0, 0), (0, 10), (0, 20), (3, 0)]
    assert [row["batch_id"] for row in transactions] == ["7", '"7"']
    assert producers == []


def test_the_hint_names_the_checkpoint_written_last(storage: Storage, snapshot: Snapshot) -> None:
    assert read_hint(storage) is None
    name = checkpoint.write(storage, snapshot)
    assert read_hint(storage) == name
    assert paths.parse_checkpoint_file(name) == snapshot.version == 4


@pytest.mark.parametrize(
    "hint", [b"", b"\xff\x00", b"../../etc/passwd", former_file(4).encode(), b"x" * 100_000, b"_commits/../x"]
)
def test_an_invalid_hint_is_ignored(storage: Storage, hint: bytes) -> None:
    storage.put(paths.LAST_CHECKPOINT, hint)
    assert read_hint(storage) is None


def test_a_missing_checkpoint_and_a_damaged_one_raise_different_errors(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        checkpoint.read(storage, paths.checkpoint_file(4, "0" * 32))


def test_a_flipped_bit_or_a_truncation_is_detected(storage: Storage, snapshot: Snapshot) -> None:
    name, random = checkpoint.write(storage, snapshot), Random(7)
    data = storage.read(name)
    for position in (0, len(data) - 1, *random.sample(range(len(data)), 50)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << random.randrange(8)
        for damaged in (bytes(flipped), data[:position]):
            storage.put(name, damaged)
            with pytest.raises(CorruptMetadataError, match="checksum"):
                checkpoint.read(storage, name)


def test_a_checkpoint_under_the_name_of_another_version_is_refused(storage: Storage, snapshot: Snapshot) -> None:
    data = checkpoint.encode(snapshot)
    name = paths.checkpoint_file(snapshot.version + 1, hashlib.sha256(data).hexdigest()[:32])
    storage.put(name, data)
    with pytest.raises(CorruptMetadataError, match="version"):
        checkpoint.read(storage, name)


def test_without_the_checksum_no_flipped_bit_crashes(snapshot: Snapshot) -> None:
    data, random = checkpoint.encode(snapshot), Random(7)
    streams = pa.input_stream(io.BytesIO(data), compression="zstd").read()
    outcomes = set()
    for _ in range(150):
        flipped = bytearray(streams)
        for position in random.sample(range(len(streams)), random.choice((1, 1, 4))):
            flipped[position] ^= 1 << random.randrange(8)
        try:
            read = checkpoint.decode(pa.Codec("zstd").compress(bytes(flipped), asbytes=True), "a file")
            outcomes.add([len(list(state.segments)) for state in read.partitions] == [3, 0, 0, 1])
        except (CorruptMetadataError, UnsupportedVersionError):
            outcomes.add("refused")
    assert outcomes == {True, "refused"}


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(version=-1),
        lambda state: state.update(commit_id="x"),
        lambda state: state.update(name="../x"),
        lambda state: state.update(config={"no.such.setting": 1}),
        lambda state: state.update(requires=["a feature"]),
        lambda state: state.update(transactions=3),
        lambda state: state.update(partitions=None),
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
    data = checkpoint.encode(snapshot)
    assert checkpoint.decode(with_state(data, lambda state: None), "a file") == snapshot
    with pytest.raises(CorruptMetadataError, match="a file"):
        checkpoint.decode(with_state(data, change), "a file")


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
        lambda rows: rows[0].update(stored_base_offset=2**63 - 1),
        lambda rows: rows[0].update(crc32c=2**32),
        lambda rows: rows[0].update(stem="../../etc/passwd"),
        lambda rows: rows[0].update(stem=rows[0]["stem"] + "\n"),
        lambda rows: rows[0].update(compression=""),
        lambda rows: rows[0].update(stem=None),
        lambda rows: rows[0].update(base_offset=None),
        lambda rows: rows[0].update(compacted=None),
    ],
)
def test_impossible_segments_are_refused(
    snapshot: Snapshot, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    data = checkpoint.encode(snapshot)
    assert checkpoint.decode(with_segments(data, lambda rows: None), "a file") == snapshot
    with pytest.raises(CorruptMetadataError, match="a file"):
        checkpoint.decode(with_segments(data, change), "a file")


def test_segments_of_another_partition_than_the_metadata_says_are_refused(snapshot: Snapshot) -> None:
    data = checkpoint.encode(snapshot)
    roomy = with_state(data, lambda state: state["partitions"][1].update(log_end_offset=100))
    assert checkpoint.decode(roomy, "a file")
    with pytest.raises(CorruptMetadataError, match="order of their partitions"):
        checkpoint.decode(with_segments(roomy, lambda rows: rows[2].update(partition=1)), "a file")


@pytest.mark.parametrize("data", [b"", b"PAR1" * 100, b"\0" * 10_000, b"\x28\xb5\x2f\xfd\xff"])
def test_a_file_that_is_not_a_frame_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptMetadataError, match="a file"):
        checkpoint.decode(data, "a file")


def named(*batches: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    return dict(zip(("segments", "transactions", "producers"), batches, strict=True))


def test_rows_of_something_else_are_refused(snapshot: Snapshot) -> None:
    state, parts = checkpoint.unpack(checkpoint.encode(snapshot))
    segments, transactions, producers = parts.values()
    other, of_floats = pa.record_batch({"x": [1]}), segments.append_column("x", pa.array([0.5] * 4))
    for batches in ((other, other), (segments, other), (of_floats, transactions), (transactions, segments)):
        with pytest.raises(CorruptMetadataError, match="a file"):
            checkpoint.decode(checkpoint.pack(state, named(*batches, producers)), "a file")
    with pytest.raises(CorruptMetadataError, match="malformed"):
        checkpoint.decode(
            checkpoint.pack(state, named(segments.drop_columns(["stem"]), transactions, producers)), "a file"
        )
    plain = pa.input_stream(io.BytesIO(checkpoint.encode(snapshot)), compression="zstd").read()
    for wrong in (plain[:-8], plain[:4], plain + plain[-8:], b"\xff" * 8 + plain[8:]):
        with pytest.raises(CorruptMetadataError, match="a file"):
            checkpoint.decode(pa.Codec("zstd").compress(wrong, asbytes=True), "a file")
