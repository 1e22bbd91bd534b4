"""The metadata of one segment: enough to plan any read without its files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from distlog.core.commits import fields
from distlog.core.commits.fields import LONG, PARTITION, STEM, TIMESTAMP, Integer, Text, stored
from distlog.core.limits import MAX_INT, MAX_LONG
from distlog.core.paths import stem_read_version

#: A fact that the writer of the segment did not store.
UNKNOWN = -1
#: `first_unstable_offset` when it was not determined; NO_OFFSET when there is no open transaction.
NOT_LOOKED, NO_OFFSET = -2, -1

#: The position of what is a file of its own, and no part of a bundle.
OWN_FILE = -1

#: `append_time_ms` of a segment that gets the time of its commit.
BY_COMMIT = -2

_CRC = Integer(0, 2**32 - 1)
_CRC_OR_UNKNOWN = Integer(UNKNOWN, 2**32 - 1)
_POSITION = Integer(OWN_FILE, MAX_LONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment, as commits describe it; immutable, like its files.

    The records of a segment have the offsets `base_offset` (in) to `next_offset` (out), with gaps where compaction
    dropped some. The offsets in the log file begin at `stored_base_offset` (0 in files that distlog wrote); readers
    add `shift` to them.
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
    # By then all of its records were written; the age of records that have no time counts from here.
    created_ms: int = stored(LONG)
    # CRC-32C of the whole log file.
    crc32c: int = stored(_CRC)
    # No record is older; -1 means that this is not known, or that a record has no timestamp.
    min_timestamp: int = stored(TIMESTAMP, default=UNKNOWN)
    # With LogAppendTime, the time of all records, given by the commit; -1: each has its own.
    append_time_ms: int = stored(TIMESTAMP, default=-1)
    # CRC-32C of each index file.
    offset_index_crc32c: int = stored(_CRC_OR_UNKNOWN, default=UNKNOWN)
    time_index_crc32c: int = stored(_CRC_OR_UNKNOWN, default=UNKNOWN)
    txn_index_crc32c: int = stored(_CRC_OR_UNKNOWN, default=UNKNOWN)
    # The checksum fields of the log's first and last batch: they identify the log, without reading it.
    first_batch_crc: int = stored(_CRC_OR_UNKNOWN, default=UNKNOWN)
    last_batch_crc: int = stored(_CRC_OR_UNKNOWN, default=UNKNOWN)
    # Where the oldest transaction begins that is open at the segment's end; it may begin in an earlier segment.
    first_unstable_offset: int = stored(Integer(NOT_LOOKED, MAX_LONG), default=NOT_LOOKED)
    # Where the log and its indexes begin in the bundle of this stem; OWN_FILE: a file in the partition's folder.
    log_position: int = stored(_POSITION, default=OWN_FILE)
    offset_index_position: int = stored(_POSITION, default=OWN_FILE)
    time_index_position: int = stored(_POSITION, default=OWN_FILE)
    # Whether batches carry producer ids.
    has_producers: bool = stored(fields.boolean, default=False)
    # Not stored: the file grows, and may be cut, so it is read and never mapped. Only a snapshot for readers has it.
    is_active: bool = False

    @property
    def shift(self) -> int:
        """The number that is added to a stored offset to get the record's offset."""
        return self.base_offset - self.stored_base_offset

    @property
    def dense(self) -> bool:
        """True if every offset of the segment is a record that a reader gets."""
        return self.record_count == self.next_offset - self.base_offset and not self.has_transactions

    @property
    def is_bundled(self) -> bool:
        """True if the log is a part of a bundle."""
        return self.log_position != OWN_FILE

    @property
    def may_have_producers(self) -> bool:
        """True if batches carry producer ids, or the segment may be older than this field."""
        return self.has_producers or self.has_transactions or stem_read_version(self.stem) is None

    def moved_to(self, base_offset: int) -> SegmentInfo:
        """This segment moved to begin at `base_offset`: the same files, other offsets."""
        moved = base_offset - self.base_offset
        newest, unstable = self.offset_of_max_timestamp, self.first_unstable_offset
        return dataclasses.replace(
            self,
            base_offset=base_offset,
            next_offset=self.next_offset + moved,
            offset_of_max_timestamp=newest + moved if newest >= 0 else newest,
            first_unstable_offset=unstable + moved if unstable >= 0 else unstable,
        )

    def appended_at(self, time_ms: int) -> SegmentInfo:
        """Return this segment with `time_ms` as the time of all its records, instead of the batches' times."""
        return dataclasses.replace(
            self,
            append_time_ms=time_ms,
            first_timestamp=time_ms,
            min_timestamp=time_ms,
            max_timestamp=time_ms,
            offset_of_max_timestamp=self.base_offset,
        )

    def check(self) -> None:
        """Raise ValueError when the fields, each legal by itself, contradict each other."""
        if not self.base_offset < self.next_offset:
            raise ValueError(f"segment {self.stem} must end above its base offset {self.base_offset}")
        if self.record_count > self.next_offset - self.base_offset:
            raise ValueError(f"segment {self.stem} has more records than offsets")
        if self.stored_base_offset > MAX_LONG - (self.next_offset - self.base_offset):
            raise ValueError(f"the offsets that segment {self.stem} stores are larger than offsets are")
        newest = self.offset_of_max_timestamp
        if newest != -1 and not self.base_offset <= newest < self.next_offset:
            raise ValueError(f"offset_of_max_timestamp {newest} lies outside of segment {self.stem}")
        if self.first_unstable_offset >= self.next_offset:
            raise ValueError(f"first_unstable_offset {self.first_unstable_offset} lies after segment {self.stem}")
        if not self.is_bundled and max(self.offset_index_position, self.time_index_position) != OWN_FILE:
            raise ValueError(f"segment {self.stem} has an index in a bundle, but its log is a file of its own")
        if self.is_bundled and stem_read_version(self.stem) is None:
            raise ValueError(f"segment {self.stem} has a stem of Kafka's form, so it cannot be part of a bundle")
        times = {self.first_timestamp, self.min_timestamp, self.max_timestamp}
        if self.append_time_ms >= 0 and times != {self.append_time_ms}:
            raise ValueError(f"segment {self.stem} was appended at {self.append_time_ms}, but has other timestamps")
