"""Buckets of real brokers have exactly the records that a consumer got from the brokers."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
from addresses import S3Server
from tiered_buckets import DATA, RemotePartitionData, golden_partitions, rows

import distlog
from distlog.core.storage.storage import Storage

GOLDEN = golden_partitions()


@pytest.fixture(params=GOLDEN, ids=str)
def golden_partition(request: pytest.FixtureRequest) -> RemotePartitionData:
    return GOLDEN[request.param]


def open_bucket(remote_partition_data: RemotePartitionData) -> distlog.Topic:
    return distlog.open_tiered(remote_partition_data.url, topic=remote_partition_data.topic)


def test_every_record_equals_a_consumers(golden_partition: RemotePartitionData) -> None:
    topic, number = open_bucket(golden_partition), golden_partition.number
    assert topic.end_offsets()[number] == golden_partition.fields["bucket_end_offset"]
    first = golden_partition.fields["log_start_offset"]
    assert topic.start_offsets()[number] <= first
    assert rows(iter(topic.scan([number], start=first))) == golden_partition.records()
    assert topic.scan([number], start=first).count() == len(golden_partition.records())


def test_read_committed_ends_at_the_first_undecided_transaction() -> None:
    golden = [partition for partition in GOLDEN.values() if "committed" in partition.fields]
    assert {partition.name for partition in golden} == {"tiered-txn-0", "tiered-late-txn-0"}
    for partition in golden:
        assert rows(iter(open_bucket(partition).scan(isolation="read_committed"))) == partition.records(
            committed=True
        )
    late = open_bucket(GOLDEN["plain.tiered-late-txn-0"]).scan(isolation="read_committed")
    assert late.count() < open_bucket(GOLDEN["plain.tiered-late-txn-0"]).scan().count()


def test_the_newest_of_two_uploads_of_a_segment_is_read_and_the_other_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    partition = GOLDEN["retried.tiered-retried-0"]
    topic = open_bucket(partition)
    twice = partition.fields["uploaded_twice"]
    assert twice
    assert caplog.text.count("skipped a duplicate upload of a segment") == len(twice)
    stems = topic.segments()["stem"].to_pylist()
    assert stems == partition.fields["copy_finished"]


def test_each_offset_and_time_is_found_without_a_scan(golden_partition: RemotePartitionData) -> None:
    topic, records = open_bucket(golden_partition), golden_partition.records()
    number = golden_partition.number
    records = records if golden_partition.fields["log_start_offset"] == 0 else rows(iter(topic.scan([number])))
    for record in records[:: max(1, len(records) // 7)]:
        (record_found,) = topic.records(number, start=record["offset"], limit=1)
        assert (record_found.offset, record_found.value) == (record["offset"], record["value"])
        fetched = topic.read(number, record["offset"], max_bytes=1)
        assert len(fetched) > 0
        assert fetched.next_offset > record["offset"]
        offsets = topic.offsets_for_times({number: record["timestamp"]})[number]
        expected = next(row for row in records if row["timestamp"] >= record["timestamp"])
        assert offsets == (expected["offset"], expected["timestamp"])
    newest = max(record["timestamp"] for record in records)
    first = next(record["offset"] for record in records if record["timestamp"] == newest)
    assert topic.offsets_for_times({number: distlog.MAX_TIMESTAMP})[number] == (first, newest)


def test_encrypted_segments_are_refused_when_the_topic_is_opened() -> None:
    with pytest.raises(distlog.UnsupportedVersionError, match=r"encrypted.*rsm-manifest"):
        distlog.open_tiered(str(DATA / "encrypted"), topic="tiered-secret")


def test_it_is_read_only() -> None:
    topic = open_bucket(GOLDEN["compressed.tiered-one-0"])
    for change in (
        lambda: topic.append([{"value": b"v"}]),
        topic.writer,
        lambda: topic.delete_records({0: 1}),
        topic.retention,
        topic.compact,
        topic.vacuum,
        topic.rebuild_indexes,
        topic.drop,
        lambda: topic.alter_config({"retention.ms": "1"}),
        lambda: topic.delete_group("g"),
        lambda: topic.consume(),
        topic.history,
        topic.groups,
        topic.verify,
        lambda: topic.storage.put("x", b"x"),
        lambda: topic.storage.delete(["x"]),
    ):
        with pytest.raises(distlog.ReadOnlyTopicError, match="tiered storage"):
            change()


def test_it_shows_and_pickles_itself() -> None:
    topic = open_bucket(GOLDEN["compressed.tiered-none-1"])
    again = pickle.loads(pickle.dumps(topic))
    assert again.scan().to_table() == topic.scan().to_table()
    assert repr(topic) == f"TieredTopic({topic.url!r}, version=0, partitions=2)"
    assert "<table" in topic._repr_html_()


def test_a_refresh_sees_what_was_uploaded_since(tmp_path: Path) -> None:
    partition = GOLDEN["compressed.tiered-one-0"]
    (source,) = (DATA / "compressed" / "some").glob("prefix-tiered-one-*")
    folder = tmp_path / source.name / "0"
    folder.mkdir(parents=True)
    names = [segment["name"] for segment in partition.fields["segments"]]
    for name in names[:-1]:
        for path in (source / "0").glob(f"{name}.*"):
            shutil.copy(path, folder)
    topic = distlog.open_tiered(str(tmp_path / "prefix-"), topic="tiered-one")
    old_end_offsets = topic.end_offsets()
    for path in (source / "0").glob(f"{names[-1]}.*"):
        shutil.copy(path, folder)
    assert topic.end_offsets() == old_end_offsets
    assert topic.refresh().end_offsets() == {0: partition.fields["bucket_end_offset"]}
    assert rows(iter(topic.scan())) == partition.records()


@pytest.mark.s3
def test_a_bucket_on_s3_is_read_as_on_a_disk(s3_server: S3Server) -> None:
    partition, address = GOLDEN["compressed.tiered-txn-0"], s3_server.address()
    (source,) = (DATA / "compressed" / "some").glob("prefix-tiered-txn-*")
    files = {f"prefix-{source.name[7:]}/0/{path.name}": path.read_bytes() for path in (source / "0").iterdir()}
    Storage(*address).put_many(files)
    topic = distlog.open_tiered(f"{address.url}/prefix-", "tiered-txn", storage_options=address.options)
    assert rows(iter(topic.scan())) == partition.records()
    assert rows(iter(topic.scan(isolation="read_committed"))) == partition.records(committed=True)
