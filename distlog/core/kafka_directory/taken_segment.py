"""Describes a segment that a broker wrote, from the headers of its batches; checks its indexes, or makes them anew.

The headers tell all that a commit needs, also the checksum of the whole file: they hold the checksum of each batch,
and these can be joined. So a log is not read, except where a broker would read it too, after a crash.

A log whose offsets are further apart than an index can tell becomes several segments: a broker splits it when it
loads it (KAFKA-6264; `LocalLog.splitOverflowedSegment`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from distlog.core.arrow_arrays import numbers_of
from distlog.core.batches.record_batch import CONTROL
from distlog.core.batches.record_decoder import decode, decode_parts
from distlog.core.batches.record_sections import AskedBatches
from distlog.core.batches.source import Source
from distlog.core.buffers import byte_array
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.config import MAX_INT, MAX_LONG
from distlog.core.errors import CorruptIndexError, CorruptRecordError
from distlog.core.indexes.transaction_index import AbortedTransaction
from distlog.core.kafka_directory.log_walk import Batches, LogWalk
from distlog.core.kafka_directory.partition_folder import PartitionFolder
from distlog.core.kafka_directory.source_log import SourceLog
from distlog.core.maintenance.integrity.index_check import IndexCheck
from distlog.core.maintenance.integrity.index_files import CHECKS
from distlog.core.maintenance.integrity.transaction_rebuild import complete_index
from distlog.core.segments.index_facts import index_facts
from distlog.core.segments.log_description import LogDescription
from distlog.core.segments.record_facts import RecordFacts
from distlog.core.segments.state_fold import UnfitBatchError
from distlog.core.storage.part import Part
from distlog.core.times import NO_TIMESTAMP
from distlog.core.transactions.open_transactions import OpenTransactions
from distlog.core.transactions.producer_states import ProducerStates

_PART_BYTES = 4 << 20
_INDEXES = (".index", ".timeindex", ".txnindex")


class TakenSegment(NamedTuple):
    """A segment to be committed.

    `files` has by suffix the name of a broker's file that is right as it is, or the content of a file that was
    missing or wrong. Of the file of the log, the bytes from `position` to `end` count. `damage` says why they end
    there, if neither the file does nor another segment follows in it. `remade` are the suffixes of the indexes that
    were made anew.
    """

    info: SegmentInfo
    files: Mapping[str, str | bytes]
    position: int
    damage: CorruptRecordError | None
    remade: tuple[str, ...]

    @property
    def end(self) -> int:
        """Where its log ends in the file."""
        return self.position + self.info.log_bytes


class LogState(NamedTuple):
    """What the batches of a partition leave behind for the next ones: open transactions, and its producers."""

    transactions: OpenTransactions
    producers: ProducerStates


def take_segments(
    folder: PartitionFolder, base_offset: int, end: int | None, state: LogState, interval_bytes: int, *, checked: bool
) -> Iterator[TakenSegment]:
    """Describe the segment of `folder` that begins at `base_offset`, and ends at `end`, or with its last batch.

    It is several if its offsets are too far apart for one. `state` is that of the log before it, and goes on to that
    behind it. With `checked` every checksum is compared. Raises CorruptRecordError for a batch with a codec that
    Kafka does not have.
    """
    names: Mapping[str, str] = folder.loaded.segments[base_offset]
    file, position = names[".log"], 0
    begin: int | None = base_offset
    while begin is not None:
        look = _Look(folder, names, begin, end, folder.size(file), interval_bytes, state)
        log = folder.log(file) if checked else folder.headers(file, look.indexes[".index"])
        walk = LogWalk(log, checked=checked, file=folder.path(file), start=position)
        for found in walk:
            look.take(walk, found)
        yield look.finish(walk, position)
        # the broker's indexes are those of the first part
        names, position, begin = {".log": file}, walk.end, look.beyond


@dataclass(slots=True)
class _Look:
    """One segment while its batches are passed."""

    folder: PartitionFolder
    names: Mapping[str, str]
    base_offset: int
    end: int | None
    size: int
    interval_bytes: int
    state: LogState
    log: LogDescription = field(init=False)
    indexes: dict[str, bytes] = field(init=False)
    checks: dict[str, IndexCheck] = field(init=False)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    newest_timestamp: int = NO_TIMESTAMP
    newest: tuple[memoryview, Any] | None = None
    has_old_formats: bool = False
    #: The base offset of the batch with which the next segment begins in the same log.
    beyond: int | None = None

    def __post_init__(self) -> None:
        self.log = LogDescription(self.base_offset, interval_bytes=self.interval_bytes)
        self.indexes = {suffix: self._index(suffix) for suffix in _INDEXES}
        self.checks = self._checks()

    def _checks(self) -> dict[str, IndexCheck]:
        """The checks of the index files that have entries which a log can have."""
        description, _ = LogDescription(self.base_offset).describe(self.folder.name.partition, self._stem(), 0)
        last = self.base_offset + MAX_INT + 1 if self.end is None else self.end
        bounds = dataclasses.replace(description, next_offset=last, log_bytes=self.size)
        checks = dict[str, IndexCheck]()
        for suffix in _INDEXES:
            with suppress(CorruptIndexError):
                data = self.indexes[suffix]
                part = Part.file(self.names.get(suffix, ""), len(data))
                checks[suffix] = CHECKS[suffix](part, bounds, data)
        return checks

    def _stem(self) -> str:
        return f"{self.base_offset:020d}"

    def _index(self, suffix: str) -> bytes:
        return self.folder.read(self.names[suffix]) if suffix in self.names else b""

    def take(self, walk: LogWalk, found: Batches) -> None:
        """Pass the next batches; ends the walk before one that cannot follow those before it."""
        try:
            self.log.add(found.data, found.rows)
        except UnfitBatchError as error:
            self.beyond = self._beyond(found, error.row)
            reason = f"a record batch cannot follow those before it: {error}" if self.beyond is None else None
            found = walk.stop(found, error.row, reason)
            if not len(found.rows):
                return
            self.log.add(found.data, found.rows)
        # a batch that was emptied by a cleaner hides nothing, and opens nothing
        filled = found.rows[found.rows["record_count"] > 0]
        self.aborted += self.state.transactions.see(found.data, filled)
        self.state.producers.see(found.data, found.rows)
        for check in self.checks.values():
            check.add(found.rows, found.position)
        self._find_newest(found)
        self.has_old_formats |= bool((found.rows["magic"] < 2).any())

    def _beyond(self, found: Batches, row: int) -> int | None:
        """The base offset of a batch that was refused, if only the indexes of this segment cannot tell it."""
        rows = found.rows[row - 1 : row + 1] if row else found.rows[:1]
        bases, ends = rows["base_offset"].tolist(), (rows["base_offset"] + rows["last_offset_delta"] + 1).tolist()
        is_next = bases[-1] >= (ends[0] if row else self.log.next_offset)
        return bases[-1] if is_next and ends[-1] - self.base_offset > MAX_INT + 1 else None

    def _find_newest(self, found: Batches) -> None:
        row = int(found.rows["max_timestamp"].argmax())
        if found.rows["max_timestamp"][row] > self.newest_timestamp:
            self.newest_timestamp = int(found.rows["max_timestamp"][row])
            self.newest = found.data, found.rows[row : row + 1].copy()

    def finish(self, walk: LogWalk, position: int) -> TakenSegment:
        """The segment, from byte `position` of the file up to where the walk ended."""
        created_ms = self.folder.modified_ms(self.names[".log"])
        partition = self.folder.name.partition
        info, made = self.log.describe(partition, self._stem(), created_ms)
        files, remade = self._files(made)
        kept = {suffix: self.indexes[suffix] if isinstance(file, str) else file for suffix, file in files.items()}
        facts: dict[str, Any] = {
            **self._record_facts(position),
            **index_facts({suffix: kept.get(suffix, b"") for suffix in _INDEXES}),
            "first_unstable_offset": self.state.transactions.first_offset,
        }
        end = self.end if self.beyond is None else self.beyond
        if walk.damage is None and end is not None:
            facts["next_offset"] = max(end, info.next_offset)
        info = dataclasses.replace(info, **facts)
        return TakenSegment(info, {".log": self.names[".log"], **files}, position, walk.damage, remade)

    def _files(self, made: Mapping[str, bytes]) -> tuple[dict[str, str | bytes], tuple[str, ...]]:
        """The index files that have entries, and the suffixes of those that the broker's do not serve for."""
        present = self.indexes
        sound = {suffix for suffix, check in self.checks.items() if check.mismatch() is None}
        transactions = complete_index(present[".txnindex"] if ".txnindex" in sound else b"", self.aborted)
        files, remade = dict[str, str | bytes](), []
        for suffix, data in {**made, ".txnindex": transactions}.items():
            exact = suffix == ".txnindex"
            if suffix in sound and (present[suffix] == data if exact else present[suffix] or not data):
                files |= {suffix: self.names[suffix]} if present[suffix] else {}
            else:
                files |= {suffix: data} if data else {}
                remade.append(suffix)
        return files, tuple(remade)

    def _record_facts(self, position: int) -> dict[str, Any]:
        if self.has_old_formats:
            file = self.names[".log"]
            return _counted(self.folder.log(file), position, position + self.log.size, file)
        return {"offset_of_max_timestamp": _first_newest(*self.newest)} if self.newest else {}


def _first_newest(data: memoryview, batch: Any) -> int:
    """The offset of the first record with the largest timestamp of its batch; -1 if the batch shows no record."""
    if batch["attributes"][0] & CONTROL:
        return -1
    records = decode(data, batch, columns=("offset", "timestamp"))
    timestamps = numbers_of(records.column(1).cast("int64"))
    found = np.flatnonzero(timestamps == batch["max_timestamp"][0])
    return int(records.column(0)[int(found[0])].as_py()) if len(found) else -1


def _counted(log: SourceLog, start: int, end: int, file: str) -> dict[str, Any]:
    """What the records themselves say, where the headers of old formats do not."""
    facts = RecordFacts()
    for found in LogWalk(log, checked=False, file=file, start=start, size=end):
        source = Source(file, found.position)
        asked = AskedBatches(byte_array(found.data), found.rows, 0, 0, 0, MAX_LONG, source)
        for records in decode_parts(asked, ("offset", "timestamp"), _PART_BYTES):
            facts.add(records)
    return facts.fields()
