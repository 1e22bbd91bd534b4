"""The metadata of segments that are planned, and never read."""

from __future__ import annotations

import uuid

from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.paths import new_stem

RECORDS = 10


def described(partition: int, number: int, timestamp: int, created_ms: int) -> SegmentInfo:
    """The segment of that number in its partition, each of RECORDS records of the time `timestamp`."""
    return SegmentInfo(
        partition=partition,
        stem=new_stem(0, uuid.uuid4().hex),
        base_offset=RECORDS * number,
        next_offset=RECORDS * number + RECORDS,
        stored_base_offset=0,
        record_count=RECORDS,
        log_bytes=1000,
        offset_index_bytes=0,
        time_index_bytes=0,
        txn_index_bytes=0,
        first_timestamp=timestamp,
        max_timestamp=timestamp,
        offset_of_max_timestamp=RECORDS * number,
        compression="none",
        created_ms=created_ms,
        crc32c=0,
    )
