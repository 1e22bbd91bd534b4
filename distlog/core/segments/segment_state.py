"""The state of a segment behind its batches so far: all that its next append, its readers and its seal need.

A state is the fold over the headers of the batches (`state_fold`). Whoever writes a segment and whoever walks over
its log again fold alike. So a seal reads no byte of the log again, and a recovery after a crash, a rebuild and a
check come to the state of the writer. Folds work on the numbers as one int64 array; SegmentState names them.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.batches.compression import CODEC_NAMES
from distlog.core.commits.format.segment_info import NO_OFFSET, NOT_LOOKED, UNKNOWN, SegmentInfo
from distlog.core.config import MAX_INT, MAX_LONG
from distlog.core.indexes.offset_index import ENTRY as OFFSET_ENTRY
from distlog.core.indexes.time_index import ENTRY as TIME_ENTRY
from distlog.core.indexes.transaction_index import ENTRY as TXN_ENTRY
from distlog.core.kernels.segment_fold import PRODUCERS, TRANSACTIONS
from distlog.core.times import NO_TIMESTAMP

#: A segment's numbers: the fields of SegmentState behind `stem`, in their order.
Numbers = npt.NDArray[np.int64]

#: The longest stem; a shorter one is followed by zero bytes.
_STEM_BYTES = 56
_MAX_CRC = 2**32 - 1
#: Stands for any codec that Kafka does not have.
UNKNOWN_CODEC = "?"


def _between(low: int, high: int, default: int = 0) -> int:
    spec: int = dataclasses.field(default=default, metadata={"bounds": (low, high)})
    return spec


_size = partial(_between, 0, MAX_INT)
_long = partial(_between, 0, MAX_LONG)
_time = partial(_between, NO_TIMESTAMP, MAX_LONG, NO_TIMESTAMP)
_crc = partial(_between, 0, _MAX_CRC)
_crc_or_unknown = partial(_between, UNKNOWN, _MAX_CRC, UNKNOWN)


@dataclass(frozen=True, slots=True)
class SegmentState:
    """The state of a segment of `position` log bytes; offsets are absolute, times in ms, -1 for none.

    The order of the fields is that of the numbers in `kernels.segment_fold`.
    """

    stem: str
    # For the index rule: log bytes since the last entry, the largest timestamp, the last offset of its batch minus
    # the base offset, the timestamp of the last time entry, the number of batches.
    since_entry: int = _size()
    max_timestamp: int = _time()
    max_timestamp_delta: int = _size()
    last_time_entry: int = _time()
    batches: int = _size()
    base_offset: int = _long()
    next_offset: int = _long()
    position: int = _size()
    record_count: int = _long()
    first_timestamp: int = _time()
    min_timestamp: int = _time()
    # The first record with the largest timestamp; -1 also if no header tells it.
    offset_of_max_timestamp: int = _time()
    # The time at which the segment's span of time begins (Kafka's rollingBasedTimestamp).
    roll_timestamp: int = _time()
    first_batch_crc: int = _crc_or_unknown()
    last_batch_crc: int = _crc_or_unknown()
    # A bit for each codec that was seen.
    codecs: int = _between(0, 255)
    leader_epoch: int = _between(-1, MAX_INT, -1)
    # TRANSACTIONS, PRODUCERS: whether batches, or control batches, are of transactions, and whether of producers.
    producer_bits: int = _between(0, 3)
    # The CRC-32C of the log, and of the entries of each index.
    crc32c: int = _crc()
    offset_index_bytes: int = _size()
    offset_index_crc32c: int = _crc()
    time_index_bytes: int = _size()
    time_index_crc32c: int = _crc()
    txn_index_bytes: int = _size()
    txn_index_crc32c: int = _crc()
    created_ms: int = _long()
    first_unstable_offset: int = _between(NOT_LOOKED, MAX_LONG, NO_OFFSET)
    # The end of the part of the log that is on the device, and the time of the last sync.
    flushed_offset: int = _long()
    flushed_position: int = _size()
    flushed_ms: int = _long()

    @classmethod
    def new(
        cls, stem: str, base_offset: int, created_ms: int, first_unstable_offset: int = NO_OFFSET
    ) -> SegmentState:
        """The state of a segment without a batch; `first_unstable_offset` is that of the log before it."""
        return cls(
            paths.check_stem(stem),
            base_offset=base_offset,
            next_offset=base_offset,
            created_ms=created_ms,
            first_unstable_offset=first_unstable_offset,
            flushed_offset=base_offset,
            flushed_ms=created_ms,
        )

    @classmethod
    def of_numbers(cls, stem: str, numbers: Numbers) -> SegmentState:
        """The state with these numbers."""
        return cls(stem, *numbers.tolist())

    def numbers(self) -> Numbers:
        """The state's numbers, copied."""
        return np.array([getattr(self, name) for name in NAMES], np.int64)

    def pack(self) -> bytes:
        """The state as STATE_BYTES bytes; `unpack` accepts them on a machine of the same kind."""
        return pack_state(self.stem, self.numbers())

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> SegmentState:
        """The state in `data`, which `pack` or `pack_state` made; ValueError for bytes that cannot be a state."""
        stem, *values = _PACKED.unpack(data)
        state = cls(paths.check_stem(stem.rstrip(b"\0").decode("ascii", "replace")), *values)
        state.check()
        return state

    def flushed(self) -> SegmentState:
        """This state, when all that it counts is on the device."""
        return dataclasses.replace(self, flushed_offset=self.next_offset, flushed_position=self.position)

    def check(self) -> None:
        """Raise ValueError if a number is out of its bounds, or contradicts another."""
        for name, (low, high) in _BOUNDS.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} of a segment's state must be between {low} and {high}")
        steps = (
            ("offset_index_bytes", OFFSET_ENTRY),
            ("time_index_bytes", TIME_ENTRY),
            ("txn_index_bytes", TXN_ENTRY),
        )
        if any(getattr(self, name) % entry.itemsize for name, entry in steps):
            raise ValueError("an index in a segment's state ends inside an entry")
        if not self.base_offset <= self.flushed_offset <= self.next_offset <= self.base_offset + MAX_INT + 1:
            raise ValueError("the offsets of a segment's state are out of order")
        if not self.flushed_position <= self.position or (self.position == 0) != (self.batches == 0):
            raise ValueError("the positions of a segment's state contradict each other")
        if self.offset_of_max_timestamp >= self.next_offset or self.first_unstable_offset >= self.next_offset:
            raise ValueError("an offset in a segment's state lies behind its end")

    @property
    def has_transactions(self) -> bool:
        """Whether a batch is of a transaction, or ends one."""
        return bool(self.producer_bits & TRANSACTIONS)

    @property
    def codec_names(self) -> set[str]:
        """The codecs of the batches that have records; UNKNOWN_CODEC for those that Kafka does not have."""
        names = {name for codec, name in enumerate(CODEC_NAMES) if self.codecs >> codec & 1}
        return names | {UNKNOWN_CODEC} if self.codecs >> len(CODEC_NAMES) else names

    def segment_info(self, partition: int) -> SegmentInfo:
        """The segment as the commit that seals it describes it."""
        return SegmentInfo(
            partition=partition,
            stem=self.stem,
            base_offset=self.base_offset,
            next_offset=self.next_offset,
            stored_base_offset=self.base_offset,
            record_count=self.record_count,
            log_bytes=self.position,
            offset_index_bytes=self.offset_index_bytes,
            time_index_bytes=self.time_index_bytes,
            txn_index_bytes=self.txn_index_bytes,
            first_timestamp=self.first_timestamp,
            max_timestamp=self.max_timestamp,
            offset_of_max_timestamp=self.offset_of_max_timestamp,
            compression=",".join(sorted(self.codec_names - {UNKNOWN_CODEC})) or CODEC_NAMES[0],
            leader_epoch=self.leader_epoch,
            has_transactions=self.has_transactions,
            has_producers=bool(self.producer_bits & PRODUCERS),
            created_ms=self.created_ms,
            crc32c=self.crc32c,
            min_timestamp=self.min_timestamp,
            offset_index_crc32c=self.offset_index_crc32c,
            time_index_crc32c=self.time_index_crc32c,
            txn_index_crc32c=self.txn_index_crc32c,
            first_batch_crc=self.first_batch_crc,
            last_batch_crc=self.last_batch_crc,
            first_unstable_offset=self.first_unstable_offset,
        )

    def tail_info(self, partition: int) -> SegmentInfo:
        """The segment as readers see it before its seal: its files are longer, or get longer, than this says."""
        return dataclasses.replace(self.segment_info(partition), is_active=True)


NAMES = tuple(spec.name for spec in dataclasses.fields(SegmentState))[1:]
_BOUNDS = {spec.name: spec.metadata["bounds"] for spec in dataclasses.fields(SegmentState)[1:]}
_PACKED = struct.Struct(f"={_STEM_BYTES}s{len(NAMES)}q")
#: The size of a state as bytes.
STATE_BYTES = _PACKED.size
_POSITION = struct.Struct("=q")
_POSITION_AT = _STEM_BYTES + _POSITION.size * NAMES.index("position")


def pack_state(stem: str, numbers: Numbers) -> bytes:
    """The same bytes as `SegmentState.pack`, made from the stem and the numbers."""
    return stem.encode("ascii").ljust(_STEM_BYTES, b"\0") + numbers.tobytes()


def packed_position(packed: bytes) -> int:
    """The log bytes that a packed state counts; 0 for zeros."""
    position: int = _POSITION.unpack_from(packed, _POSITION_AT)[0]
    return position


def places(names: Iterable[str]) -> tuple[int, ...]:
    """The places of the numbers with these names."""
    return tuple(NAMES.index(name) for name in names)


def emptied(stem: str, numbers: Numbers) -> Numbers:
    """The numbers that the segment `stem` had before its first batch."""
    return SegmentState.new(stem, *numbers[list(_KEPT)].tolist()).numbers()


_KEPT = places(("base_offset", "created_ms", "first_unstable_offset"))
