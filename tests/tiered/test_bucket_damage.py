"""Nothing in a bucket is trusted: wrong names, manifests, sizes and chunks are refused by name."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tiered_buckets import TOPIC_ID, Upload, made_log, put, uuid_of

import distlog
from distlog.core.format.compression import ZSTD, compress
from distlog.core.format.record_batch import read_headers
from distlog.core.storage.storage import Storage


@pytest.fixture
def upload(tmp_path: Path) -> Upload:
    log, files = made_log(tmp_path, 50)
    return Upload(log, 0, 50, index=files[".index"], time_index=files[".timeindex"])


@pytest.fixture
def bucket(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "bucket"))


def open_topic(bucket: Storage) -> distlog.Topic:
    return distlog.open_tiered(bucket.url, "clicks")


def test_a_generated_bucket_is_read(bucket: Storage, upload: Upload) -> None:
    put(bucket, upload)
    assert open_topic(bucket).scan(columns=["offset"]).to_table()["offset"].to_pylist() == list(range(50))


def changed_manifest(upload: Upload, change: Callable[[dict[str, Any]], object]) -> dict[str, bytes]:
    objects = upload.objects()
    name = next(name for name in objects if name.endswith("rsm-manifest"))
    value = json.loads(objects[name])
    change(value)
    return {**objects, name: json.dumps(value).encode()}


METADATA = "remoteLogSegmentMetadata"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value.pop("chunkIndex"), "chunkIndex"),
        (lambda value: value.pop("compression"), "compression"),
        (lambda value: value.pop("segmentIndexes"), "segmentIndexes"),
        (lambda value: value["segmentIndexes"].pop("producerSnapshot"), "producerSnapshot"),
        (lambda value: value["segmentIndexes"]["offset"].update(size=-1), "integer"),
        (lambda value: value["segmentIndexes"]["offset"].update(position=2**40), "integer"),
        (lambda value: value["segmentIndexes"].update(offset={"position": 4, "size": 8}), "ranges that overlap"),
        (lambda value: value[METADATA].update(startOffset=1), "starts at offset 1"),
        (lambda value: value[METADATA].update(endOffset=-1), "integer"),
        (lambda value: value[METADATA].update(endOffset=2**63 - 1), "end offset"),
        (lambda value: value[METADATA].update(maxTimestampMs="1"), "integer"),
        (lambda value: value[METADATA].update(segmentLeaderEpochs={"x": 0}), "segmentLeaderEpochs"),
        (lambda value: value[METADATA]["remoteLogSegmentId"].update(id=uuid_of(9)), "another segment"),
        (
            lambda value: value[METADATA]["remoteLogSegmentId"]["topicIdPartition"]["topicPartition"].update(
                topic="x"
            ),
            "another segment",
        ),
        (lambda value: value["chunkIndex"].update(originalFileSize=10**6), "sizes of"),
        (lambda value: value.update(chunkIndex=[[[]]]), "chunkIndex"),
    ],
    ids=range(16),
)
def test_a_manifest_that_is_wrong_is_named(
    bucket: Storage, upload: Upload, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    bucket.put_many(changed_manifest(upload, change))
    with pytest.raises(distlog.CorruptMetadataError, match=message) as error:
        open_topic(bucket)
    assert error.value.details["file"].endswith(f"{upload.stem}.rsm-manifest")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"version":"1"}'], ids=range(6))
def test_an_invalid_manifest_is_named(bucket: Storage, upload: Upload, data: bytes) -> None:
    objects = upload.objects()
    bucket.put_many({name: data if name.endswith("manifest") else content for name, content in objects.items()})
    with pytest.raises((distlog.CorruptMetadataError, distlog.UnsupportedVersionError), match="rsm-manifest"):
        open_topic(bucket)


def test_another_version_of_manifests_is_refused(bucket: Storage, upload: Upload) -> None:
    bucket.put_many(changed_manifest(upload, lambda value: value.update(version="2")))
    with pytest.raises(distlog.UnsupportedVersionError, match="unknown version"):
        open_topic(bucket)


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
def test_a_truncated_object_is_named(bucket: Storage, upload: Upload, suffix: str) -> None:
    objects = upload.objects()
    cut = {name: data[: len(data) // 2] if name.endswith(suffix) else data for name, data in objects.items()}
    bucket.put_many(cut)
    with pytest.raises(distlog.CorruptMetadataError, match=rf"size.*\{suffix}"):
        open_topic(bucket)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_segment_deleted_under_an_open_topic_is_named(bucket: Storage, upload: Upload, compressed: bool) -> None:
    upload = dataclasses.replace(upload, compressed=compressed)
    put(bucket, upload)
    topic = open_topic(bucket)
    bucket.delete([f"{upload.folder}/{upload.stem}.log"])
    with pytest.raises(distlog.SnapshotTooOldError, match=rf"refresh the topic.*{upload.stem}\.log"):
        topic.scan().to_table()


def test_a_log_with_deleted_indexes_is_read_without_them(bucket: Storage, upload: Upload) -> None:
    put(bucket, upload)
    topic = open_topic(bucket)
    bucket.delete([f"{upload.folder}/{upload.stem}.indexes"])
    assert topic.scan(columns=["offset"]).to_table().num_rows == 50


def test_each_changed_byte_of_a_log_fails(bucket: Storage, upload: Upload) -> None:
    put(bucket, upload)
    expected = open_topic(bucket).scan().to_table()
    name = f"{upload.folder}/{upload.stem}.log"
    log = bucket.read(name)
    for position in range(0, len(log), 97):
        bucket.put(name, log[:position] + bytes([log[position] ^ 0x41]) + log[position + 1 :])
        with suppress(distlog.CorruptRecordError):
            assert open_topic(bucket).scan().to_table() == expected


@pytest.mark.parametrize(
    ("size", "message"),
    [(50_000_000, "does not decompress"), (10, "does not have the size")],
    ids=["larger", "shorter"],
)
def test_a_chunk_of_another_size_is_refused(bucket: Storage, upload: Upload, size: int, message: str) -> None:
    objects, chunks = upload.objects(), [compress(ZSTD, bytes(size)), *upload.chunks()[1:]]
    bucket.put_many(objects)
    bucket.put(f"{upload.folder}/{upload.stem}.log", b"".join(chunks))
    name = f"{upload.folder}/{upload.stem}.rsm-manifest"
    value = json.loads(objects[name]) | {"chunkIndex": upload.chunk_index(chunks)}
    bucket.put(name, json.dumps(value).encode())
    with pytest.raises(distlog.CorruptRecordError, match=message):
        open_topic(bucket).scan().to_table()


def test_a_bad_snapshot_of_producers_is_named(bucket: Storage, upload: Upload) -> None:
    put(bucket, upload)
    name = f"{upload.folder}/{upload.stem}.indexes"
    bucket.put(name, b"\xff" * bucket.size(name))
    with pytest.raises(distlog.CorruptIndexError, match=r"producer snapshot.*clicks-0/.*\.snapshot"):
        open_topic(bucket)


def test_objects_without_a_manifest_and_strange_names_are_ignored(bucket: Storage, upload: Upload) -> None:
    put(bucket, upload)
    bucket.put_many(
        {
            f"{upload.folder}/{99:020d}-{uuid_of(7)}.log": b"left over",
            f"{upload.folder}/{99:020d}-{uuid_of(7)}.indexes": b"left over",
            f"{upload.folder}/..%2f.log": b"x",
            f"clicks-{TOPIC_ID}/00/{upload.stem}.rsm-manifest": b"x",
            f"clicks-{TOPIC_ID}/1000000/{upload.stem}.rsm-manifest": b"x",
            f"clicks-{TOPIC_ID}/x": b"x",
        }
    )
    assert open_topic(bucket).scan().count() == 50


def test_a_manifest_with_a_deleted_log_is_ignored(
    bucket: Storage, upload: Upload, caplog: pytest.LogCaptureFixture
) -> None:
    put(bucket, upload)
    bucket.delete([f"{upload.folder}/{upload.stem}.log"])
    with caplog.at_level(logging.WARNING):
        assert open_topic(bucket).end_offsets() == {}
    assert "being deleted" in caplog.text


def test_offsets_without_a_segment_fail(bucket: Storage, upload: Upload) -> None:
    later = Upload(upload.log, 60, 110, number=2)
    put(bucket, upload, later)
    with pytest.raises(distlog.CorruptMetadataError, match=r"offsets are missing.*start_offset=60 expected=50"):
        open_topic(bucket)


def test_the_longer_of_two_segments_that_begin_at_one_offset_is_read(bucket: Storage, upload: Upload) -> None:
    shorter = Upload(upload.log[:10], 0, 20, number=2, event_ms=10**9)
    put(bucket, shorter, upload)
    assert open_topic(bucket).scan().count() == 50


def test_the_later_of_overlapping_segments_is_read_from_its_start(bucket: Storage, tmp_path: Path) -> None:
    log, files = made_log(tmp_path, 2000)
    batches = read_headers(log)
    row = len(batches) // 2
    position, offset = int(batches["position"][row]), int(batches["base_offset"][row])
    later = Upload(log[position:], offset, 2000, number=2, chunk_bytes=500)
    longer = int(batches["position"][row + 2]), int(batches["base_offset"][row + 2])
    first = Upload(log[: longer[0]], 0, longer[1], index=files[".index"])
    put(bucket, first, later)
    topic = open_topic(bucket)
    assert topic.segments()["next_offset"].to_pylist() == [offset, 2000]
    assert topic.scan(columns=["offset"]).to_table()["offset"].to_pylist() == list(range(2000))
    assert next(topic.records(0, start=offset, limit=1)).offset == offset


def test_segments_that_overlap_within_a_batch_are_refused(bucket: Storage, upload: Upload) -> None:
    put(bucket, upload, Upload(upload.log, 49, 99, number=2))
    with pytest.raises(distlog.CorruptMetadataError, match=r"overlap.*offset=49"):
        open_topic(bucket)


def test_a_missing_topic_fails_with_advice(bucket: Storage, upload: Upload) -> None:
    put(bucket, upload)
    with pytest.raises(distlog.TopicNotFoundError, match=r"key prefix.*topic=click\b"):
        distlog.open_tiered(bucket.url, "click")
    with pytest.raises(distlog.InvalidTopicError):
        distlog.open_tiered(bucket.url, "../clicks")


def test_the_topic_id_selects_one_of_equal_names(bucket: Storage, upload: Upload) -> None:
    put(bucket, upload)
    bucket.put(f"clicks-{'B' * 22}/0/x", b"")
    with pytest.raises(distlog.InvalidConfigError, match=f"use a topic_id of {TOPIC_ID}, {'B' * 22}"):
        open_topic(bucket)
    assert distlog.open_tiered(bucket.url, "clicks", topic_id=TOPIC_ID).scan().count() == 50
    with pytest.raises(distlog.InvalidConfigError, match="22 of the characters"):
        distlog.open_tiered(bucket.url, "clicks", topic_id="../x")
