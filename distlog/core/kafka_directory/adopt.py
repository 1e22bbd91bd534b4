"""Adoption: the partitions in a stopped broker's log directory become topics, in place or as copies."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from distlog.core import paths
from distlog.core.batches.record_batch import read_headers
from distlog.core.commits import fields
from distlog.core.commits.actions import (
    Action,
    Add,
    ProducerBatches,
    SetLogStartOffset,
    SetPartitions,
    without_tables,
)
from distlog.core.commits.commit_json import MOST_PRODUCER_BATCHES
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.commit_race import CommitRace
from distlog.core.commits.segment_info import UNKNOWN
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import (
    CommitConflictError,
    CorruptionError,
    DistlogError,
    InvalidTopicError,
    StorageError,
    TopicExistsError,
    TopicNotFoundError,
)
from distlog.core.kafka_directory.adopted_segment import AdoptedPartition, AdoptedSegment, take_partition
from distlog.core.kafka_directory.log_dir import LeftStates, LogDir
from distlog.core.kafka_directory.partition_folder import (
    Epochs,
    PartitionFolder,
    PartitionName,
    file_name,
    joined_epochs,
    parse_partition_folder,
    read_epochs,
    write_epochs,
)
from distlog.core.kafka_directory.source_log import pieces
from distlog.core.log.end_marker import marker
from distlog.core.maintenance.rebuild import complete_index
from distlog.core.paths import LEADER_EPOCHS, SNAPSHOT_SUFFIX
from distlog.core.segments.segment_parts import index_facts
from distlog.core.segments.segment_state import LogDescription
from distlog.core.storage.durable_files import failing_as, make_folders
from distlog.core.storage.locks_and_pages import open_lock
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.transaction_state import TransactionState, TransactionStatus
from distlog.core.transactions.open_transactions import OpenTransactions
from distlog.core.transactions.producer_states import ProducerStates, read_producer_snapshot

# A coordinator decides in `__transaction_state`, and then has a marker written to each partition. A broker that was
# killed in between does the rest when it starts; so does an adoption of its logs. A transaction that is not decided
# stays open, as it would until its coordinator aborts it, and is named.


_EPOCH_AT = slice(12, 16)


def with_end_markers(partition: AdoptedPartition, states: LeftStates) -> AdoptedPartition:
    """The partition with the markers of its open transactions that are decided, and notes of all that are open."""
    open_ones = [entry for entry in _producers(partition) if entry["transaction_first_offset"] >= 0]
    if not open_ones or not partition.segments:
        return partition
    place, notes = (partition.name.topic, partition.name.partition), list(partition.notes)
    decided = list[tuple[TransactionState, int]]()
    for entry in sorted(open_ones, key=lambda each: int(each["transaction_first_offset"])):
        producer, first = int(entry["producer_id"]), int(entry["transaction_first_offset"])
        state = states.of(producer, int(entry["producer_epoch"]), place)
        if state is not None and state.is_decided:
            decided.append((state, max(0, int(entry["coordinator_epoch"]))))
            how = "committed" if state.status is TransactionStatus.PREPARE_COMMIT else "aborted"
            notes.append(f"wrote the end marker of the {how} {_named(producer, state)}, open from offset {first} on")
        else:
            text = "is open, and committed readers stop there; `distlog transactions URL --abort"
            notes.append(f"the {_named(producer, state)} {text} {place[1]}:{first}` ends it")
    notes += states.notes
    if not decided:
        return dataclasses.replace(partition, notes=tuple(notes))
    return dataclasses.replace(_with_markers(partition, decided), notes=tuple(notes))


def _named(producer: int, state: TransactionState | None) -> str:
    known = f" ({state.transactional_id!r}, {state.status.kafka_name})" if state is not None else ""
    return f"transaction of producer {producer}{known}"


def _producers(partition: AdoptedPartition) -> Any:
    return read_producer_snapshot(partition.producer_snapshot)


def _with_markers(partition: AdoptedPartition, decided: Sequence[tuple[TransactionState, int]]) -> AdoptedPartition:
    """The partition with one more segment: the markers of these transactions, each with its coordinator's epoch."""
    base, last = partition.log_end_offset, partition.segments[-1].info
    written_ms = max(state.updated_ms for state, _ in decided)
    data = b"".join(
        _marker(state, epoch, base + number, last.leader_epoch) for number, (state, epoch) in enumerate(decided)
    )
    rows = read_headers(data)
    entries = _producers(partition)
    producers = ProducerStates.of_snapshot(entries, base)
    transactions = OpenTransactions(producers.opened)
    aborted = transactions.see(data, rows)
    producers.see(data, rows)
    log = LogDescription(base)
    log.add(data, rows)
    info, indexes = log.describe(partition.name.partition, f"{base:020d}", written_ms)
    files = {suffix: made for suffix, made in indexes.items() if made}
    if aborted:
        files[".txnindex"] = complete_index(b"", aborted)
    facts: dict[str, Any] = {
        **index_facts({suffix: files.get(suffix, b"") for suffix in (".index", ".timeindex", ".txnindex")}),
        "first_unstable_offset": transactions.first_offset,
        # a marker is no record that a reader could be sent to
        "offset_of_max_timestamp": -1,
    }
    segment = AdoptedSegment(dataclasses.replace(info, **facts), {".log": data, **files}, 0, None, ())
    return dataclasses.replace(
        partition,
        segments=(*partition.segments, segment),
        log_end_offset=info.next_offset,
        producer_snapshot=producers.snapshot(),
    )


def _marker(state: TransactionState, coordinator_epoch: int, offset: int, leader_epoch: int) -> bytes:
    """The batch at its place in the log; the offset and the leader's epoch are outside of its checksum."""
    run = marker(
        state.producer.id,
        state.producer.epoch,
        max(0, state.updated_ms),
        is_committed=state.status is TransactionStatus.PREPARE_COMMIT,
        coordinator_epoch=coordinator_epoch,
    )
    data = bytearray(np.ascontiguousarray(run.data).tobytes())
    data[:8] = offset.to_bytes(8, "big")
    data[_EPOCH_AT] = leader_epoch.to_bytes(4, "big", signed=True)
    return bytes(data)


# The broker's own folders stay as they are. So until the commit that makes the topic, nothing has happened to them.
#
# On object storage a request may have its effect after the next adoption, of a log that has grown since. So there a
# name tells the content, and nothing is deleted: a late put writes what is there already, or a file of nobody's.


#: A file of up to this size is copied in one piece.
_WHOLE_BYTES = 8 << 20
#: The size of a producer snapshot without a producer.
_NO_PRODUCERS = 10


def placed(topic: Storage, name: str, partitions: Sequence[AdoptedPartition]) -> list[str]:
    """The files where the partitions' files will be, or are."""
    folders = [paths.partition_dir(name, partition.name.partition) for partition in partitions]
    return [file.name for folder in folders for file in topic.list(folder)]


def with_names_of_contents(partition: AdoptedPartition) -> AdoptedPartition:
    """The partition with other stems: 20 digits, more than an offset has, that no other content gets."""

    def renamed(segment: AdoptedSegment) -> AdoptedSegment:
        facts = json.dumps(fields.write(dataclasses.replace(segment.info, created_ms=0)), sort_keys=True)
        digest = int.from_bytes(hashlib.sha256(facts.encode()).digest(), "big")
        stem = str(10**19 + digest % (9 * 10**19))
        return segment._replace(info=dataclasses.replace(segment.info, stem=stem))

    return dataclasses.replace(partition, segments=tuple(map(renamed, partition.segments)))


def delete_targets(topic: Storage, name: str, partitions: Sequence[AdoptedPartition]) -> None:
    """Delete what an adoption that died left where the segments of these partitions will be; the topic has others."""
    topic.delete(
        [
            paths.segment_file(name, segment.info.partition, segment.info.stem, suffix)
            for partition in partitions
            for segment in partition.segments
            for suffix in paths.SEGMENT_SUFFIXES
        ]
    )


def place(topic: Storage, name: str, partition: AdoptedPartition, *, linked: bool) -> None:
    """Put the partition's files into the folder of the topic `name`, durably; `linked` makes hard links."""
    folder = paths.partition_dir(name, partition.name.partition)
    if linked:
        path = topic.local_path(folder)
        with failing_as("make the folder", path):
            make_folders(path)
    in_parallel(lambda each: _place_segment(topic, name, partition.folder, each, linked=linked), partition.segments)
    snapshot = partition.producer_snapshot
    if len(snapshot) > _NO_PRODUCERS:
        topic.put(f"{folder}/{file_name(partition.log_end_offset, SNAPSHOT_SUFFIX)}", snapshot)
    if partition.epochs:
        # behind the leader epochs that are there, of records that were adopted before
        file = f"{folder}/{LEADER_EPOCHS}"
        before: Epochs = []
        with suppress(FileNotFoundError):
            before = read_epochs(topic.read(file), file=f"{topic.url}/{file}")
        start = min(offset for _, offset in (*before, *partition.epochs))
        topic.put(file, write_epochs(joined_epochs([before, partition.epochs], start)))
    if linked:
        topic.sync(folder)


def _place_segment(
    topic: Storage, name: str, folder: PartitionFolder, segment: AdoptedSegment, *, linked: bool
) -> None:
    for suffix, source in segment.files.items():
        target = paths.segment_file(name, segment.info.partition, segment.info.stem, suffix)
        if isinstance(source, bytes):
            topic.put(target, source)
        elif linked and (suffix != ".log" or folder.size(source) == segment.info.log_bytes):
            _link(folder, source, topic.local_path(target))
        else:
            start, end = (segment.position, segment.end) if suffix == ".log" else (0, folder.size(source))
            _copy(topic, target, folder, source, start, end)


def _link(folder: PartitionFolder, source: str, target: str) -> None:
    """Give a file a second name; its bytes are synced, since a broker that was killed may not have done it."""
    try:
        file = folder.open_file(source)
        try:
            os.link(folder.path(source), target, follow_symlinks=False)
            if not os.path.samestat(os.fstat(file), os.stat(target, follow_symlinks=False)):
                # a link was put in its place
                os.unlink(target)
                raise StorageError("this file was replaced meanwhile: adopt again", file=folder.path(source))
            os.fsync(file)
        finally:
            os.close(file)
    except StorageError:
        raise
    except OSError as error:
        text = f"cannot give a broker's file a second name: {error.strerror}; adopt by copy, to another address"
        raise StorageError(text, file=folder.path(source)) from error


def _copy(topic: Storage, target: str, folder: PartitionFolder, source: str, start: int, end: int) -> None:
    if end <= _WHOLE_BYTES:
        topic.put(target, folder.read(source)[start:end])
        return
    with topic.open_write(target) as writer:
        for piece in pieces(folder.log(source), start, end):
            writer.write_behind(piece)


# On object storage adoptions are at work beside each other: their files are the same, and one of their commits wins.


_MARK = ".adoption"
_TEXT = b"an adoption is under way, or has died: adopt again\n"


@contextmanager
def adopting(topic: Storage) -> Iterator[None]:
    """Keep other adoptions out of the topic's folder on a disk until `end`, or raise StorageError."""
    if not topic.is_local:
        yield
        return
    path = topic.local_path(_MARK)
    file = _locked(path, topic.url)
    try:
        yield
    finally:
        os.close(file)


def is_marked(topic: Storage) -> bool:
    return any(file.name == _MARK for file in topic.list())


def end(topic: Storage) -> None:
    """Say that no adoption is under way; the files in the topic's folder belong to the topic, or are gone."""
    if topic.is_local:
        with suppress(StorageError):
            topic.delete([_MARK])


def _locked(path: str, url: str) -> int:
    with failing_as("make the folder of the topic", path):
        make_folders(os.path.dirname(path))
    while True:
        with failing_as("open the mark", path):
            file = open_lock(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                os.pwrite(file, _TEXT, 0)
                return file
        except BlockingIOError:
            os.close(file)
            raise StorageError("another adoption to this address is under way: wait for it", url=url) from None
        except BaseException:
            os.close(file)
            raise
        # its holder has ended its adoption meanwhile
        os.close(file)


# All files of a topic are put in place first, and then one commit makes the topic. A crash before it leaves the
# broker's files as they were; adopt again. The files are looked at as a broker does when it starts (`LogLoader`).
#
# A topic that an earlier adoption made gets what is new: partitions that it has nothing of, and the records behind
# those that it has, where its log ends with the batch that is there in the broker's log too.


#: The log directories that have a partition: one, or as many as there are replicas.
Replicas = Mapping[PartitionName, Sequence[LogDir]]


@dataclass(frozen=True, slots=True)
class AdoptedTopic:
    """The outcome for a topic of the log directories, at `url`; `was_there`: an earlier adoption made it."""

    name: str
    url: str
    partitions: tuple[AdoptedPartition, ...] = ()
    notes: tuple[str, ...] = ()
    was_there: bool = False
    states: tuple[PartitionState, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    error: DistlogError | None = None

    @property
    def result(self) -> str:
        """The outcome in a word; the topic of an earlier adoption is extended, or unchanged."""
        if self.error is not None:
            return "failed"
        if self.was_there:
            return "extended" if self.partitions else "unchanged"
        return "adopted"


_Adoption = tuple[AdoptedTopic, CommitLog, Snapshot | None]


def adopt_topic(
    replicas: Replicas,
    topic: Storage,
    open_log: Callable[[Storage], CommitLog],
    config: TopicConfig,
    states: LeftStates,
    *,
    in_place: bool,
    dry_run: bool = False,
) -> _Adoption:
    """Adopt the partitions `replicas`, all of one topic, as the topic at `topic`; returns its snapshot too."""
    log, name = open_log(topic), paths.check_topic_name(paths.last_part(topic.url.rstrip("/")))
    if in_place and parse_partition_folder(name) is not None:
        text = "a topic of this name cannot be adopted in place: its folder would look like a partition's; copy it"
        raise InvalidTopicError(text, topic=name)
    existing = _load(log)
    ends = {} if existing is None else {n: state.log_end_offset for n, state in enumerate(existing.partitions)}
    copies = _take(replicas, config, ends)
    # before anything is put in place
    topic_id = _topic_id(copies)
    partitions = [with_end_markers(_most_complete(each), states) for each in copies]
    if not topic.is_local:
        partitions = [with_names_of_contents(each) for each in partitions]
    is_linked = in_place and topic.is_local
    if existing is not None:
        if existing.dropped or existing.topic_id != topic_id:
            text = "there is another topic at this address, or there was: adopt to another address"
            if topic_id is None:
                text = "there is a topic at this address, and no partition.metadata tells whether it is the same: "
                text += "adopt to another address, all directories at once"
            raise TopicExistsError(text, url=topic.url)
        again = partial(adopt_topic, replicas, topic, open_log, config, states, in_place=in_place)
        return _grow(log, existing, topic, partitions, again, linked=is_linked, dry_run=dry_run)
    adopted = AdoptedTopic(name, topic.url, tuple(partitions), tuple(_notes(partitions)))
    if dry_run:
        return adopted, log, None
    if topic.is_local and (there := placed(topic, name, partitions)) and not is_marked(topic):
        text = "other files are where the topic's would be: adopt to another address, or delete them"
        raise StorageError(text, url=topic.url, file=there[0])
    with adopting(topic):
        # another adoption may have ended since
        if _load(log) is None:
            _place(topic, name, partitions, linked=is_linked)
            # on object storage it may do so now
            with suppress(TopicExistsError):
                snapshot = _commit(log, partitions, topic_id, config, _producer_batches(topic, partitions))
                end(topic)
                return adopted, log, snapshot
        end(topic)
    return adopt_topic(replicas, topic, open_log, config, states, in_place=in_place)


def _take(replicas: Replicas, config: TopicConfig, ends: Mapping[int, int]) -> list[list[AdoptedPartition]]:
    """The replicas of each partition, split where the topic ends; a damaged one is left out if there is another."""
    is_compacted = "compact" in config.cleanup_policy
    folders = [(name, log_dir) for name, log_dirs in replicas.items() for log_dir in log_dirs]

    def take(name: PartitionName, log_dir: LogDir) -> AdoptedPartition | CorruptionError:
        try:
            end, interval_bytes = ends.get(name.partition, 0), config.index_interval_bytes
            return take_partition(log_dir, name, interval_bytes, end, is_compacted=is_compacted)
        except CorruptionError as error:
            return error

    copies: dict[PartitionName, list[AdoptedPartition]] = {name: [] for name in replicas}
    damaged: dict[PartitionName, list[CorruptionError]] = {name: [] for name in replicas}
    for (name, _), result in zip(folders, in_parallel(lambda each: take(*each), folders), strict=True):
        if isinstance(result, CorruptionError):
            damaged[name].append(result)
        else:
            copies[name].append(result)
    for name, errors in damaged.items():
        if errors and not copies[name]:
            raise errors[0]
        notes = tuple(f"a replica was left out: {error}" for error in errors)
        copies[name] = [dataclasses.replace(each, notes=(*notes, *each.notes)) for each in copies[name]]
    return list(copies.values())


def _most_complete(replicas: Sequence[AdoptedPartition]) -> AdoptedPartition:
    """The replica with all that was committed; its notes say which one it is, and where another one knew more."""
    best = max(replicas, key=lambda each: each.completeness)
    if len(replicas) == 1:
        return best
    place, end_offset = best.folder.path(""), best.log_end_offset
    notes = [f"of {len(replicas)} replicas, that in {place} is taken, which ends at {end_offset}"]
    notes += [
        f"the replica in {each.folder.path('')} had committed records up to {each.high_watermark}: a leader without "
        "them was elected, or the directory of another replica is missing"
        for each in replicas
        if each is not best and each.high_watermark > end_offset
    ]
    return dataclasses.replace(best, notes=(*notes, *best.notes))


def _place(topic: Storage, name: str, partitions: Sequence[AdoptedPartition], *, linked: bool) -> None:
    """Put all files in place; on a disk instead of those that an adoption left that died, and none after an error."""
    if topic.is_local:
        topic.delete(placed(topic, name, partitions))
    try:
        for partition in partitions:
            place(topic, name, partition, linked=linked)
    except DistlogError:
        if topic.is_local:
            with suppress(StorageError):
                topic.delete(placed(topic, name, partitions))
                end(topic)
        raise


def _producer_batches(
    topic: Storage, partitions: Sequence[AdoptedPartition], states: Mapping[int, PartitionState] | None = None
) -> list[Action]:
    """The action that holds the producers; none on a local disk, where snapshots beside the logs hold them."""
    known = {number: state.log_end_offset if state.producers else 0 for number, state in (states or {}).items()}
    chosen = {} if topic.is_local_disk else {each.name.partition: each for each in partitions}
    # an entry becomes up to three
    most = MOST_PRODUCER_BATCHES // (3 * max(1, len(chosen)))
    by_partition = {number: each.producers(known.get(number, 0), most) for number, each in sorted(chosen.items())}
    batches = {number: each for number, each in by_partition.items() if each}
    return [ProducerBatches(batches)] if batches else []


def _commit(
    log: CommitLog,
    partitions: Sequence[AdoptedPartition],
    topic_id: str | None,
    config: TopicConfig,
    producers: Sequence[Action],
) -> Snapshot:
    contents: list[Action] = [*(action for partition in partitions for action in partition.actions()), *producers]
    count = max(partition.name.partition for partition in partitions) + 1
    return log.create(count, config, topic_id=topic_id, imported=contents)


def _grow(
    log: CommitLog,
    existing: Snapshot,
    topic: Storage,
    partitions: Sequence[AdoptedPartition],
    again: Callable[[], _Adoption],
    *,
    linked: bool,
    dry_run: bool,
) -> _Adoption:
    """Append what is new in the log directories to an adopted topic, in one commit; `again` retries."""
    adopted_ends = cache(partial(_adopted_ends, log, existing))
    states = {each.name.partition: _state(existing, each.name.partition) for each in partitions}
    parts = (_new_part(existing, states[each.name.partition], each, adopted_ends, topic.url) for each in partitions)
    new = [part for part in parts if part is not None]
    notes = []
    for part in new:
        first = states[part.name.partition].log_end_offset or part.log_start_offset
        what = f"the offsets from {first} to {part.log_end_offset}"
        is_empty = first == part.log_end_offset
        notes.append(f"partition {part.name.partition}: added{', without records' if is_empty else f' {what}'}")
    adopted = AdoptedTopic(
        existing.name, topic.url, tuple(new), (*notes, *_notes(new, len(existing.partitions))), was_there=True
    )
    if dry_run or not new:
        if not dry_run:
            end(topic)
        return adopted, log, existing
    for part in new:
        if linked and any(segment.position for segment in part.segments):
            text = "the broker has written on into files that it shares with the topic: adopt to another address"
            raise StorageError(text, url=topic.url, partition=part.name.partition)

    with adopting(topic):
        try:
            # another adoption may have ended since, and then these files are the topic's
            if is_unchanged := _is_unchanged(existing, log.load(include_dropped=True), states):
                if topic.is_local:
                    delete_targets(topic, existing.name, new)
                for part in new:
                    place(topic, existing.name, part, linked=linked)
                snapshot = _commit_adopted(topic, log, existing, new, states)
        finally:
            end(topic)
    return (adopted, log, snapshot) if is_unchanged else again()


def _is_unchanged(existing: Snapshot, head: Snapshot, states: Mapping[int, PartitionState]) -> bool:
    is_same = not head.dropped and head.topic_id == existing.topic_id
    return is_same and all(_state(head, number) == state for number, state in states.items())


def _commit_adopted(
    topic: Storage,
    log: CommitLog,
    existing: Snapshot,
    new: Sequence[AdoptedPartition],
    states: Mapping[int, PartitionState],
) -> Snapshot:
    with CommitRace(log, existing, "import") as race:
        for head in race:
            if not _is_unchanged(existing, head, states):
                text = "nothing was adopted: the topic was changed concurrently; adopt again"
                raise CommitConflictError(text, url=topic.url)
            count = max(part.name.partition for part in new) + 1
            actions: list[Action] = [SetPartitions(count)] if count > len(head.partitions) else []
            for part in new:
                is_empty = not states[part.name.partition].log_end_offset
                actions += part.actions() if is_empty else [Add(segment.info) for segment in part.segments]
            race.put([*actions, *_producer_batches(topic, new, states)])
    return race.after


def _state(snapshot: Snapshot, partition: int) -> PartitionState:
    return snapshot.partitions[partition] if partition < len(snapshot.partitions) else PartitionState()


def _new_part(
    existing: Snapshot,
    state: PartitionState,
    partition: AdoptedPartition,
    adopted_ends: Callable[[], Mapping[int, int]],
    url: str,
) -> AdoptedPartition | None:
    """The part of a partition that the topic lacks; None if none. Raises TopicExistsError if it does not fit."""
    number, topic_end = partition.name.partition, state.log_end_offset
    if not topic_end and state.active is None:
        return partition if partition.log_end_offset or number >= len(existing.partitions) else None
    last = partition.segments[-1].info if partition.segments else None
    if last is None or _is_same_end(state, last.next_offset, last.last_batch_crc):
        return None
    if partition.log_end_offset <= adopted_ends().get(number, 0):
        return None
    below = [segment for segment in partition.segments if segment.info.base_offset < topic_end]
    new = tuple(segment for segment in partition.segments if segment.info.base_offset >= topic_end)
    is_next = bool(new) and new[0].info.base_offset == topic_end and state.active is None
    is_same_log = not below or _is_same_end(state, below[-1].info.next_offset, below[-1].info.last_batch_crc)
    # where the commits of adoptions are deleted, a batch in both logs tells
    adopted_end = adopted_ends().get(number, topic_end if below else 0)
    if not (is_next and is_same_log and adopted_end == topic_end):
        text = (
            f"partition {number} has other records than the log directory, which ends at {partition.log_end_offset}"
        )
        more = "they were appended, or rewritten, since it was adopted: adopt to another address"
        raise TopicExistsError(f"{text}: {more}", url=url, partition=number, log_end_offset=topic_end)
    return dataclasses.replace(partition, segments=new)


def _is_same_end(state: PartitionState, next_offset: int, last_batch_crc: int) -> bool:
    """True if a segment of the topic ends there, with the batch of this checksum."""
    place = int(state.segments.next_offsets.searchsorted(next_offset))
    if place == len(state.segments) or last_batch_crc == UNKNOWN:
        return False
    segment = state.segments[place]
    return bool((segment.next_offset, segment.last_batch_crc) == (next_offset, last_batch_crc))


def _adopted_ends(log: CommitLog, existing: Snapshot) -> Mapping[int, int]:
    """Up to which offset each partition was adopted, as far as the commits tell that are kept."""
    ends = dict[int, int]()
    for commit in log.history():
        imported = (commit.topic_id, commit.operation) == (existing.topic_id, "import")
        for action in without_tables(commit.actions) if imported else ():
            if isinstance(action, Add):
                number, offset = action.segment.partition, action.segment.next_offset
            elif isinstance(action, SetLogStartOffset):
                number, offset = action.partition, action.offset
            else:
                continue
            ends[number] = max(ends.get(number, 0), offset)
    return ends


def _topic_id(copies: Iterable[Sequence[AdoptedPartition]]) -> str | None:
    """The id that all replicas of all partitions have; None if a broker gave them none."""
    every = [replica for replicas in copies for replica in replicas]
    topic_ids = {replica.topic_id for replica in every}
    if len(topic_ids) > 1:
        text = "by their partition.metadata, the partitions are of different topics of one name: adopt them apart"
        raise InvalidTopicError(text, topic=every[0].name.topic)
    (topic_id,) = topic_ids
    return None if topic_id is None else str(topic_id)


def _load(log: CommitLog) -> Snapshot | None:
    """The topic at the address, also one that was dropped; None if there is nothing."""
    try:
        return log.load(include_dropped=True)
    except TopicNotFoundError:
        return None


def _notes(partitions: Sequence[AdoptedPartition], existing: int = 0) -> list[str]:
    """Notes on `partitions`, and on those that a topic with so many `existing` ones gets beside them."""
    here = {partition.name.partition for partition in partitions}
    absent = sorted(set(range(existing, max(here, default=-1) + 1)) - here)
    of_each = (
        f"partition {partition.name.partition}: {note}" for partition in partitions for note in partition.notes
    )
    return [*(f"partition {number} is not in this directory: it is empty here" for number in absent), *of_each]


def by_topic(
    log_dirs: Sequence[LogDir], names: Iterable[PartitionName]
) -> dict[str, dict[PartitionName, list[LogDir]]]:
    """The partitions of each topic, with the log directories that have them."""
    topics = dict[str, dict[PartitionName, list[LogDir]]]()
    for name in sorted(set(names)):
        topics.setdefault(name.topic, {})[name] = [each for each in log_dirs if name in each.partitions]
    return topics
