"""What a snapshot knows of one segment: enough to plan any read of it without touching its files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from distlog.core.commits import fields
from distlog.core.commits.fields import LONG, PARTITION, STEM, TIMESTAMP, Integer, Text, stored
from distlog.core.config import MAX_INT


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment as commits describe it; immutable, as its files are.

    The records of a segment have the offsets `base_offset` (in) to `next_offset` (out), with gaps
    where compaction dropped some. The log file holds them as if it began at `stored_base_offset`,
    which is 0 for files written by distlog, so `shift` is added to every offset that is read.
    """

    partition: int = stored(PARTITION)
    stem: str = stored(STEM)
    base_offset: int = stored(LONG)
    next_offset: int = stored(LONG)
    stored_base_offset: int = stored(LONG)
    record_count: int = stored(LONG)
    log_bytes: int = stored(LONG)
    # The size of each index file; 0 means that there is none.
    offset_index_bytes: int = stored(LONG)
    time_index_bytes: int = stored(LONG)
    txn_index_bytes: int = stored(LONG)
    # Milliseconds since 1970; -1 means that no record has a timestamp.
    first_timestamp: int = stored(TIMESTAMP)
    max_timestamp: int = stored(TIMESTAMP)
    # The first record that has max_timestamp, as an absolute offset; -1 means that no record has one.
    offset_of_max_timestamp: int = stored(TIMESTAMP)
    compression: str = stored(Text("[a-z0-9,]{1,64}"))
    leader_epoch: int = stored(Integer(-1, MAX_INT), default=-1)
    compacted: bool = stored(fields.boolean, default=False)
    has_transactions: bool = stored(fields.boolean, default=False)
    created_ms: int = stored(LONG)
    # CRC-32C of the whole log file.
    crc32c: int = stored(Integer(0, 2**32 - 1))

    @property
    def shift(self) -> int:
        """What is added to a stored offset to get the record's offset."""
        return self.base_offset - self.stored_base_offset

    @property
    def dense(self) -> bool:
        """Whether every offset of the segment is a record that a reader gets."""
        return self.record_count == self.next_offset - self.base_offset and not self.has_transactions

    def at(self, base_offset: int) -> SegmentInfo:
        """This segment moved to begin at `base_offset`: the same files, other offsets."""
        moved = base_offset - self.base_offset
        newest = self.offset_of_max_timestamp
        return dataclasses.replace(
            self,
            base_offset=base_offset,
            next_offset=self.next_offset + moved,
            offset_of_max_timestamp=newest + moved if newest >= 0 else newest,
        )

    def check(self) -> None:
        """Raise ValueError when the fields, each legal by itself, contradict each other."""
        if not self.base_offset < self.next_offset:
            raise ValueError(f"segment {self.stem} must end above its base offset {self.base_offset}")
        if self.record_count > self.next_offset - self.base_offset:
            raise ValueError(f"segment {self.stem} has more records than offsets")
        newest = self.offset_of_max_timestamp
        if newest != -1 and not self.base_offset <= newest < self.next_offset:
            raise ValueError(f"offset_of_max_timestamp {newest} lies outside of segment {self.stem}")
