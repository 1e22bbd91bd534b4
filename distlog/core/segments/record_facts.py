"""The number of a log's records and their timestamps, as readers get them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distlog.core.arrow_arrays import numbers_of
from distlog.core.commits.format.segment_info import UNKNOWN
from distlog.core.config import MAX_LONG
from distlog.core.times import NO_TIMESTAMP


@dataclass(slots=True)
class RecordFacts:
    """The number of the records so far, the first timestamp in ms, the smallest, and the largest with its offset.

    The headers of batches count control records too, and their timestamps may not be those of the records.
    """

    count: int = 0
    first: int = NO_TIMESTAMP
    oldest: int = MAX_LONG
    newest: int = NO_TIMESTAMP
    offset_of_newest: int = -1

    def add(self, records: pa.RecordBatch) -> None:
        """Count the next records; their first columns are offset and timestamp."""
        if not records.num_rows:
            return
        timestamps = numbers_of(records.column(1).cast(pa.int64()))
        if self.count == 0:
            self.first = int(timestamps[0])
        self.count += records.num_rows
        self.oldest = min(self.oldest, int(timestamps.min()))
        newest = int(timestamps.argmax())
        if timestamps[newest] > self.newest:
            self.newest = int(timestamps[newest])
            self.offset_of_newest = records.column(0)[newest].as_py()

    def fields(self) -> dict[str, Any]:
        """The facts as fields of SegmentInfo."""
        return {
            "record_count": self.count,
            "first_timestamp": self.first,
            "min_timestamp": self.oldest if self.count else UNKNOWN,
            "max_timestamp": self.newest,
            "offset_of_max_timestamp": self.offset_of_newest,
        }
