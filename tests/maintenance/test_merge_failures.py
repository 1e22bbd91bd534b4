"""Failed merges: the report, the groups that are merged nevertheless, and the removal of partial files."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import uuid
from pathlib import Path
from typing import Any

import boto3
import pytest
from addresses import Address
from commits import put_commit
from small_segments import topic_of
from topics import files

import distlog
from distlog.core import paths
from distlog.core.commits.actions import Add
from distlog.core.errors import StorageError
from distlog.core.segments import segment_reader, segment_writer
from distlog.core.storage import object_store as object_writer
from distlog.core.topic import Topic


def spoil(topic: Topic, partition: int, index: int) -> None:
    log = topic.reader.part(topic.snapshot.partitions[partition].segments[index])
    data = bytearray(topic.storage.read(log.name))
    data[log.begin + 70] ^= 1
    topic.storage.put(log.name, data)


def test_a_corrupt_group_is_reported_and_the_others_are_merged(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    spoil(topic, 0, 1)
    old_rows, end = topic.scan(partitions=[1]).to_table(), topic.end_offsets()[0]
    report = topic.compact()
    assert not report.ok
    assert [len(state.segments) for state in topic.snapshot.partitions] == [4, 1]
    assert topic.scan(partitions=[1]).to_table() == old_rows
    document = report.to_dict()
    assert (document["ok"], document["segments_before"], document["segments_after"]) == (False, 4, 1)
    (failed,) = document["failed"]
    assert (failed["partition"], failed["base_offset"], failed["next_offset"]) == (0, 0, end)
    assert "fails its checksum" in failed["reason"]
    assert (document["backlog"], document["most_segments"]) == (4, 4)
    assert "4 segments left to merge" in str(report)
    text = f"merged 4 segments into 1, .*; cannot merge offsets 0 to {end} of partition 0: .*fails its checksum"
    assert re.match(text, str(report))


def test_overlapping_parts_are_reported_and_the_others_are_merged() -> None:
    """No correct writer makes them: each part is in its own commit, so no commit is refused."""
    topic = distlog.create(f"memory://{uuid.uuid4().hex}/log", partitions=2)
    topic.append([{"partition": number, "value": b"v"} for number in range(2)])
    first, second = (state.segments[0] for state in topic.snapshot.partitions)
    data = topic.storage.read(topic.reader.part(first).name)
    for _ in range(3):
        stem = paths.new_stem(topic.version, topic.handle.new_id())
        topic.storage.put(paths.bundle_file(stem), data)
        long = {"log_bytes": 1_000_000, "time_index_bytes": 0, "time_index_crc32c": 0, "time_index_position": -1}
        for info, fields in ((first, long), (second, {})):
            end = topic.end_offsets()[info.partition]
            add = Add(dataclasses.replace(info.moved_to(end), stem=stem, **fields))
            topic.advance(put_commit(topic.log, topic.snapshot, "append", lambda _, add=add: [add])[1])
    report = topic.compact()
    assert [info.partition for info in report.failed] == [0]
    assert [len(state.segments) for state in topic.snapshot.partitions] == [4, 1]


def test_a_merge_with_only_failed_groups_commits_nothing(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    spoil(topic, 0, 1)
    spoil(topic, 1, 3)
    version = topic.version
    assert [group.partition for group in topic.compact().failed] == [0, 1]
    assert topic.refresh().version == version


def large_topic(address: Address, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """Return a topic of three segments that are streamed, the last one corrupt."""
    topic = distlog.create(address.url, config={"retention.ms": -1}, storage_options=address.options)
    for number in range(3):
        topic.append([{"value": bytes([number]) * 25_000}])
    spoil(topic, 0, 2)
    monkeypatch.setattr(segment_writer, "HELD_BYTES", 1000)
    monkeypatch.setattr(segment_reader, "INDEX_WORTH_BYTES", 0)
    monkeypatch.setattr(segment_reader, "SMALL_BYTES", 0)
    monkeypatch.setattr(object_writer, "PART_BYTES", 10_000)
    monkeypatch.setattr(object_writer, "SINGLE_PUT_BYTES", 20_000)
    return topic


def test_a_merge_that_fails_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = large_topic(Address(str(tmp_path / "log"), {}), monkeypatch)
    old_files, descriptors = files(topic.storage), os.listdir("/proc/self/fd")
    assert not topic.compact().ok
    assert files(topic.storage) == old_files
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_a_failed_upload_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = large_topic(Address(str(tmp_path / "log"), {}), monkeypatch)
    spoil(topic, 0, 2)
    old_files = files(topic.storage)

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        topic.compact()
    monkeypatch.undo()
    assert files(topic.storage) == old_files


@pytest.mark.s3
def test_a_merge_that_fails_leaves_no_upload(s3_url: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = large_topic(s3_url, monkeypatch)
    old_files, uploads_seen = files(topic.storage), []
    make = object_writer.MultipartUpload.__init__
    monkeypatch.setattr(
        object_writer.MultipartUpload, "__init__", lambda *arguments: uploads_seen.append(make(*arguments))
    )
    assert not topic.compact().ok
    assert uploads_seen
    assert files(topic.storage) == old_files
    assert uploads(s3_url) == []


def uploads(address: Address) -> list[str]:
    """Return the keys of the unfinished uploads to an address."""
    bucket, _, folder = address.url.removeprefix("s3://").partition("/")
    client = boto3.client(
        "s3",
        endpoint_url=address.options["endpoint_url"],
        aws_access_key_id=address.options["key"],
        aws_secret_access_key=address.options["secret"],
        region_name="us-east-1",
    )
    multipart_uploads = client.list_multipart_uploads(Bucket=bucket, Prefix=folder)
    return [upload["Key"] for upload in multipart_uploads.get("Uploads", [])]
