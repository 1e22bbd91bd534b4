"""Knows what was promised of a topic on a local disk, and says which promise was broken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import Random

import pyarrow as pa

import distlog
from simulation.local_disk import LocalDisk
from simulation.oracle import ID_HEADER, Batch, Given, Oracle, id_of, rows_of
from simulation.record_log import Row, rows_by_offset
from simulation.world import BEGIN_MS

Place = tuple[int, int]
#: The value of the records that are appended when all is over.
THE_END = b"the end"


@dataclass(eq=False)
class Record(Batch):
    """One record that is appended in place: `place` is what was acknowledged, `is_durable` says for how long.

    `losses` counts the losses of power and of pages before it was made, `known_losses` those before it was
    acknowledged.
    """

    losses: int = 0
    place: Place | None = None
    is_durable: bool = False
    known_losses: int = 0
    is_lost: bool = False
    made_s: float = 0.0


@dataclass
class DiskOracle(Oracle):
    """What was promised, for one topic on a local disk; `store` is the disk."""

    #: Draws times, headers, and records without a value, if there are such.
    more: Random | None = None
    #: The most of the values of `flush.messages` that the topic has had.
    flush_messages: int = 1
    #: Whether somebody lowers `internal.segment.bytes` while others append.
    shrinks_segments: bool = False
    #: Whether records keep their own times, and settings that records outlive for so long, in s.
    keeps_times: bool = True
    tombstones_s: float = 0.0
    retention_s: float | None = None
    #: By partition and offset: acknowledged records, and those that outlived a power loss.
    records: dict[Place, Record] = field(default_factory=dict)
    solid: dict[Place, Row] = field(default_factory=dict)
    #: What readers saw, with the count of losses before.
    seen: dict[Place, tuple[Row, int]] = field(default_factory=dict)
    #: What lies behind the ends that pages told when a sync had failed, with the count of power losses then.
    cut: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    #: The losses of power up to the last audit.
    audited: int = 0

    def __post_init__(self) -> None:
        """A disk tells nothing of changes."""

    @property
    def disk(self) -> LocalDisk:
        """The disk."""
        return self.store  # type: ignore[return-value]

    @property
    def topic_id(self) -> str:
        """What commits say is not looked at."""
        return ""

    @property
    def losses(self) -> int:
        """How often something that was not synced may have been lost."""
        return self.disk.losses

    def new_record(self, random: Random, number: int, key: bytes | None, sender: str, now_ms: int) -> Record:
        """A record that somebody is about to append in place: with a time, headers or no value, as is drawn."""
        id_ = b"%d" % number + b"." * random.choice((0, 0, 10, 300, 1500))
        given, more = Given(now_ms, key, id_, ()), self.more
        if more and more.random() < 0.1:
            given = given._replace(timestamp=now_ms - more.choice((1, 1000, 7_200_000)))
        if more and key is not None and more.random() < 0.2:
            given = given._replace(value=None, headers=((ID_HEADER, id_),))
        elif more and more.random() < 0.1:
            given = given._replace(headers=(("h", b"%d" % more.randrange(3)), ("h", None)))
        record = Record([id_], [key], atomic=False, sender=sender, records=[given], losses=self.losses)
        record.made_s = self.world.now
        self.batches.append(record)
        return record

    def acknowledges(self, record: Record, partition: int, offset: int) -> None:
        """A record was acknowledged with its offset."""
        before = self.records.get((partition, offset))
        if before is not None and not self._may_be_lost(before):
            self.says(f"offset {offset} of partition {partition} was given to {named(before)} and {named(record)}")
        record.acknowledged, record.place, record.known_losses = True, (partition, offset), self.losses
        record.is_durable = self.flush_messages == 1
        self.records[partition, offset] = record

    def _may_be_lost(self, record: Record) -> bool:
        return not record.is_durable and self.losses > record.losses

    def observes(self, topic: distlog.Topic, head: int) -> None:
        """A disk tells nothing of commits."""

    def read(self, topic_id: str, rows: pa.RecordBatch | pa.Table) -> None:
        """A reader got these records."""
        for place, row in rows_by_offset(rows).items():
            self.saw(place, row)

    def check_committed(self, topic_id: str, group: str, positions: Mapping[int, int]) -> None:
        """What the files of a group say is not looked at."""

    def is_live(self, topic_id: str) -> bool:
        """Nobody drops the topic."""
        return True

    def saw(self, place: Place, row: Row) -> None:
        """A reader got a record: nobody gets another one at its offset, unless it was lost."""
        if self.disk.refusals:
            return
        before, losses = self.seen.setdefault(place, (row, self.losses))
        if before != row and losses == self.losses:
            self.says(f"offset {place[1]} of partition {place[0]} had {before} before, and has {row}")
        self.seen[place] = row, self.losses

    def hears_of_cut(self, partition: int, end: int) -> None:
        """A page says that a sync failed, and where the log ends therefore: readers see no more of the rest."""
        for (number, offset), record in self.records.items():
            if number == partition and offset >= end:
                self.cut[number, offset] = record.values[0], self.disk.power_losses

    def known_cut(self) -> Mapping[Place, bytes]:
        """What no reader sees that begins now; after a power loss the page is gone, and the device may have it."""
        now = self.disk.power_losses
        return {place: value for place, (value, losses) in self.cut.items() if losses == now}

    def saw_cut(self, cut: Mapping[Place, bytes], rows: Mapping[Place, bytes]) -> None:
        """A reader for whom this was cut when it began got these rows."""
        for place, value in cut.items():
            if rows.get(place) == value:
                self.says(f"{value[:8]!r} at {place} was not synced, and is read after that was told")

    # --- what is there

    def audit(self, topic: distlog.Topic, *, after_loss: bool = False) -> None:
        """Compare the topic's records with what was promised; `after_loss` all that is there is on the device."""
        rows = rows_of(topic)
        ids = {place: id_of(row.value, row.headers) for place, row in rows.items()}
        starts, last = topic.start_offsets(), dict[int, int]()
        places, newest = dict[bytes, list[Place]](), dict[tuple[int, bytes | None], int]()
        for (partition, offset), id_ in ids.items():
            expected = last.get(partition, starts[partition] - 1) + 1
            if offset != expected and not self.is_compacted and self.has_no_markers:
                self.says(f"offsets {expected} to {offset} of partition {partition} are missing")
            last[partition] = offset
            places.setdefault(id_, []).append((partition, offset))
            newest[partition, rows[partition, offset].key] = offset
        self._audit_contents(rows, ids)
        for place, row in self.solid.items():
            if rows.get(place) != row and not self._is_gone(place, row.key, newest, starts, self.records.get(place)):
                self.says(f"{row} was on the device at offset {place[1]} of partition {place[0]}, and is not now")
        lost = defaultdict[int, list[Record]](list)
        for batch in self.batches:
            there = [places.get(value, []) for value in batch.values]
            self._audit_batch(batch, there)
            if isinstance(batch, Record):
                self._audit_record(batch, there[0], newest, starts, lost)
            elif batch.acknowledged:
                for value, key, found in zip(batch.values, batch.keys, there, strict=True):
                    if not found and not self._may_lack(batch, key, newest, starts):
                        self.says(f"record {value!r} was acknowledged, and is not there")
        self._audit_order(places, topic.snapshot.topic_id)
        self._audit_lost(lost, ids)
        if after_loss:
            self.solid.update(rows)
            ends = topic.end_offsets()
            for (partition, offset), record in self.records.items():
                # what compaction may remove is lost as well if the log ends before it
                record.is_durable |= offset < ends[partition] and not record.is_lost
        self.audited = self.disk.power_losses

    def _audit_contents(self, rows: Mapping[Place, Row], ids: Mapping[Place, bytes]) -> None:
        """Each record is there as it was appended."""
        given = {record.id: record for batch in self.batches for record in batch.records}
        for place, row in rows.items():
            record = given.get(ids[place])
            if record is None:
                if row.value != THE_END:
                    self.says(f"nobody appended {row}, which is at offset {place[1]} of partition {place[0]}")
            elif record.differs_from(row, by_append=not self.keeps_times):
                self.says(f"{record} was appended, and {row} is at offset {place[1]} of partition {place[0]}")

    def check_known(self, rows: Mapping[Place, Row]) -> None:
        """What a reader got was appended, as it is."""
        self._audit_contents(rows, {place: id_of(row.value, row.headers) for place, row in rows.items()})

    #: Whether offsets have no holes; end markers of transactions would leave some.
    has_no_markers = True

    def _audit_batch(self, batch: Batch, there: Sequence[Sequence[Place]]) -> None:
        for value, each in zip(batch.values, there, strict=True):
            if len(each) > 1:
                self.says(f"record {value[:8]!r} is there {len(each)} times, at {list(each)}")
            if each and batch.refused:
                self.says(f"record {value[:8]!r} is there, although its append was refused")
        if batch.offsets is not None:
            self._audit_offsets(batch, there)
        if batch.atomic and any(there) and not all(there) and not (self.is_compacted or self.has_retention):
            self.says(f"only a part of the batch of {batch.values[0]!r} is there")

    def _audit_offsets(self, batch: Batch, there: Iterable[Sequence[Place]]) -> None:
        spans = batch.offsets or {}
        for partition, offset in chain.from_iterable(there):
            first, end = spans.get(partition, (0, 0))
            if not first <= offset < end:
                self.says(f"a record is at offset {offset} of partition {partition}, not where it was said to be")

    def _audit_record(
        self,
        record: Record,
        there: Sequence[Place],
        newest: Mapping[tuple[int, bytes | None], int],
        starts: Mapping[int, int],
        lost: dict[int, list[Record]],
    ) -> None:
        place = record.place
        if place is None:
            return
        if there and record.is_lost:
            self.says(f"{named(record)} was lost, and is there again")
        if there and place not in there:
            self.says(f"{named(record)} is at {there[0]}, not where it was said to be")
        if there or record.is_lost or self._is_gone(place, record.keys[0], newest, starts, record):
            return
        if not self._may_be_lost(record):
            self.says(f"{named(record)} was acknowledged, and is not there")
        record.is_lost = True
        lost[place[0]].append(record)

    def _audit_lost(self, lost: Mapping[int, Sequence[Record]], rows: Mapping[Place, bytes]) -> None:
        """What is lost was the end of a log, and no more than a policy allows."""
        for partition, records in lost.items():
            for record in self.records.values():
                if (
                    record.place is None
                    or record.place[0] != partition
                    or rows.get(record.place) not in record.values
                ):
                    continue
                for gone in records:
                    if gone.place < record.place and record.known_losses <= gone.losses:  # type: ignore[operator]
                        self.says(f"{named(record)} is there, and {named(gone)}, before it, is lost")
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
        place: Place,
        key: bytes | None,
        newest: Mapping[tuple[int, bytes | None], int],
        starts: Mapping[int, int],
        record: Record | None,
    ) -> bool:
        """Whether retention or compaction may have taken the record at a place."""
        partition, offset = place
        if self.has_retention and offset < starts[partition]:
            return record is None or not self._is_kept(record)
        if not self.is_compacted:
            return False
        return record is None or newest.get((partition, key), -1) > offset or key in self._deleted()

    def _is_kept(self, record: Record) -> bool:
        """Whether retention must not have taken a record: it goes by time alone, and the clock was right."""
        if self.retention_s is None or self.disk.power_losses:
            return False
        time_ms = record.records[0].timestamp if self.keeps_times else None
        made_s = record.made_s if time_ms is None else (time_ms - BEGIN_MS) / 1000
        return self.world.now - made_s < self.retention_s

    def _deleted(self) -> set[bytes | None]:
        """The keys that compaction may have removed with their tombstones; their times go by clocks that may jump."""
        before_s = self.world.now - (0 if self.disk.power_losses else self.tombstones_s)
        return {
            given.key
            for batch in self.batches
            for given in batch.records
            if given.value is None and (not isinstance(batch, Record) or batch.made_s <= before_s)
        }


def named(record: Record) -> str:
    """A record in a message."""
    return f"{record.values[0][:8]!r} at {record.place}"
