"""Takes a partition over as a broker would load it: recovers after a crash, cuts what is not whole, and says so."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from distlog.core.commits.format.actions import Action, Add, Cleaned, SetLogStartOffset
from distlog.core.errors import CorruptRecordError
from distlog.core.kafka_directory.checkpoint_files import Epochs
from distlog.core.kafka_directory.directory_names import PartitionName
from distlog.core.kafka_directory.log_dir import LogDir
from distlog.core.kafka_directory.log_walk import LogWalk
from distlog.core.kafka_directory.partition_folder import PartitionFolder
from distlog.core.kafka_directory.taken_segment import LogState, TakenSegment, take_segments
from distlog.core.transactions.open_transactions import OpenTransactions
from distlog.core.transactions.producer_states import ProducerStates

_REMADE = {".index": "offset index", ".timeindex": "time index", ".txnindex": "transaction index"}


@dataclass(frozen=True, slots=True)
class TakenPartition:
    """A partition to be committed; `notes` say what of its files was cut, left out or made anew.

    `producer_snapshot` is the content of the snapshot at the log end.
    """

    name: PartitionName
    folder: PartitionFolder
    log_start_offset: int
    log_end_offset: int
    first_dirty_offset: int
    segments: tuple[TakenSegment, ...]
    producer_snapshot: bytes
    epochs: Epochs
    topic_id: uuid.UUID | None
    notes: tuple[str, ...]

    @property
    def log_bytes(self) -> int:
        """The size of its logs."""
        return sum(segment.info.log_bytes for segment in self.segments)

    def actions(self) -> Iterator[Action]:
        """The actions that give an empty partition this log."""
        begin = self.segments[0].info.base_offset if self.segments else self.log_start_offset
        if begin:
            yield SetLogStartOffset(self.name.partition, begin)
        yield from (Add(segment.info) for segment in self.segments)
        if self.log_start_offset > begin:
            yield SetLogStartOffset(self.name.partition, self.log_start_offset)
        if self.first_dirty_offset > self.log_start_offset:
            yield Cleaned(self.name.partition, self.first_dirty_offset)


def take_partition(log_dir: LogDir, name: PartitionName, interval_bytes: int) -> TakenPartition:
    """Look at the partition's files; nothing is changed.

    `interval_bytes` is `index.interval.bytes` of indexes that are made anew. Raises CorruptRecordError for damage in
    a log that a broker would not find either when it starts.
    """
    folder = log_dir.folder(name)
    state = LogState(OpenTransactions(), folder.producers())
    notes = [f"{file}: {reason}" for file, reason in sorted(folder.loaded.left_out.items())]
    segments = list(_segments(log_dir, folder, state, interval_bytes, notes))
    checkpoint = log_dir.log_start_offsets.get(name, 0)
    end = segments[-1].info.next_offset if segments else checkpoint
    if segments and end < checkpoint:
        notes.append(f"the log ends at {end}, below its log start offset {checkpoint}: it is empty")
        segments, end = [], checkpoint
    start = max(checkpoint, segments[0].info.base_offset if segments else checkpoint)
    return TakenPartition(
        name,
        folder,
        start,
        end,
        min(log_dir.first_dirty_offsets.get(name, 0), end),
        tuple(each for each in segments if each.info.next_offset > max(start, each.info.base_offset)),
        _producers(folder, segments, state.producers, end).snapshot(),
        folder.leader_epochs(start, end),
        folder.topic_id(),
        tuple(notes),
    )


def _segments(
    log_dir: LogDir, folder: PartitionFolder, state: LogState, interval_bytes: int, notes: list[str]
) -> Iterator[TakenSegment]:
    """The segments up to the first that is damaged, and what there is to say of them."""
    bases = list(folder.loaded.segments)
    recovery_point = log_dir.recovery_points.get(folder.name, 0)
    for number, (base, end) in enumerate(itertools.zip_longest(bases, bases[1:])):
        # as a broker does: after a crash it looks through what may not have been synced
        checked = not log_dir.clean and (end is None or end > recovery_point)
        for segment in take_segments(folder, base, end, state, interval_bytes, checked=checked):
            if segment.damage is not None and not checked and end is not None:
                raise segment.damage
            notes += _notes(folder, segment, bases[number + 1 :])
            _check_end(folder, segment, end)
            yield segment
            if segment.damage is not None:
                return


def _producers(
    folder: PartitionFolder, segments: list[TakenSegment], found: ProducerStates, end: int
) -> ProducerStates:
    """The producers at the log end: those that were `found`, unless they came from a snapshot behind what was cut."""
    if found.offset <= end:
        return found
    states = folder.producers(end)
    for segment in segments:
        log = folder.log(str(segment.files[".log"]))
        for batches in LogWalk(log, checked=False, file="", start=segment.position, size=segment.end):
            states.see(batches.data, batches.rows)
    return states


def _check_end(folder: PartitionFolder, segment: TakenSegment, end: int | None) -> None:
    """Raise CorruptRecordError if the segment's batches go on behind the beginning of the next one."""
    if end is not None and segment.info.next_offset > end:
        text = f"the log has batches behind offset {end}, where the next segment begins: restore it from a copy"
        raise CorruptRecordError(text, file=folder.path(str(segment.files[".log"])))


def _notes(folder: PartitionFolder, segment: TakenSegment, later: list[int]) -> list[str]:
    log, notes = str(segment.files[".log"]), []
    if segment.position:
        text = "it becomes a segment of its own: its offsets are too far above those before it"
        notes.append(f"{log}: from position {segment.position} on, {text}")
    if segment.damage is not None:
        cut = folder.size(log) - segment.end
        notes.append(f"{log}: cut {cut} bytes from position {segment.end}: {segment.damage.message}")
        notes += [f"{base:020d}.log: left out, since it is behind what was cut" for base in later]
    made = [_REMADE[suffix] for suffix in segment.remade]
    return notes + ([f"{log}: made the {' and the '.join(made)} anew"] if made else [])
