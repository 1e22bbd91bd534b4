"""Buckets of Kafka's tiered storage: those in `data/` that real brokers wrote, and made ones, laid out as theirs."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pyarrow as pa
from logs import START

import distlog
from distlog.core.format.compression import ZSTD, compress
from distlog.core.segments.producer_states import ENTRY, write_producer_snapshot
from distlog.core.storage.storage import Storage

DATA = golden.DATA / "kafka-tiered"
PREFIXES = {"plain": "plain", "compressed": "compressed/some/prefix-", "retried": "retried"}
TOPIC_ID = "A" * 22


@dataclass(frozen=True, slots=True)
class RemotePartitionData:
    """A partition that a real broker uploaded, and the records that a consumer read."""

    bucket: str
    name: str
    fields: dict[str, Any]

    @property
    def url(self) -> str:
        return str(DATA / PREFIXES[self.bucket])

    @property
    def topic(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def number(self) -> int:
        return int(self.name.rpartition("-")[2])

    def records(self, *, committed: bool = False) -> list[dict[str, Any]]:
        """The consumer's records up to where the bucket settles them."""
        partition = golden.GoldenPartition(self.name, DATA, DATA / f"{self.bucket}.{self.name}.jsonl.gz")
        end = self.fields["bucket_end_offset"]
        end = self.fields.get("bucket_last_stable_offset", end) if committed else end
        return [record for record in partition.records(committed=committed) if record["offset"] < end]


def golden_partitions() -> dict[str, RemotePartitionData]:
    info = json.loads((DATA / "info.json").read_text(encoding="utf-8"))["buckets"]
    golden = {
        f"{bucket}.{name}": RemotePartitionData(bucket, name, fields)
        for bucket in PREFIXES
        for name, fields in info[bucket]["partitions"].items()
        if (DATA / f"{bucket}.{name}.jsonl.gz").exists()
    }
    assert golden, "the buckets are missing"
    return golden


def uuid_of(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(16, "big")).decode()[:22]


@dataclass(frozen=True, slots=True)
class Upload:
    """A segment to be put into a bucket, in `<topic>-<TOPIC_ID>/<partition>`."""

    log: bytes
    start: int
    end: int
    topic: str = "clicks"
    partition: int = 0
    number: int = 1
    event_ms: int = 1000
    max_timestamp: int = START + 10**9
    index: bytes = b""
    time_index: bytes = b""
    chunk_bytes: int = 1024
    compressed: bool = True

    @property
    def stem(self) -> str:
        return f"{self.start:020d}-{uuid_of(self.number)}"

    @property
    def folder(self) -> str:
        return f"{self.topic}-{TOPIC_ID}/{self.partition}"

    def chunks(self) -> list[bytes]:
        parts = [self.log[number : number + self.chunk_bytes] for number in range(0, len(self.log), self.chunk_bytes)]
        return [compress(ZSTD, part) for part in parts] if self.compressed else parts

    def objects(self) -> dict[str, bytes]:
        snapshot = write_producer_snapshot(np.zeros(0, ENTRY))
        indexes, locations, position = b"", {}, 0
        files = {"offset": self.index, "timestamp": self.time_index}
        files |= {"producerSnapshot": snapshot, "leaderEpoch": b"0\n0\n"}
        for name, data in files.items():
            locations[name] = {"position": position, "size": len(data)}
            position, indexes = position + len(data), indexes + data
        chunks = self.chunks()
        name = f"{self.folder}/{self.stem}"
        manifest = json.dumps(self.manifest(chunks, {**locations, "transaction": None})).encode()
        return {f"{name}.log": b"".join(chunks), f"{name}.indexes": indexes, f"{name}.rsm-manifest": manifest}

    def chunk_index(self, chunks: Sequence[bytes]) -> dict[str, Any]:
        sizes = compress(ZSTD, packed([len(chunk) for chunk in chunks]))
        return {
            "type": "variable",
            "originalChunkSize": self.chunk_bytes,
            "originalFileSize": len(self.log),
            "transformedChunks": base64.b64encode(sizes).decode(),
        }

    def manifest(self, chunks: Sequence[bytes], locations: dict[str, Any]) -> dict[str, Any]:
        owner = {"topicId": TOPIC_ID, "topicPartition": {"topic": self.topic, "partition": self.partition}}
        return {
            "version": "1",
            "chunkIndex": self.chunk_index(chunks),
            "segmentIndexes": locations,
            "compression": self.compressed,
            "remoteLogSegmentMetadata": {
                "remoteLogSegmentId": {"topicIdPartition": owner, "id": uuid_of(self.number)},
                "startOffset": self.start,
                "endOffset": self.end - 1,
                "maxTimestampMs": self.max_timestamp,
                "brokerId": 1,
                "eventTimestampMs": self.event_ms,
                "segmentLeaderEpochs": {"0": self.start},
            },
        }


def packed(sizes: Sequence[int]) -> bytes:
    """`transformedChunks` before compression: all but the last as what they have above a base, in few bytes each."""
    data = struct.pack(">i", len(sizes))
    if len(sizes) > 1:
        base = min(sizes[:-1])
        width = max(1, ((max(sizes[:-1]) - base).bit_length() + 7) // 8)
        data += struct.pack(">iB", base, width) + b"".join(
            (size - base).to_bytes(width, "big") for size in sizes[:-1]
        )
    return data + (struct.pack(">i", sizes[-1]) if sizes else b"")


def put(storage: Storage, *uploads: Upload) -> None:
    for upload in uploads:
        storage.put_many(upload.objects())


def made_log(folder: Path, records: int, value_bytes: int = 100) -> tuple[bytes, dict[str, bytes]]:
    """The log of a partition with `records` records, as Kafka stores it, and its files `.index` and `.timeindex`."""
    config = {"compression.type": "uncompressed", "batch.bytes": "16384"}
    values = [b"%06d" % number * (value_bytes // 6) for number in range(records)]
    times = [START + number for number in range(records)]
    topic = distlog.create(str(folder / "clicks"), config=config)
    topic.append(pa.table({"value": pa.array(values, pa.binary()), "timestamp": times}))
    (path,) = (folder / "clicks" / "clicks-0").glob("*.log")
    files = {suffix: path.with_suffix(suffix) for suffix in (".index", ".timeindex")}
    return path.read_bytes(), {suffix: file.read_bytes() if file.exists() else b"" for suffix, file in files.items()}


def rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    table_rows = [row for batch in batches for row in batch.to_pylist()]
    for row in table_rows:
        row.pop("partition")
        row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
    return table_rows
