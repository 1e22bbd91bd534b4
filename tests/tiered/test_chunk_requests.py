"""Reads of a bucket request ranges of chunks; each chunk is fetched and decompressed once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from addresses import Address
from logs import full_slice
from tiered_buckets import Upload, made_log, put

import distlog
from distlog.core.segments import segment_parts
from distlog.core.storage.storage import Storage, StorageCounters
from distlog.core.tiered import tiered_storage

RECORDS = 20_000


class Bucket(NamedTuple):
    """A bucket with one segment of 2 MB in chunks of 64 KiB, compressed to a tenth."""

    address: Address
    upload: Upload

    def open(self) -> distlog.Topic:
        return distlog.open_tiered(self.address.url, "clicks", storage_options=self.address.options)


@pytest.fixture(scope="module")
def upload(tmp_path_factory: pytest.TempPathFactory) -> Upload:
    log, files = made_log(tmp_path_factory.mktemp("upload"), RECORDS)
    return Upload(log, 0, RECORDS, index=files[".index"], time_index=files[".timeindex"], chunk_bytes=64 << 10)


@pytest.fixture
def bucket(s3_url: Address, upload: Upload) -> Bucket:
    put(Storage(*s3_url), upload)
    return Bucket(s3_url, upload)


@pytest.fixture
def decompressed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    real = tiered_storage._decompressed

    def counted(data: Any, size: int, output: Any) -> memoryview:
        sizes.append(size)
        return real(data, size, output)

    monkeypatch.setattr(tiered_storage, "_decompressed", counted)
    return sizes


def since(topic: distlog.Topic, old_counters: StorageCounters) -> tuple[int, int]:
    """Return the GETs and the bytes read since `old_counters`."""
    counters = topic.storage.counters
    return counters.gets - old_counters.gets, counters.bytes_read - old_counters.bytes_read


def now(topic: distlog.Topic) -> StorageCounters:
    return pickle.loads(pickle.dumps(topic.storage.counters))


pytestmark = pytest.mark.s3


def test_opening_it_costs_three_listings_and_two_gets(bucket: Bucket) -> None:
    counters = bucket.open().storage.counters
    assert (counters.lists, counters.gets) == (3, 2)


def test_one_record_costs_the_index_once_and_the_chunks_around_it(bucket: Bucket, decompressed: list[int]) -> None:
    topic = bucket.open()
    old_time = now(topic)
    (record,) = topic.records(0, start=12_345, limit=1)
    assert record.offset == 12_345
    gets, size = since(topic, old_time)
    assert gets <= 3
    assert size < len(b"".join(bucket.upload.chunks())) // 2
    assert len(decompressed) <= 10


def test_a_scan_fetches_and_decompresses_each_chunk_once(
    bucket: Bucket, decompressed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # windows that end inside chunks, several at a time
    monkeypatch.setattr(segment_parts, "WINDOW_BYTES", 150_000)
    topic = bucket.open()
    (segment,) = topic.live_snapshot.partitions[0].segments
    old_time = now(topic)
    chunks = topic.reader.chunks(full_slice(segment), 100_000)
    assert sum(int(chunk.batches["record_count"].sum()) for chunk in chunks) == RECORDS
    assert sum(decompressed) == len(bucket.upload.log)
    gets, size = since(topic, old_time)
    assert size == sum(map(len, bucket.upload.chunks()))
    assert gets <= len(bucket.upload.log) // 100_000 + 1


def test_a_sequential_read_fetches_each_chunk_once(tmp_path: Path, upload: Upload, decompressed: list[int]) -> None:
    put(Storage(str(tmp_path / "bucket")), upload)
    topic = distlog.open_tiered(str(tmp_path / "bucket"), "clicks")
    (segment,) = topic.live_snapshot.partitions[0].segments
    for start, end in ((100_000, 200_000), (0, 100_000)):
        assert topic.storage.read(topic.reader.name(segment), start, end) == upload.log[start:end]
    assert len(decompressed) == 4


def test_without_compression_a_read_fetches_the_bytes_it_needs(s3_url: Address, upload: Upload) -> None:
    plain = Upload(upload.log, 0, RECORDS, index=upload.index, time_index=upload.time_index, compressed=False)
    put(Storage(*s3_url), plain)
    topic = Bucket(s3_url, plain).open()
    old_time = now(topic)
    fetched = topic.read(0, 12_345, max_bytes=20_000)
    assert fetched.next_offset > 12_345
    gets, size = since(topic, old_time)
    assert gets <= 2
    assert size < 150_000
    assert topic.scan(columns=["offset"]).to_table()["offset"].to_pylist() == list(range(RECORDS))


def test_a_copy_in_another_process_reads_only_the_manifests_that_it_needs(bucket: Bucket, upload: Upload) -> None:
    topic = bucket.open()
    storage = pickle.loads(pickle.dumps(topic.storage))
    (segment,) = topic.live_snapshot.partitions[0].segments
    data = storage.read(topic.reader.name(segment), 0, 100)
    assert data == upload.log[:100]
    assert (storage.counters.gets, storage.counters.lists) == (2, 0)


def test_cached_chunks_are_bounded(tmp_path: Path, upload: Upload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiered_storage, "CACHE_BYTES", 200_000)
    put(Storage(str(tmp_path / "bucket")), upload)
    topic = distlog.open_tiered(str(tmp_path / "bucket"), "clicks")
    sizes = list[int]()
    for _ in range(2):
        old_time = now(topic)
        for start in range(0, RECORDS, 1000):
            assert next(topic.records(0, start=start, limit=1)).offset == start
        sizes.append(since(topic, old_time)[1])
    # the second time all but the last ones were evicted
    assert sizes[1] > 0.8 * sizes[0]
