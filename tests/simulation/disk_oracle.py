"""Records the promises to a topic on a local disk, and reports broken ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import Random

import pyarrow as pa

import distlog
from simulation.local_disk import LocalDisk
from simulation.oracle import ID_HEADER, Batch, NewRecord, Oracle, id_of, rows_of
from simulation.record_log import Row, rows_by_offset
from simulation.world import BEGIN_MS

Location = tuple[int, int]
#: The value of the last records.
THE_END = b"the end"


@dataclass(eq=False)
class Record(Batch):
    """One record that is appended directly; `location` is its acknowledged partition and offset.

    `losses` counts the losses of power and of pages before its append, `known_losses` before its acknowledgement.
    """

    losses: int = 0
    location: Location | None = None
    #: Whether it must survive a power loss.
    is_durable: bool = False
    known_losses: int = 0
    is_lost: bool = False
    made_s: float = 0.0


@dataclass
class DiskOracle(Oracle):
    """The promises to one topic on a local disk; `store` is the disk."""

    #: Draws times, headers, and records without a value.
    more: Random | None = None
    #: The highest value of `flush.messages` so far.
    flush_messages: int = 1
    #: Whether somebody lowers `internal.segment.bytes` during appends.
    shrinks_segments: bool = False
    #: Whether records keep their own times; settings that records outlive for this time, in s.
    keeps_times: bool = True
    tombstones_s: float = 0.0
    retention_s: float | None = None
    #: By location: acknowledged records, and records that survived a power loss.
    records: dict[Location, Record] = field(default_factory=dict)
    solid: dict[Location, Row] = field(default_factory=dict)
    #: Rows that readers got, with the number of losses before.
    rows_read: dict[Location, tuple[Row, int]] = field(default_factory=dict)
    #: Values after the log end that a page had after a failed sync, with the number of power losses then.
    cut: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    #: The power losses until the last audit.
    audited: int = 0

    def __post_init__(self) -> None:
        """Do nothing: a disk does not report its changes."""

    @property
    def disk(self) -> LocalDisk:
        return self.store  # type: ignore[return-value]

    @property
    def topic_id(self) -> str:
        return ""

    @property
    def losses(self) -> int:
        """How often unsynced data may have been lost."""
        return self.disk.losses

    def new_record(self, random: Random, number: int, key: bytes | None, sender: str, now_ms: int) -> Record:
        """Return a new record for a direct append, perhaps with a time, with headers or without a value."""
        id_ = b"%d" % number + b"." * random.choice((0, 0, 10, 300, 1500))
        new_record, more = NewRecord(now_ms, key, id_, ()), self.more
        if more and more.random() < 0.1:
            new_record = new_record._replace(timestamp=now_ms - more.choice((1, 1000, 7_200_000)))
        if more and key is not None and more.random() < 0.2:
            new_record = new_record._replace(value=None, headers=((ID_HEADER, id_),))
        elif more and more.random() < 0.1:
            new_record = new_record._replace(headers=(("h", b"%d" % more.randrange(3)), ("h", None)))
        record = Record([id_], [key], atomic=False, sender=sender, records=[new_record], losses=self.losses)
        record.made_s = self.world.now
        self.batches.append(record)
        return record

    def acknowledges(self, record: Record, partition: int, offset: int) -> None:
        previous = self.records.get((partition, offset))
        if previous is not None and not self._may_be_lost(previous):
            self.says(f"offset {offset} of partition {partition} belongs to {named(previous)} and {named(record)}")
        record.acknowledged, record.location, record.known_losses = True, (partition, offset), self.losses
        record.is_durable = self.flush_messages == 1
        self.records[partition, offset] = record

    def _may_be_lost(self, record: Record) -> bool:
        return not record.is_durable and self.losses > record.losses

    def observes(self, topic: distlog.Topic, head: int) -> None:
        """Do nothing: the oracle of a disk has no commits."""

    def read(self, topic_id: str, rows: pa.RecordBatch | pa.Table) -> None:
        for location, row in rows_by_offset(rows).items():
            self.note_read(location, row)

    def check_committed(self, topic_id: str, group: str, positions: Mapping[int, int]) -> None:
        """Do nothing: the oracle of a disk does not read group files."""

    def is_live(self, topic_id: str) -> bool:
        """Whether the topic exists: nobody drops it."""
        return True

    def note_read(self, location: Location, row: Row) -> None:
        """Note a record that a reader got: no other one has its offset, unless it was lost."""
        if self.disk.refusals:
            return
        previous, losses = self.rows_read.setdefault(location, (row, self.losses))
        if previous != row and losses == self.losses:
            self.says(f"offset {location[1]} of partition {location[0]} had {previous} before, and has {row}")
        self.rows_read[location] = row, self.losses

    def note_cut(self, partition: int, end: int) -> None:
        """Note the log end in a page after a failed sync: readers get no records after it."""
        for (number, offset), record in self.records.items():
            if number == partition and offset >= end:
                self.cut[number, offset] = record.values[0], self.disk.power_losses

    def current_cut(self) -> Mapping[Location, bytes]:
        """Return the records that a new reader must not get; after a power loss the device may have them."""
        now = self.disk.power_losses
        return {location: value for location, (value, losses) in self.cut.items() if losses == now}

    def check_cut(self, cut: Mapping[Location, bytes], rows: Mapping[Location, bytes]) -> None:
        """Check the rows of a reader that started after this cut."""
        for location, value in cut.items():
            if rows.get(location) == value:
                self.says(f"{value[:8]!r} at {location} was not synced, and is read after the sync failed")

    # --- audits

    def audit(self, topic: distlog.Topic, *, after_loss: bool = False) -> None:
        """Compare the topic's records with the promises; `after_loss` means that all are durable."""
        rows = rows_of(topic)
        ids = {location: id_of(row.value, row.headers) for location, row in rows.items()}
        starts, last = topic.start_offsets(), dict[int, int]()
        locations, newest = dict[bytes, list[Location]](), dict[tuple[int, bytes | None], int]()
        for (partition, offset), id_ in ids.items():
            expected = last.get(partition, starts[partition] - 1) + 1
            if offset != expected and not self.is_compacted and self.has_no_markers:
                self.says(f"offsets {expected} to {offset} of partition {partition} are missing")
            last[partition] = offset
            locations.setdefault(id_, []).append((partition, offset))
            newest[partition, rows[partition, offset].key] = offset
        self._audit_contents(rows, ids)
        for location, row in self.solid.items():
            if rows.get(location) != row and not self._is_gone(
                location, row.key, newest, starts, self.records.get(location)
            ):
                self.says(f"{row} was durable at offset {location[1]} of partition {location[0]}, and is missing")
        lost_records = defaultdict[int, list[Record]](list)
        for batch in self.batches:
            found_locations = [locations.get(value, []) for value in batch.values]
            self._audit_batch(batch, found_locations)
            if isinstance(batch, Record):
                self._audit_record(batch, found_locations[0], newest, starts, lost_records)
            elif batch.acknowledged:
                for value, key, copies in zip(batch.values, batch.keys, found_locations, strict=True):
                    if not copies and not self._may_lack(batch, key, newest, starts):
                        self.says(f"record {value!r} was acknowledged, and is missing")
        self._audit_order(locations, topic.snapshot.topic_id)
        self._audit_lost(lost_records, ids)
        if after_loss:
            self.solid.update(rows)
            ends = topic.end_offsets()
            for (partition, offset), record in self.records.items():
                # a log that ends before a record has lost it, even if compaction may remove it
                record.is_durable |= offset < ends[partition] and not record.is_lost
        self.audited = self.disk.power_losses

    def _audit_contents(self, rows: Mapping[Location, Row], ids: Mapping[Location, bytes]) -> None:
        appended = {record.id: record for batch in self.batches for record in batch.records}
        for location, row in rows.items():
            record = appended.get(ids[location])
            if record is None:
                if row.value != THE_END:
                    self.says(f"nobody appended {row}, which is at offset {location[1]} of partition {location[0]}")
            elif record.differs_from(row, by_append=not self.keeps_times):
                self.says(f"{record} was appended, and {row} is at offset {location[1]} of partition {location[0]}")

    def check_rows_read(self, rows: Mapping[Location, Row]) -> None:
        """Check that the records of a reader are as they were appended."""
        self._audit_contents(rows, {location: id_of(row.value, row.headers) for location, row in rows.items()})

    #: Whether offsets have no holes from end markers of transactions.
    has_no_markers = True

    def _audit_batch(self, batch: Batch, locations: Sequence[Sequence[Location]]) -> None:
        for value, copies in zip(batch.values, locations, strict=True):
            if len(copies) > 1:
                self.says(f"record {value[:8]!r} is there {len(copies)} times, at {list(copies)}")
            if copies and batch.refused:
                self.says(f"record {value[:8]!r} is there, although its append was refused")
        if batch.offsets is not None:
            self._audit_offsets(batch, locations)
        if batch.atomic and any(locations) and not all(locations) and not (self.is_compacted or self.has_retention):
            self.says(f"only a part of the batch of {batch.values[0]!r} is there")

    def _audit_offsets(self, batch: Batch, locations: Iterable[Sequence[Location]]) -> None:
        spans = batch.offsets or {}
        for partition, offset in chain.from_iterable(locations):
            first, end = spans.get(partition, (0, 0))
            if not first <= offset < end:
                self.says(f"a record is at offset {offset} of partition {partition}, not as reported")

    def _audit_record(
        self,
        record: Record,
        locations: Sequence[Location],
        newest: Mapping[tuple[int, bytes | None], int],
        starts: Mapping[int, int],
        lost_records: dict[int, list[Record]],
    ) -> None:
        location = record.location
        if location is None:
            return
        if locations and record.is_lost:
            self.says(f"{named(record)} was lost, and is there again")
        if locations and location not in locations:
            self.says(f"{named(record)} is at {locations[0]}, not as reported")
        if locations or record.is_lost or self._is_gone(location, record.keys[0], newest, starts, record):
            return
        if not self._may_be_lost(record):
            self.says(f"{named(record)} was acknowledged, and is missing")
        record.is_lost = True
        lost_records[location[0]].append(record)

    def _audit_lost(self, lost_records: Mapping[int, Sequence[Record]], rows: Mapping[Location, bytes]) -> None:
        """Lost records must be the end of a log, and no more than a policy allows."""
        for partition, records in lost_records.items():
            for record in self.records.values():
                if (
                    record.location is None
                    or record.location[0] != partition
                    or rows.get(record.location) not in record.values
                ):
                    continue
                for missing in records:
                    if missing.location < record.location and record.known_losses <= missing.losses:  # type: ignore[operator]
                        self.says(f"{named(record)} is there, and {named(missing)}, before it, is lost")
            most = (self.flush_messages - 1) * (self.disk.power_losses - self.audited)
            if not self.disk.refusals and len(records) > most:
                self.says(f"{len(records)} records of partition {partition} are lost, and {most} may be")

    def _may_lack(
        self,
        batch: Batch,
        key: bytes | None,
        newest: Mapping[tuple[int, bytes | None], int],
        starts: Mapping[int, int],
    ) -> bool:
        spans = batch.offsets or {}
        if self.is_compacted and (key in self._deleted() or any((partition, key) in newest for partition in starts)):
            return True
        if not spans:
            return self.has_retention and any(starts.values())
        return self.has_retention and any(first < starts[partition] for partition, (first, _) in spans.items())

    def _is_gone(
        self,
        location: Location,
        key: bytes | None,
        newest: Mapping[tuple[int, bytes | None], int],
        starts: Mapping[int, int],
        record: Record | None,
    ) -> bool:
        """Whether retention or compaction may have removed the record at a location."""
        partition, offset = location
        if self.has_retention and offset < starts[partition]:
            return record is None or not self._is_kept(record)
        if not self.is_compacted:
            return False
        return record is None or newest.get((partition, key), -1) > offset or key in self._deleted()

    def _is_kept(self, record: Record) -> bool:
        """Whether retention must keep a record: it goes by time alone, and the clock was right."""
        if self.retention_s is None or self.disk.power_losses:
            return False
        time_ms = record.records[0].timestamp if self.keeps_times else None
        made_s = record.made_s if time_ms is None else (time_ms - BEGIN_MS) / 1000
        return self.world.now - made_s < self.retention_s

    def _deleted(self) -> set[bytes | None]:
        """Return the keys whose tombstones compaction may have removed; the clocks of their times may jump."""
        latest_s = self.world.now - (0 if self.disk.power_losses else self.tombstones_s)
        return {
            record.key
            for batch in self.batches
            for record in batch.records
            if record.value is None and (not isinstance(batch, Record) or batch.made_s <= latest_s)
        }


def named(record: Record) -> str:
    return f"{record.values[0][:8]!r} at {record.location}"
