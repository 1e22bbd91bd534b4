"""Compares stored index files with their log, batch by batch.

An entry is right if a reader finds by it what it looks for. In distlog's own files it is what the writing rule gives,
for any `index.interval.bytes`. A broker also makes one entry for several batches that were appended together. Old
brokers name the record that has the timestamp, not the end of its batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.batches.record_batch import CONTROL
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptIndexError
from distlog.core.indexes import offset_index, time_index, transaction_index
from distlog.core.storage.part import Part
from distlog.core.times import NO_TIMESTAMP

Longs = npt.NDArray[np.int64]


class IndexCheck(ABC):
    """The check of one index of `segment`; `data` is its content, `part` says where it is, for errors.

    Raises CorruptIndexError for entries that no log can have. All offsets here are stored ones.
    """

    SUFFIX: ClassVar[str]
    ENTRY: ClassVar[np.dtype[np.void]]

    def __init__(self, part: Part, segment: SegmentInfo, data: bytes) -> None:
        self._part, self._segment = part, segment
        self._exact = paths.stem_read_version(segment.stem) is not None
        if len(data) % self.ENTRY.itemsize:
            raise self._error(f"the length of the file is not a multiple of {self.ENTRY.itemsize}", len(data))
        self._entries = np.frombuffer(data, self.ENTRY)
        self._next = 0
        self._mismatch: CorruptIndexError | None = None
        self._keys = self._checked_keys()

    @abstractmethod
    def _checked_keys(self) -> Longs:
        """The keys that place the entries in the log, ascending. Raises CorruptIndexError if they cannot be right."""

    @abstractmethod
    def _fit(self, batches: npt.NDArray[Any], position: int, entries: slice) -> npt.NDArray[np.bool_]:
        """Which of `entries` are right; all of them are placed within `batches`."""

    @abstractmethod
    def _end(self, batches: npt.NDArray[Any], position: int) -> int:
        """The key right behind all entries of `batches`."""

    def add(self, batches: npt.NDArray[Any], position: int) -> None:
        """Compare with the next batches of the log, at least one; the first is at byte `position` of the log file."""
        end = int(np.searchsorted(self._keys, self._end(batches, position)))
        entries = slice(self._next, end)
        wrong = np.flatnonzero(~self._fit(batches, position, entries))
        if len(wrong) and self._mismatch is None:
            self._mismatch = self._wrong_entry("does not fit its log", self._next + int(wrong[0]))
        self._next = end

    def mismatch(self) -> CorruptIndexError | None:
        """The first entry that does not fit, or None; call it after the last batch."""
        if self._mismatch is None and self._next < len(self._keys):
            return self._wrong_entry("is behind the end of its log", self._next)
        return self._mismatch

    def _field(self, name: str) -> Longs:
        return self._entries[name].astype(np.int64)

    def _check(self, values: Longs, step: int, largest: int) -> None:
        """Raise CorruptIndexError unless `values`, one per entry, are 0 to `largest`, ascending by `step` or more."""
        bad = (values < 0) | (values > largest)
        bad[1:] |= np.diff(values) < step
        if bad.any():
            raise self._wrong_entry("is out of order or range", int(bad.argmax()))

    def _wrong_entry(self, what: str, slot: int) -> CorruptIndexError:
        return self._error(f"entry {slot} of the index {what}", slot * self.ENTRY.itemsize)

    def _error(self, message: str, position: int) -> CorruptIndexError:
        message, place = f"{message}: rebuild the index", self._part.begin + position
        return CorruptIndexError(message, file=self._part.name, position=place, partition=self._segment.partition)

    @property
    def _base(self) -> int:
        return self._segment.stored_base_offset

    @property
    def _last(self) -> int:
        """The segment's last offset, relative to its base offset."""
        return self._segment.next_offset - self._segment.base_offset - 1


class OffsetIndexCheck(IndexCheck):
    """Checks an offset index: each entry names the last offset of a batch and the position where the batch starts."""

    SUFFIX, ENTRY = ".index", offset_index.ENTRY

    def _checked_keys(self) -> Longs:
        self._offsets = self._field("relative_offset")
        self._check(self._offsets, 1, self._last)
        self._check(self._field("position"), 1, self._segment.log_bytes - 1)
        return self._field("position")

    def _end(self, batches: npt.NDArray[Any], position: int) -> int:
        return position + int(batches["position"][-1] + batches["size"][-1] - batches["position"][0])

    def _fit(self, batches: npt.NDArray[Any], position: int, entries: slice) -> npt.NDArray[np.bool_]:
        starts = batches["position"] + (position - batches["position"][0])
        rows = np.searchsorted(starts, self._keys[entries], side="right") - 1
        firsts = batches["base_offset"][rows] - self._base
        lasts = firsts + batches["last_offset_delta"][rows]
        offsets = self._offsets[entries]
        if self._exact:
            right = lasts == offsets
        else:
            before = np.concatenate([[-1], self._offsets])[entries]
            right = (firsts > before) & (lasts <= offsets)
        return np.asarray(right & (starts[rows] == self._keys[entries]))


class TimeIndexCheck(IndexCheck):
    """Checks a time index: each entry names a batch with a larger timestamp than all before it.

    The last entry names the batch with the largest timestamp.
    """

    SUFFIX, ENTRY = ".timeindex", time_index.ENTRY

    def _checked_keys(self) -> Longs:
        self._newest = NO_TIMESTAMP
        self._timestamps = self._field("timestamp")
        self._check(self._timestamps, 1, MAX_LONG)
        self._check(self._field("relative_offset"), 0, self._last)
        return self._field("relative_offset")

    def _end(self, batches: npt.NDArray[Any], position: int) -> int:
        return int(batches["base_offset"][-1] + batches["last_offset_delta"][-1]) + 1 - self._base

    def _fit(self, batches: npt.NDArray[Any], position: int, entries: slice) -> npt.NDArray[np.bool_]:
        firsts = batches["base_offset"] - self._base
        lasts = firsts + batches["last_offset_delta"]
        newest = np.maximum.accumulate(np.concatenate([[self._newest], batches["max_timestamp"]]))
        rows = np.minimum(np.searchsorted(lasts, self._keys[entries]), len(batches) - 1)
        timestamps, offsets = self._timestamps[entries], self._keys[entries]
        self._newest = int(newest[-1])
        named = lasts[rows] == offsets if self._exact else firsts[rows] <= offsets
        return np.asarray(named & (batches["max_timestamp"][rows] == timestamps) & (newest[rows] < timestamps))

    def mismatch(self) -> CorruptIndexError | None:
        """What does not fit, or None; call it after the last batch."""
        last = int(self._timestamps[-1]) if len(self._timestamps) else NO_TIMESTAMP
        wrong = super().mismatch()
        if wrong is None and self._exact and last != self._newest:
            return self._error("the index does not end with the largest timestamp", self._entries.nbytes)
        return wrong


class TransactionIndexCheck(IndexCheck):
    """Checks a transaction index: each entry names the control batch that ended its transaction."""

    SUFFIX, ENTRY = ".txnindex", transaction_index.ENTRY

    def _checked_keys(self) -> Longs:
        bad = self._entries["version"] != transaction_index.VERSION
        # a transaction may begin before its segment; in a relocated segment its first offset is then below 0
        bad |= self._entries["first_offset"] < -max(self._segment.shift, 0)
        bad |= self._entries["first_offset"] > self._entries["last_offset"]
        if bad.any():
            raise self._wrong_entry("has an unknown version, or ends before it begins", int(bad.argmax()))
        keys = self._field("last_offset") - self._base
        self._check(keys, 1, self._last)
        return keys

    def _end(self, batches: npt.NDArray[Any], position: int) -> int:
        return int(batches["base_offset"][-1] + batches["last_offset_delta"][-1]) + 1 - self._base

    def _fit(self, batches: npt.NDArray[Any], position: int, entries: slice) -> npt.NDArray[np.bool_]:
        lasts = batches["base_offset"] + batches["last_offset_delta"] - self._base
        rows = np.minimum(np.searchsorted(lasts, self._keys[entries]), len(batches) - 1)
        ended = (batches["attributes"][rows] & CONTROL != 0) & (lasts[rows] == self._keys[entries])
        producers = self._field("producer_id")[entries]
        return np.asarray(ended & (batches["producer_id"][rows] == producers))
