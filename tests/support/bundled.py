"""Helpers for tests of bundles: topics whose appends meet several partitions, and their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topics import NOW

from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.paths import BUNDLES_DIR
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


def rows(partitions: int, count: int, first: int = 0, size: int = 1) -> list[dict[str, Any]]:
    """`count` records for each partition, of about `size` bytes, each with a value and a time of its own."""
    return [
        {
            "partition": number,
            "value": b"%d-%d." % (number, row) + bytes([row % 256]) * size,
            "timestamp": NOW + row,
        }
        for row in range(first, first + count)
        for number in range(partitions)
    ]


def segments(topic: Topic) -> list[SegmentInfo]:
    return [segment for state in topic.snapshot.partitions for segment in state.segments]


def bundles(storage: Storage) -> list[str]:
    return sorted(file.name for file in storage.list(BUNDLES_DIR))


def changed(storage: Storage, name: str, change: Callable[[bytearray], object]) -> None:
    data = bytearray(storage.read(name))
    change(data)
    storage.delete([name])
    storage.put(name, bytes(data))
