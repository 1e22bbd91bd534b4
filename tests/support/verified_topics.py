"""Topics for the tests of verify: sound ones, ones with a file that was changed, and ones of any batches."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adopted import commit as commit_segments
from adopted import describe, put, with_indexes
from raw_batches import batch, record

import distlog
from distlog import Topic
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.maintain.verify import VerifyReport, verify

NOW = 1_700_000_000_000
CONFIG = {"batch.bytes": 100, "index.interval.bytes": 300, "retention.ms": -1}
BATCH_BYTES = 61 + 4 * 50


def topic_at(url: str, appends: int = 2, config: dict[str, Any] | None = None, **storage_options: Any) -> Topic:
    """A topic of one partition, a segment of 40 records per append."""
    topic = distlog.create(url, config={**CONFIG, **(config or {})}, storage_options=storage_options)
    for number in range(appends):
        topic.append([{"value": bytes(40 + number), "timestamp": NOW + 100 * number + row} for row in range(40)])
    return topic


def verified(topic: Topic) -> VerifyReport:
    return verify(topic.handle, topic.snapshot)


def anomalies_of(topic: Topic) -> list[tuple[str, int | None, int | None]]:
    """The anomalies: the word, the position, the offset."""
    return [(anomaly.word, anomaly.position, anomaly.offset) for anomaly in verified(topic).anomalies]


def segment_of(topic: Topic, number: int = 0) -> SegmentInfo:
    return topic.snapshot.partitions[0].segments[number]


def changed(topic: Topic, suffix: str, change: Callable[[bytearray], Any], number: int = 0) -> str:
    """Change the bytes of a file of segment `number`; its name."""
    name = topic.reader.name(segment_of(topic, number), suffix)
    data = bytearray(topic.storage.read(name))
    replaced = change(data)
    topic.storage.put(name, data if replaced is None else replaced)
    return name


def flip(position: int, bit: int = 0) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[position] ^= 1 << bit

    return change


def second_batch(topic: Topic) -> tuple[int, int]:
    """The position and the offset of the second batch of the second segment."""
    (_, position, *_) = topic.read(0, 40).positions.tolist()
    return position, int(topic.read(0, 40).base_offsets[1])


def raw_topic(folder: Path, log: bytes, next_offset: int, **changes: Any) -> Topic:
    """A topic whose one segment has these batches, valid or not."""
    topic = distlog.create(str(folder / uuid.uuid4().hex), config=CONFIG)
    files = with_indexes(log, 0, CONFIG["index.interval.bytes"])
    sound = b"".join(batch([record()], base_offset=offset) for offset in range(next_offset))
    fields = {
        "log_bytes": len(log),
        "stem": f"v{0:020d}-{uuid.uuid4().hex}",
        "crc32c": describe({".log": b""}, 0, 1).crc32c,
    }
    info = dataclasses.replace(describe({**files, ".log": sound}, 0, next_offset), **{**fields, **changes})
    put(topic, info, files)
    return commit_segments(topic, [info])
