"""Imports the partitions of a stopped broker's log directory as topics, with hard links or copies."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

import numpy as np

from distlog.core import paths
from distlog.core.commits import fields
from distlog.core.commits.actions import (
    MAX_PRODUCER_BATCHES,
    Action,
    Add,
    ProducerBatches,
    SetLogStartOffset,
    SetPartitions,
    each_action,
)
from distlog.core.commits.commit_log import CommitLog, CommitRace
from distlog.core.commits.segment_table import UNKNOWN, SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import (
    CommitConflictError,
    CorruptionError,
    DistlogError,
    InvalidTopicError,
    LockHeldError,
    StorageError,
    TopicExistsError,
    TopicNotFoundError,
)
from distlog.core.format.indexes import encode_transactions
from distlog.core.format.record_batch import read_headers
from distlog.core.kafka.adopted_segment import AdoptedPartition, AdoptedSegment, read_partition
from distlog.core.kafka.log_dir import LogDir, StoredTransactions
from distlog.core.kafka.partition_folder import (
    Epochs,
    PartitionFolder,
    PartitionName,
    file_name,
    joined_epochs,
    parse_partition_folder,
    read_epochs,
    write_epochs,
)
from distlog.core.kafka.transactions import TransactionState, TransactionStatus, marker
from distlog.core.paths import LEADER_EPOCHS, SNAPSHOT_SUFFIX
from distlog.core.segments.producer_states import OpenTransactions, ProducerStates, read_producer_snapshot
from distlog.core.segments.segment_parts import index_fields_of
from distlog.core.segments.segment_reader import topic_log
from distlog.core.segments.segment_state import LogDescription
from distlog.core.storage.calls import in_parallel
from distlog.core.storage.local_files import OpenedFile, failing_as, make_folders
from distlog.core.storage.locks_and_pages import flocked
from distlog.core.storage.storage import Storage

#: The log directories that have a partition: one per replica.
Replicas = Mapping[PartitionName, Sequence[LogDir]]
#: A file up to this size is copied in one request.
_SINGLE_REQUEST_BYTES = 8 << 20
_EMPTY_SNAPSHOT_BYTES = 10
#: The lock file of an import in the topic's folder. After a crash it shows that the folder's files are not committed.
_MARK = ".adoption"
_MARK_TEXT = b"an adoption is under way, or has died: adopt again\n"


@dataclass(frozen=True, slots=True)
class AdoptedTopic:
    """The result of importing a topic to `url`; `partitions` has the imported partitions with their new segments."""

    name: str
    url: str
    partitions: tuple[AdoptedPartition, ...] = ()
    notes: tuple[str, ...] = ()
    #: Whether an earlier import created the topic.
    existed: bool = False
    #: All partitions after the import; none after a dry run.
    states: tuple[PartitionState, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    error: DistlogError | None = None

    @property
    def result(self) -> str:
        if self.error is not None:
            return "failed"
        if self.existed:
            return "extended" if self.partitions else "unchanged"
        return "adopted"


#: The outcome, the topic's commit log, and the topic's snapshot (None after a dry run of a new topic).
_Adoption = tuple[AdoptedTopic, CommitLog, Snapshot | None]


def adopt_topic(
    replicas: Replicas,
    topic: Storage,
    config: TopicConfig,
    stored_transactions: StoredTransactions,
    *,
    by_links: bool,
    dry_run: bool,
) -> _Adoption:
    """Import the partitions `replicas` as the topic in the folder `topic`, or extend the topic of an earlier import.

    All files are written first, then one commit creates the topic: after a crash, adopt again. An existing topic gets
    new partitions, and new records if its log ends with a batch that the broker's log also has.
    """
    log, name = topic_log(topic), paths.check_topic_name(paths.last_part(topic.url.rstrip("/")))
    if by_links and parse_partition_folder(name) is not None:
        # by links, the topic's folder is in the log directory, where a broker would load it as a partition
        text = "a topic of this name cannot be adopted without a copy: its folder would have a partition's name"
        raise InvalidTopicError(text, topic=name)
    existing = _load(log)
    topic_ends = [] if existing is None else [state.log_end_offset for state in existing.partitions]
    read_replicas = _read_replicas(replicas, config, dict(enumerate(topic_ends)))
    topic_id = _topic_id(read_replicas)
    partitions = [with_end_markers(_most_complete(candidates), stored_transactions) for candidates in read_replicas]
    if not topic.is_local:
        partitions = [with_names_of_contents(partition) for partition in partitions]
    is_linked = by_links and topic.is_local
    if existing is not None:
        if existing.dropped or existing.topic_id != topic_id:
            text = "another topic is or was at this address: adopt to another address"
            if topic_id is None:
                text = "the address has a topic, and without partition.metadata nothing shows that it is the same: "
                text += "adopt all directories at once, to another address"
            raise TopicExistsError(text, url=topic.url)
        extended = _Extension(log, existing, topic, partitions).run(linked=is_linked, dry_run=dry_run)
        if extended is not None:
            return extended
        # another import has changed the topic since it was loaded: read it again
        return adopt_topic(replicas, topic, config, stored_transactions, by_links=by_links, dry_run=dry_run)
    adopted = AdoptedTopic(name, topic.url, tuple(partitions), tuple(_notes(partitions)))
    if dry_run:
        return adopted, log, None
    is_marked = topic.is_local and any(file.name == _MARK for file in topic.list())
    if topic.is_local and not is_marked and (existing_files := written_files(topic, name, partitions)):
        text = "the topic's folder has other files: adopt to another address, or delete them"
        raise StorageError(text, url=topic.url, file=existing_files[0])
    with import_lock(topic):
        # another import may have created the topic before this one had the lock
        if _load(log) is None:
            _write_partitions(topic, name, partitions, linked=is_linked)
            # another import may have created the topic on object storage, which has no lock
            with suppress(TopicExistsError):
                actions: list[Action] = [action for partition in partitions for action in partition.actions()]
                actions += _producer_batches(topic, partitions)
                count = max(partition.name.partition for partition in partitions) + 1
                snapshot = log.create(count, config, topic_id=topic_id, imported=actions)
                remove_mark(topic)
                return adopted, log, snapshot
        remove_mark(topic)
    # extend the topic that the other import created
    return adopt_topic(replicas, topic, config, stored_transactions, by_links=by_links, dry_run=dry_run)


def with_end_markers(partition: AdoptedPartition, stored_transactions: StoredTransactions) -> AdoptedPartition:
    """Return the partition with the end markers of decided open transactions, and notes on all open transactions."""
    # a coordinator stores its decision in `__transaction_state` before all partitions have an end marker; a broker
    # that was killed in between writes the missing markers at startup, as an import of its logs does here
    producers = read_producer_snapshot(partition.producer_snapshot)
    open_transactions = producers[producers["transaction_first_offset"] >= 0]
    if not len(open_transactions) or not partition.segments:
        return partition
    topic_partition = (partition.name.topic, partition.name.partition)
    notes = list(partition.notes)
    #: The decided transactions, with the epochs of their coordinators.
    decided = list[tuple[TransactionState, int]]()
    for entry in np.sort(open_transactions, order="transaction_first_offset"):
        producer, start_offset = int(entry["producer_id"]), int(entry["transaction_first_offset"])
        state = stored_transactions.of(producer, int(entry["producer_epoch"]), topic_partition)
        details = f" ({state.transactional_id!r}, {state.status.kafka_name})" if state is not None else ""
        transaction = f"transaction of producer {producer}{details}"
        if state is not None and state.is_decided:
            decided.append((state, max(0, int(entry["coordinator_epoch"]))))
            decision = "committed" if state.status is TransactionStatus.PREPARE_COMMIT else "aborted"
            notes.append(f"wrote the end marker of the {decision} {transaction}, open from offset {start_offset} on")
        else:
            command = f"distlog transactions URL --abort {topic_partition[1]}:{start_offset}"
            notes.append(f"the {transaction} is open, and committed readers stop there; `{command}` ends it")
    notes += stored_transactions.notes
    partition = _with_markers(partition, decided) if decided else partition
    return dataclasses.replace(partition, notes=tuple(notes))


def _with_markers(partition: AdoptedPartition, decided: Sequence[tuple[TransactionState, int]]) -> AdoptedPartition:
    """Return the partition with a new segment: the end markers of `decided`, transactions with coordinator epochs."""
    base_offset, leader_epoch = partition.log_end_offset, partition.segments[-1].info.leader_epoch
    written_ms = max(state.updated_ms for state, _ in decided)
    markers = b"".join(
        _marker(state, epoch, base_offset + number, leader_epoch) for number, (state, epoch) in enumerate(decided)
    )
    rows = read_headers(markers)
    producers = ProducerStates.of_snapshot(read_producer_snapshot(partition.producer_snapshot), base_offset)
    transactions = OpenTransactions(producers.open_transactions)
    aborted = transactions.observe(markers, rows)
    producers.observe(markers, rows)
    log = LogDescription(base_offset)
    log.add(markers, rows)
    info, indexes = log.describe(partition.name.partition, f"{base_offset:020d}", written_ms)
    indexes[".txnindex"] = encode_transactions(aborted)
    changes: dict[str, Any] = {
        **index_fields_of(indexes),
        "first_unstable_offset": transactions.first_offset,
        # a marker is not a record that a search by time may return
        "offset_of_max_timestamp": -1,
    }
    files = {".log": markers, **{suffix: index for suffix, index in indexes.items() if index}}
    segment = AdoptedSegment(dataclasses.replace(info, **changes), files, position=0, damage=None, rebuilt=())
    return dataclasses.replace(
        partition,
        segments=(*partition.segments, segment),
        log_end_offset=info.next_offset,
        producer_snapshot=producers.snapshot(),
    )


def _marker(state: TransactionState, coordinator_epoch: int, offset: int, leader_epoch: int) -> bytes:
    batch = marker(
        state.producer.id,
        state.producer.epoch,
        max(0, state.updated_ms),
        is_committed=state.status is TransactionStatus.PREPARE_COMMIT,
        coordinator_epoch=coordinator_epoch,
    )
    data = bytearray(np.ascontiguousarray(batch.data).tobytes())
    # set the base offset and the leader epoch; the batch's checksum does not cover them
    data[:8] = offset.to_bytes(8, "big")
    data[12:16] = leader_epoch.to_bytes(4, "big", signed=True)
    return bytes(data)


def written_files(topic: Storage, name: str, partitions: Sequence[AdoptedPartition]) -> list[str]:
    """Return all files in the folders of the partitions, whoever wrote them."""
    folders = [paths.partition_dir(name, partition.name.partition) for partition in partitions]
    return [file.name for folder in folders for file in topic.list(folder)]


def with_names_of_contents(partition: AdoptedPartition) -> AdoptedPartition:
    """Return the partition with new stems (file names without extension): hashes of its segments' contents."""
    # on object storage, a put of an import that died may take effect late. With the usual name it would overwrite the
    # file of a later import, which has more records. With a name by content it writes the same bytes, or a file that
    # no commit names. This file remains, since an import deletes nothing there
    segments = []
    for segment in partition.segments:
        identity = json.dumps(fields.write(dataclasses.replace(segment.info, created_ms=0)), sort_keys=True)
        digest = int.from_bytes(hashlib.sha256(identity.encode()).digest(), "big")
        # 20 digits, and the first is not 0, so no stem is an offset: those are below 2^63, about 0.9 * 10^19
        info = dataclasses.replace(segment.info, stem=str(10**19 + digest % (9 * 10**19)))
        segments.append(segment._replace(info=info))
    return dataclasses.replace(partition, segments=tuple(segments))


def write_partition(topic: Storage, name: str, partition: AdoptedPartition, *, linked: bool) -> None:
    """Write the partition's files into the folder of the topic `name`, durably; `linked` makes hard links."""
    folder = paths.partition_dir(name, partition.name.partition)
    if linked:
        path = topic.local_path(folder)
        with failing_as("make the folder", path):
            make_folders(path)
    write = partial(_write_segment, topic, name, partition.folder, linked=linked)
    in_parallel(write, partition.segments)
    snapshot = partition.producer_snapshot
    if len(snapshot) > _EMPTY_SNAPSHOT_BYTES:
        topic.put(f"{folder}/{file_name(partition.log_end_offset, SNAPSHOT_SUFFIX)}", snapshot)
    if partition.epochs:
        file = f"{folder}/{LEADER_EPOCHS}"
        imported_epochs: Epochs = []
        with suppress(FileNotFoundError):
            imported_epochs = read_epochs(topic.read(file), file=f"{topic.url}/{file}")
        # the lowest offset as the log start offset, so that no epoch is dropped
        first = min(offset for _, offset in (*imported_epochs, *partition.epochs))
        topic.put(file, write_epochs(joined_epochs([imported_epochs, partition.epochs], first)))
    if linked:
        topic.sync(folder)


def _write_segment(
    topic: Storage, name: str, folder: PartitionFolder, segment: AdoptedSegment, *, linked: bool
) -> None:
    for suffix, source in segment.files.items():
        target = paths.segment_file(name, segment.info.partition, segment.info.stem, suffix)
        if not isinstance(source, str):
            topic.put(target, source)
        # a log file with more bytes than the segment (several segments, or a damaged end) is copied in part
        elif linked and (suffix != ".log" or folder.size(source) == segment.info.log_bytes):
            _link(folder, source, topic.local_path(target))
        else:
            start, end = (segment.position, segment.end) if suffix == ".log" else (0, folder.size(source))
            _copy(topic, target, folder, source, start, end)


def _link(folder: PartitionFolder, source: str, target: str) -> None:
    """Make a hard link of a file, and sync the file, since a killed broker may not have synced it."""
    try:
        with OpenedFile(folder.open_file(source)) as file:
            os.link(folder.path(source), target, follow_symlinks=False)
            if not os.path.samestat(os.fstat(file), os.stat(target, follow_symlinks=False)):
                # the source was replaced after it was opened
                os.unlink(target)
                raise StorageError("this file was replaced during the import: adopt again", file=folder.path(source))
            os.fsync(file)
    except StorageError:
        raise
    except OSError as error:
        text = f"cannot make a hard link of a broker's file: {error.strerror}; adopt by copy, to another address"
        raise StorageError(text, file=folder.path(source)) from error


def _copy(topic: Storage, target: str, folder: PartitionFolder, source: str, start: int, end: int) -> None:
    if end <= _SINGLE_REQUEST_BYTES:
        topic.put(target, folder.read(source)[start:end])
        return
    with topic.open_write(target) as writer:
        for chunk in folder.log(source).chunks(start, end):
            writer.write_behind(chunk)


@contextmanager
def import_lock(topic: Storage) -> Iterator[None]:
    """Lock other imports out of the topic's folder, if it is on a disk. Raises StorageError."""
    if not topic.is_local:
        yield
        return
    path = topic.local_path(_MARK)
    with failing_as("make the folder of the topic", path):
        make_folders(os.path.dirname(path))
    with ExitStack() as stack:
        mark = None
        with suppress(LockHeldError):
            mark = stack.enter_context(flocked(path, timeout_s=0))
        # if the opened mark has no link, the import that had locked it has deleted it
        if mark is None or not os.fstat(mark).st_nlink:
            raise StorageError("another adoption to this address is under way: wait for it", url=topic.url)
        with failing_as("write the mark", path):
            os.pwrite(mark, _MARK_TEXT, 0)
        yield


def remove_mark(topic: Storage) -> None:
    """Remove the mark of an import after its commit: all files in the topic's folder are the topic's."""
    if topic.is_local:
        with suppress(StorageError):
            topic.delete([_MARK])


def _read_replicas(replicas: Replicas, config: TopicConfig, ends: Mapping[int, int]) -> list[list[AdoptedPartition]]:
    """Read each partition's undamaged replicas; a segment that spans the topic's end (in `ends`) becomes two."""

    def read(name: PartitionName) -> list[AdoptedPartition]:
        partitions, errors = list[AdoptedPartition](), list[CorruptionError]()
        for log_dir in replicas[name]:
            try:
                partitions.append(read_partition(log_dir, name, config, ends.get(name.partition, 0)))
            except CorruptionError as error:  # noqa: PERF203 - damage must not hide the next replica
                errors.append(error)
        if not partitions:
            raise errors[0]
        notes = tuple(f"a replica was left out: {error}" for error in errors)
        return [dataclasses.replace(partition, notes=(*notes, *partition.notes)) for partition in partitions]

    return in_parallel(read, list(replicas))


def _most_complete(replicas: Sequence[AdoptedPartition]) -> AdoptedPartition:
    best = max(replicas, key=attrgetter("completeness"))
    if len(replicas) == 1:
        return best
    path, end_offset = best.folder.path(""), best.log_end_offset
    notes = [f"of {len(replicas)} replicas, the one in {path} is used, which ends at {end_offset}"]
    notes += [
        f"the replica in {replica.folder.path('')} had committed records up to {replica.high_watermark}: a leader "
        "without them was elected, or the directory of another replica is missing"
        for replica in replicas
        if replica is not best and replica.high_watermark > end_offset
    ]
    return dataclasses.replace(best, notes=(*notes, *best.notes))


def _write_partitions(topic: Storage, name: str, partitions: Sequence[AdoptedPartition], *, linked: bool) -> None:
    """Write all files. On a disk, delete the files of a crashed import first, and all files after an error."""
    if topic.is_local:
        topic.delete(written_files(topic, name, partitions))
    try:
        for partition in partitions:
            write_partition(topic, name, partition, linked=linked)
    except DistlogError:
        if topic.is_local:
            with suppress(StorageError):
                topic.delete(written_files(topic, name, partitions))
                remove_mark(topic)
        raise


def _producer_batches(
    topic: Storage, partitions: Sequence[AdoptedPartition], existing: Mapping[int, PartitionState] | None = None
) -> list[Action]:
    """Return the action with the producers' batches that the `existing` partitions lack, or all for a new topic."""
    # on a local disk, writers read the snapshots next to the logs; elsewhere, writers read the commits
    if topic.is_local_disk:
        return []
    # an existing partition that has no producers gets all that are in its log
    ends = {number: state.log_end_offset if state.producers else 0 for number, state in (existing or {}).items()}
    # a producer has up to three batches (`producer_states.batches_of`): a marker (for the coordinator's epoch), the
    # first batch of the open transaction, and the last batch
    max_producers = MAX_PRODUCER_BATCHES // (3 * max(1, len(partitions)))
    by_number = {partition.name.partition: partition for partition in partitions}
    batches = {n: by_number[n].producer_batches(ends.get(n, 0), max_producers) for n in sorted(by_number)}
    nonempty = {number: partition_batches for number, partition_batches in batches.items() if partition_batches}
    return [ProducerBatches(nonempty)] if nonempty else []


class _Extension:
    """The records and partitions of the log directories that the imported topic `existing` lacks."""

    def __init__(
        self, log: CommitLog, existing: Snapshot, topic: Storage, partitions: Sequence[AdoptedPartition]
    ) -> None:
        self._log, self._existing, self._topic = log, existing, topic
        numbers = [partition.name.partition for partition in partitions]
        self._states = {number: _partition_state(existing, number) for number in numbers}
        #: The partitions with the segments that the topic lacks.
        self._additions = [missing for missing in map(self._missing_records, partitions) if missing is not None]

    def run(self, *, linked: bool, dry_run: bool) -> _Adoption | None:
        """Append the new records in one commit; returns None if the topic has changed since it was loaded."""
        log, existing, topic = self._log, self._existing, self._topic
        notes = list[str]()
        for partition in self._additions:
            start = self._states[partition.name.partition].log_end_offset or partition.log_start_offset
            end = partition.log_end_offset
            records = f" the offsets from {start} to {end}" if start != end else ", without records"
            notes.append(f"partition {partition.name.partition}: added{records}")
        notes += _notes(self._additions, len(existing.partitions))
        adopted = AdoptedTopic(existing.name, topic.url, tuple(self._additions), tuple(notes), existed=True)
        if dry_run or not self._additions:
            if not dry_run:
                remove_mark(topic)  # an import that died after its commit left its mark
            return adopted, log, existing
        for partition in self._additions:
            if linked and any(segment.position for segment in partition.segments):
                text = "the broker has appended to files that it shares with the topic: adopt to another address"
                raise StorageError(text, url=topic.url, partition=partition.name.partition)
        with import_lock(topic):
            try:
                # another import may have ended since; its files belong to the topic
                if not self._is_unchanged(log.load(include_dropped=True)):
                    return None
                if topic.is_local:
                    # delete the files of an import that crashed
                    infos = [segment.info for partition in self._additions for segment in partition.segments]
                    stems = [(existing.name, info.partition, info.stem) for info in infos]
                    suffixes = paths.SEGMENT_SUFFIXES
                    topic.delete([paths.segment_file(*stem, suffix) for stem in stems for suffix in suffixes])
                for partition in self._additions:
                    write_partition(topic, existing.name, partition, linked=linked)
                return adopted, log, self._commit()
            finally:
                remove_mark(topic)

    def _is_unchanged(self, head: Snapshot) -> bool:
        is_same = not head.dropped and head.topic_id == self._existing.topic_id
        return is_same and all(_partition_state(head, number) == state for number, state in self._states.items())

    def _commit(self) -> Snapshot:
        with CommitRace(self._log, self._existing, "import") as race:
            for head in race:
                if not self._is_unchanged(head):
                    text = "nothing was adopted: the topic was changed concurrently; adopt again"
                    raise CommitConflictError(text, url=self._topic.url)
                count = max(partition.name.partition for partition in self._additions) + 1
                actions: list[Action] = [SetPartitions(count)] if count > len(head.partitions) else []
                for partition in self._additions:
                    is_new = not self._states[partition.name.partition].log_end_offset
                    added_segments = [Add(segment.info) for segment in partition.segments]
                    actions += partition.actions() if is_new else added_segments
                race.put([*actions, *_producer_batches(self._topic, self._additions, self._states)])
        return race.snapshot

    def _missing_records(self, partition: AdoptedPartition) -> AdoptedPartition | None:
        """Return the partition with the segments that the topic lacks, if any. Raises TopicExistsError."""
        number = partition.name.partition
        state = self._states[number]
        topic_end = state.log_end_offset
        if not topic_end and state.active is None:
            # the topic has no record of the partition; an empty partition is added if its number is new
            return partition if partition.log_end_offset or number >= len(self._existing.partitions) else None
        if not partition.segments or _is_same_end(state, partition.segments[-1].info):
            # the log has no record after the last import
            return None
        if partition.log_end_offset <= self._adopted_ends.get(number, 0):
            # the log has no record after the last import, although compaction has replaced the imported segments
            return None
        earlier_segments = [segment for segment in partition.segments if segment.info.base_offset < topic_end]
        new_segments = partition.segments[len(earlier_segments) :]
        is_next = bool(new_segments) and new_segments[0].info.base_offset == topic_end and state.active is None
        is_same_log = not earlier_segments or _is_same_end(state, earlier_segments[-1].info)
        # If vacuum deleted the commits of imports, a segment before `topic_end` suffices, whose end `is_same_log`
        # compares. Without one, nothing shows that the logs agree: 0 is not `topic_end`
        adopted_end = self._adopted_ends.get(number, topic_end if earlier_segments else 0)
        is_unchanged = adopted_end == topic_end  # False if records were appended to the topic after the last import
        if not (is_next and is_same_log and is_unchanged):
            text = (
                f"partition {number} has other records than the log directory, which ends at "
                f"{partition.log_end_offset}: the topic was changed since it was adopted; adopt to another address"
            )
            raise TopicExistsError(text, url=self._topic.url, partition=number, log_end_offset=topic_end)
        return dataclasses.replace(partition, segments=new_segments)

    @cached_property
    def _adopted_ends(self) -> Mapping[int, int]:
        """The end of the imported offsets of each partition, from the commits that still exist."""
        ends = dict[int, int]()
        for commit in self._log.history():
            imported = (commit.topic_id, commit.operation) == (self._existing.topic_id, "import")
            for action in each_action(commit.actions) if imported else ():
                if isinstance(action, Add):
                    number, offset = action.segment.partition, action.segment.next_offset
                elif isinstance(action, SetLogStartOffset):
                    number, offset = action.partition, action.offset
                else:
                    continue
                ends[number] = max(ends.get(number, 0), offset)
        return ends


def _partition_state(snapshot: Snapshot, partition: int) -> PartitionState:
    return snapshot.partitions[partition] if partition < len(snapshot.partitions) else PartitionState()


def _is_same_end(state: PartitionState, segment: SegmentInfo) -> bool:
    """Return whether the topic has a segment with the end offset and the last batch of `segment`."""
    index = int(state.segments.next_offsets.searchsorted(segment.next_offset))
    if index == len(state.segments) or segment.last_batch_crc == UNKNOWN:
        return False
    stored = state.segments[index]
    return (stored.next_offset, stored.last_batch_crc) == (segment.next_offset, segment.last_batch_crc)


def _topic_id(read_replicas: Sequence[Sequence[AdoptedPartition]]) -> str | None:
    """Return the topic id of all replicas; None if they have no id. Raises InvalidTopicError."""
    topic_ids = {replica.topic_id for replicas in read_replicas for replica in replicas}
    if len(topic_ids) > 1:
        text = "the partitions have the ids of several topics in partition.metadata: adopt each topic by itself"
        raise InvalidTopicError(text, topic=read_replicas[0][0].name.topic)
    (topic_id,) = topic_ids
    return None if topic_id is None else str(topic_id)


def _load(log: CommitLog) -> Snapshot | None:
    try:
        return log.load(include_dropped=True)
    except TopicNotFoundError:
        return None


def _notes(partitions: Sequence[AdoptedPartition], existing: int = 0) -> list[str]:
    """Return notes on `partitions`, and on missing partitions of a topic with `existing` partitions."""
    present = {partition.name.partition for partition in partitions}
    absent = sorted(set(range(existing, max(present, default=-1) + 1)) - present)
    notes = [f"partition {number} is not in this directory: it is empty here" for number in absent]
    notes += [f"partition {partition.name.partition}: {note}" for partition in partitions for note in partition.notes]
    return notes


def by_topic(log_dirs: Sequence[LogDir], names: Iterable[PartitionName]) -> Mapping[str, Replicas]:
    topics = dict[str, dict[PartitionName, list[LogDir]]]()
    for name in sorted(set(names)):
        topics.setdefault(name.topic, {})[name] = [log_dir for log_dir in log_dirs if name in log_dir.partitions]
    return topics
