"""Checks every checksum, batch, record, index entry and metadata invariant of a topic, and repairs what it can.

`verify` writes nothing. `rebuild_indexes` writes wrong index files again, from the logs. `repair` cuts active
segments where damage begins.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from distlog.core import paths
from distlog.core.arrays import table_of_rows
from distlog.core.commits import checkpoint
from distlog.core.commits.actions import Action, Add, Remove
from distlog.core.commits.commit_log import CommitRace, CurrentSnapshot
from distlog.core.commits.segment_table import OWN_FILE, UNDETERMINED_OFFSET, UNKNOWN, SegmentInfo
from distlog.core.commits.snapshot import Snapshot, apply
from distlog.core.commits.snapshot_loader import CommitFiles, SnapshotLoader
from distlog.core.config import TopicConfig
from distlog.core.display import Displayable, counted
from distlog.core.errors import (
    CorruptionError,
    CorruptMetadataError,
    CorruptRecordError,
    DistlogError,
    SnapshotTooOldError,
)
from distlog.core.format.indexes import TRANSACTION_ENTRY, AbortedTransaction, IndexBytes, encode_transactions
from distlog.core.log.active_partition import ActivePartition, TruncatedTail
from distlog.core.log.live_snapshot import damage_of_tail, has_known_end, with_tails, without_tails
from distlog.core.maintain.executor import Executor, LocalExecutor
from distlog.core.maintain.group_rewrite import MAX_SEGMENTS, Result
from distlog.core.maintain.vacuum import is_sound
from distlog.core.maintain.verify_segment import (
    CHECKS,
    Anomaly,
    AnomalyWord,
    IndexFile,
    SegmentVerdict,
    State,
    find_indexes,
    is_contiguous,
    verify_segment,
)
from distlog.core.read.consumer_group import group_states
from distlog.core.read.kafka_offsets import all_kafka_positions
from distlog.core.segments.producer_states import SegmentTransactions, transactions_of
from distlog.core.segments.segment_parts import INDEX_FIELDS, index_checksum, index_fields_of, index_size, part_of
from distlog.core.segments.segment_reader import SegmentReader, TopicHandle, whole_log
from distlog.core.segments.segment_state import LogDescription
from distlog.core.storage.storage import Storage


def verify(
    handle: TopicHandle,
    snapshot: Snapshot,
    executor: Executor | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Check the whole topic at `snapshot`, concurrently with appends and maintenance."""
    committed = without_tails(snapshot)  # without the records of active segments, which no commit has
    topic_anomalies = [*verify_commits(handle.storage, committed), *verify_table(snapshot)]
    for partition in range(len(committed.partitions)):
        error = damage_of_tail(handle, committed, partition)
        if error is not None:
            topic_anomalies.append(dataclasses.replace(Anomaly.of("lost_records", error), partition=partition))
    work = partial(verify_segment, handle.reader)
    verdicts = list(_map_segments(handle, snapshot, work, executor, on_progress))
    verdicts = with_missing_transactions(handle.reader, snapshot, verdicts)
    if not all(verdict.ok for verdict in verdicts):
        # check again at the head, since segments may have been removed, and indexes rebuilt, concurrently
        head = with_tails(handle, handle.log.refresh(committed), only_sound=True)
        rechecked = (_recheck(handle.reader, head, verdict) for verdict in verdicts)
        verdicts = [_without_old_indexes(handle, head, verdict) for verdict in rechecked if verdict is not None]
    verdicts = list(_with_gaps(snapshot, verdicts))
    warnings = tuple(_offsets_past_ends(handle, snapshot))
    return VerifyReport(snapshot.version, tuple(verdicts), tuple(topic_anomalies), warnings)


#: Called with the records and the log bytes of each finished segment.
OnProgress = Callable[[int, int], object]


def _map_segments(
    handle: TopicHandle,
    snapshot: Snapshot,
    work: Callable[[SegmentInfo], Result],
    executor: Executor | None,
    on_progress: OnProgress | None,
) -> Iterator[Result]:
    """Yield the result of `work` for each live segment, by partition and base offset."""
    segments = [segment for state in snapshot.partitions for segment in state.segments]
    results = (executor or LocalExecutor(handle.storage)).map(work, segments)
    for segment, result in zip(segments, results, strict=True):
        if on_progress:
            on_progress(segment.record_count, segment.log_bytes)
        yield result


_log = logging.getLogger("distlog")
_GROUP = 64  # commits that are read at the same time


def verify_commits(storage: Storage, snapshot: Snapshot) -> Iterator[Anomaly]:
    """Yield the anomalies of the commits and checkpoints up to `snapshot`, or up to a missing or damaged commit."""
    checkpoints: dict[int, list[str]] = {}
    for file in storage.list(paths.COMMITS_DIR):
        number = paths.parse_checkpoint_file(file.name)
        if number is not None:
            checkpoints.setdefault(number, []).append(file.name)
    state: Snapshot | None = None
    if snapshot.log_floor:
        state = _oldest_checkpoint(storage, checkpoints, snapshot)
        if state is None:
            text = "there is no sound checkpoint that replaces the deleted commits: restore one from a copy"
            yield Anomaly("missing_commit", text)
            return
    first = 0 if state is None else state.version + 1
    try:
        last = snapshot.version
        groups = CommitFiles(storage).follow(first, end=last + 1, known_version=last, first_group=_GROUP)
        for commit in chain.from_iterable(groups):
            state = apply(state, commit)
            for name in checkpoints.pop(state.version, ()):
                yield from _compare(storage, name, state)
    except CorruptMetadataError as error:
        version = first if state is None else state.version + 1
        if _must_exist(storage, version):
            yield Anomaly.of(_commit_word(storage, version), error)
        return
    if state != snapshot:
        yield Anomaly("metadata_mismatch", "the commits do not give the opened state: restore them from a copy")


def _oldest_checkpoint(storage: Storage, checkpoints: dict[int, list[str]], snapshot: Snapshot) -> Snapshot | None:
    """Read the oldest sound checkpoint between the log retention horizon and `snapshot`; None without one."""
    versions = (version for version in checkpoints if snapshot.log_floor <= version <= snapshot.version)
    for version in sorted(versions):
        for name in checkpoints[version]:
            if is_sound(storage, name):
                with suppress(CorruptMetadataError, FileNotFoundError):
                    return checkpoint.read(storage, name)
    return None


def _must_exist(storage: Storage, version: int) -> bool:
    """False if vacuum may have deleted the commit of `version` concurrently."""
    try:
        head = SnapshotLoader(storage).load()
    except DistlogError:
        return True
    return head is None or version >= head.log_floor


def _compare(storage: Storage, name: str, state: Snapshot) -> Iterator[Anomaly]:
    try:
        is_same = checkpoint.read(storage, name) == state
    except FileNotFoundError:
        return  # vacuum deleted it
    except CorruptMetadataError as error:
        yield dataclasses.replace(Anomaly.of("checkpoint_mismatch", error), file=name)
        return
    if not is_same:
        yield Anomaly("checkpoint_mismatch", "the checkpoint differs from the commits: delete the file", name)


def _commit_word(storage: Storage, version: int) -> AnomalyWord:
    try:
        storage.size(paths.commit_file(version))
    except FileNotFoundError:
        return "missing_commit"
    return "corrupt_commit"


def verify_table(snapshot: Snapshot) -> Iterator[Anomaly]:
    """Yield an anomaly for offsets that two segments of a partition hold, or that no segment holds."""
    for partition, state in enumerate(snapshot.partitions):
        compacted_ends = state.segments.next_offsets[state.segments.array("compacted")]
        # compaction leaves gaps below the first dirty offset, or after a restore, below a compacted segment's end
        gaps_end = max(state.first_dirty_offset, int(compacted_ends.max(initial=0)))
        starts, ends = state.segments.base_offsets.tolist(), state.segments.next_offsets.tolist()
        log_start = min([state.log_start_offset, *starts[:1]])
        for end, next_start in zip([log_start, *ends], [*starts, state.log_end_offset], strict=True):
            if next_start < end:
                message = f"two segments hold the offsets from {next_start} to {end}"
                yield Anomaly("offset_overlap", message, partition=partition, offset=next_start)
            elif next_start > max(end, gaps_end):
                message = f"no segment holds the offsets from {end} to {next_start}"
                yield Anomaly("offset_gap", message, partition=partition, offset=end)


_VERDICT_FIELDS = ("partition", "base_offset", "next_offset", "log_bytes")
_VERDICT_COLUMNS = pa.schema(
    [
        *((name, pa.int64()) for name in (*_VERDICT_FIELDS, "batches", "records")),
        ("ok", pa.bool_()),
        ("anomalies", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport(Displayable):
    """The anomalies of each segment, of the commits and checkpoints, and of the order of the segments."""

    version: int
    segments: tuple[SegmentVerdict, ...]
    topic_anomalies: tuple[Anomaly, ...]
    #: Findings that need not be errors.
    warnings: tuple[Anomaly, ...] = ()

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.anomalies

    @property
    def anomalies(self) -> tuple[Anomaly, ...]:
        """All anomalies, the topic's own first."""
        return (*self.topic_anomalies, *(anomaly for verdict in self.segments for anomaly in verdict.anomalies))

    def __str__(self) -> str:
        size = sum(verdict.segment.log_bytes for verdict in self.segments)
        records = sum(verdict.records for verdict in self.segments)
        anomalies = counted(len(self.anomalies), "anomaly", "anomalies") if self.anomalies else "nothing wrong"
        read = (len(self.segments), "segment"), (size, "byte"), (records, "record")
        warnings = "".join(f"; {warning}" for warning in self.warnings)
        return f"verified {', '.join(counted(*count) for count in read)}: {anomalies}{warnings}"

    def to_table(self) -> pa.Table:
        """Return a row per segment, by partition and base offset; its anomalies as text."""
        return table_of_rows([_verdict_row(verdict) for verdict in self.segments], _VERDICT_COLUMNS)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals, and every anomaly."""
        return {
            "version": self.version,
            "ok": self.ok,
            "segments": len(self.segments),
            "bytes": sum(verdict.segment.log_bytes for verdict in self.segments),
            "batches": sum(verdict.batches for verdict in self.segments),
            "records": sum(verdict.records for verdict in self.segments),
            "anomalies": [anomaly.to_dict() for anomaly in self.anomalies],
            "warnings": [warning.to_dict() for warning in self.warnings],
        }


def _verdict_row(verdict: SegmentVerdict) -> dict[str, Any]:
    return {
        **{name: getattr(verdict.segment, name) for name in _VERDICT_FIELDS},
        **{name: getattr(verdict, name) for name in ("batches", "records", "ok")},
        "anomalies": [str(anomaly) for anomaly in verdict.anomalies],
    }


def _with_gaps(snapshot: Snapshot, verdicts: Sequence[SegmentVerdict]) -> Iterator[SegmentVerdict]:
    """Add anomalies for offsets that no batch holds at the end of a broker's segment; LogStats checks other ends."""
    is_compacted = "compact" in snapshot.config.cleanup_policy
    cleaned = {verdict.segment.partition for verdict in verdicts if verdict.is_sparse or verdict.segment.compacted}
    for verdict in verdicts:
        segment, end = verdict.segment, verdict.end_offset
        clean_end = snapshot.partitions[segment.partition].first_dirty_offset  # compaction leaves gaps below it
        needs_no_check = is_contiguous(segment) or is_compacted or segment.partition in cleaned
        if needs_no_check or end < 0 or max(end, clean_end) >= segment.next_offset:
            yield verdict
        else:
            message = f"no batch holds the offsets from {end} to {segment.next_offset}: a segment is missing"
            gap = Anomaly("offset_gap", message, partition=segment.partition, offset=end)
            yield dataclasses.replace(verdict, anomalies=(*verdict.anomalies, gap))


def _without_old_indexes(handle: TopicHandle, head: Snapshot, verdict: SegmentVerdict) -> SegmentVerdict:
    """Drop anomalies of an active segment's indexes if no page of this boot has its end: an append rebuilds them."""
    segment = verdict.segment
    if not segment.is_active or has_known_end(handle, head, segment.partition):
        return verdict
    names = tuple(part_of(handle.name, segment, suffix).name for suffix in CHECKS)
    remaining = tuple(anomaly for anomaly in verdict.anomalies if anomaly.file not in names)
    return dataclasses.replace(verdict, anomalies=remaining)


def _offsets_past_ends(handle: TopicHandle, snapshot: Snapshot) -> Iterator[Anomaly]:
    """Yield an anomaly for each committed offset past a log's end, of distlog's groups and of Kafka clients."""
    groups = [(group.group, group.positions) for group in group_states(handle.storage, snapshot.topic_id)]
    for name, positions in (*groups, *_client_groups(handle, snapshot)):
        for partition, state in enumerate(snapshot.partitions):
            position = positions.get(partition)
            if position is not None and position > state.log_end_offset:
                end = state.log_end_offset
                message = f"the log ends at {end}, below the committed offset of group {name}: records may be lost"
                yield Anomaly("end_below_group", message, partition=partition, offset=position)


def _client_groups(handle: TopicHandle, snapshot: Snapshot) -> Iterable[tuple[str, Mapping[int, int]]]:
    """Read the groups of Kafka clients and their committed offsets; none if they cannot be read."""
    try:
        return all_kafka_positions(handle, since_ms=snapshot.replaced_ms).items()
    except DistlogError as error:
        _log.warning("the committed offsets of Kafka clients are not compared with the logs: %s", error)
        return ()


def _recheck(reader: SegmentReader, head: Snapshot, verdict: SegmentVerdict) -> SegmentVerdict | None:
    """Check the segment again if `head` has changed it. Returns None if a removal explains why it is missing."""
    if verdict.ok:
        return verdict
    live, is_active = find_live(head, verdict.segment), verdict.segment.is_active
    if live is None and (is_active or "missing_segment" in {anomaly.word for anomaly in verdict.anomalies}):
        return None
    return verdict if live in (None, verdict.segment) else verify_segment(reader, live)


def repair(handle: TopicHandle, snapshot: Snapshot, *, dry_run: bool = False) -> tuple[RepairReport, Snapshot]:
    """Cut and seal each active segment that refuses appends, and recover other active segments.

    Returns the report and the new state. Unlike an append, a repair may cut acknowledged records, whose offsets are
    assigned again: restore the file instead if you can. Sealed segments are not repaired. Raises StorageError if a
    lock is not free.
    """
    snapshots = CurrentSnapshot(handle.log, handle.log.refresh(snapshot))
    truncated_tails = list[TruncatedTail]()
    for number, state in enumerate(snapshots.snapshot.partitions):
        if state.active is None:
            continue
        partition = ActivePartition(handle, number, snapshots)
        try:
            with partition.held():
                tail = partition.repair(dry_run=dry_run)
        finally:
            partition.close()
        if tail is not None:
            truncated_tails.append(tail)
    return RepairReport(snapshots.snapshot.version, tuple(truncated_tails), dry_run), snapshots.snapshot


_NUMBERS = ("partition", "start_offset", "end_offset", "position", "bytes")
_TAIL_SCHEMA = pa.schema([*((name, pa.int64()) for name in _NUMBERS), ("file", pa.string()), ("reason", pa.string())])


@dataclass(frozen=True, slots=True, repr=False)
class RepairReport(Displayable):
    """The ends that a repair cut off, or would with `dry_run`, of partitions that refuse appends."""

    version: int
    partitions: tuple[TruncatedTail, ...]
    dry_run: bool

    def __str__(self) -> str:
        if not self.partitions:
            return "nothing to repair: every active segment takes appends"
        verb = "would cut" if self.dry_run else "cut"
        size = sum(tail.size for tail in self.partitions)
        offsets = sum(max(tail.end_offset - tail.start_offset, 0) for tail in self.partitions)
        return f"{verb} {counted(len(self.partitions), 'partition')}, {counted(size, 'byte')}, {offsets:,} offsets"

    def to_table(self) -> pa.Table:
        """Return a row per partition: the lost offsets, the position and size of the cut, and the reason."""
        return table_of_rows([_tail_row(tail) for tail in self.partitions], _TAIL_SCHEMA)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals, and the rows of the table."""
        rows = [_tail_row(tail) for tail in self.partitions]
        summary = {"version": self.version, "dry_run": self.dry_run}
        return {**summary, "bytes": sum(row["bytes"] for row in rows), "partitions": rows}


def _tail_row(tail: TruncatedTail) -> dict[str, Any]:
    numbers = {name: getattr(tail, "size" if name == "bytes" else name) for name in _NUMBERS}
    return {**numbers, "file": tail.file, "reason": tail.reason.message}


_REBUILD_FIELDS = {"partition": pa.int64(), "base_offset": pa.int64(), "stem": pa.string(), "log_bytes": pa.int64()}
#: The report's columns with the former states of index files, by suffix.
_STATE_COLUMNS = {
    ".index": "offset_index",
    ".timeindex": "time_index",
    ".txnindex": "transaction_index",
    ".keyindex": "key_index",
}
_REBUILD_COLUMNS = pa.schema(
    {
        **_REBUILD_FIELDS,
        **dict.fromkeys(_STATE_COLUMNS.values(), pa.string()),
        "files_written": pa.int64(),
        "bytes_written": pa.int64(),
        "error": pa.string(),
    }
)


@dataclass(frozen=True, slots=True)
class SegmentRebuild:
    """The rebuild of one segment: the former states and the new sizes of its index files, both by suffix.

    `fields` are the right values of SegmentInfo's fields, changed or not. With an `error` the log is damaged, and
    nothing is written.
    """

    segment: SegmentInfo
    states: Mapping[str, State]
    written: Mapping[str, int]
    fields: Mapping[str, int]
    error: str | None = None

    @property
    def ok(self) -> bool:
        """True if all indexes are right now."""
        # a sound log gives the other indexes; a transaction index also needs the logs of earlier segments
        return self.error is None and (self.states[".txnindex"] == "fine" or ".txnindex" in self.written)

    def row(self) -> dict[str, Any]:
        return {
            **{name: getattr(self.segment, name) for name in _REBUILD_FIELDS},
            **{name: self.states[suffix] for suffix, name in _STATE_COLUMNS.items()},
            "files_written": len(self.written),
            "bytes_written": sum(self.written.values()),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, repr=False)
class RebuildReport(Displayable):
    """The rebuild of every segment of a topic; with `dry_run`, `written` is what would be written."""

    version: int
    segments: tuple[SegmentRebuild, ...]
    dry_run: bool

    @property
    def ok(self) -> bool:
        """True if all indexes of the topic are right now."""
        return all(segment.ok for segment in self.segments)

    @property
    def rebuilt(self) -> tuple[SegmentRebuild, ...]:
        """The segments that got a new index file."""
        return tuple(segment for segment in self.segments if segment.written)

    def __str__(self) -> str:
        size = sum(sum(segment.written.values()) for segment in self.rebuilt)
        verb = "would rebuild" if self.dry_run else "rebuilt"
        damaged = sum(not segment.ok for segment in self.segments)
        failed_text = f"; {damaged:,} cannot be rebuilt" if damaged else ""
        segments = f"{len(self.rebuilt):,} of {counted(len(self.segments), 'segment')}"
        return f"{verb} the indexes of {segments}, {counted(size, 'byte')}{failed_text}"

    def to_table(self) -> pa.Table:
        """Return a row per segment, by partition and base offset."""
        return table_of_rows([segment.row() for segment in self.segments], _REBUILD_COLUMNS)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals, and a row for each segment that was not fine."""
        rows = self.to_table().to_pylist()
        shown = [row for row, segment in zip(rows, self.segments, strict=True) if segment.written or not segment.ok]
        return {
            "version": self.version,
            "dry_run": self.dry_run,
            "ok": self.ok,
            "segments_checked": len(rows),
            "segments_rebuilt": len(self.rebuilt),
            "bytes_checked": sum(row["log_bytes"] for row in rows),
            "bytes_written": sum(row["bytes_written"] for row in rows),
            "segments": shown,
        }


_TXN_SUFFIX = ".txnindex"


def complete_index(present: bytes, aborted: Iterable[AbortedTransaction]) -> bytes:
    """Return `present`, a transaction index's sound content, or a complete one if it lacks some of `aborted`."""
    aborted = list(aborted)
    entries = np.frombuffer(present, TRANSACTION_ENTRY, len(present) // TRANSACTION_ENTRY.itemsize)
    present_ids = set(zip(entries["producer_id"].tolist(), entries["last_offset"].tolist(), strict=True))
    if present_ids.issuperset((transaction.producer_id, transaction.last_offset) for transaction in aborted):
        return present
    return encode_transactions(aborted)


def rebuild_transactions(
    reader: SegmentReader, snapshot: Snapshot, rebuilt: Sequence[SegmentRebuild], *, dry_run: bool
) -> list[SegmentRebuild]:
    """Rebuild transaction indexes and first unstable offsets, which depend on earlier segments."""
    by_segment = {(segment.segment.partition, segment.segment.stem): segment for segment in rebuilt}
    sound_counts = Counter(segment.segment.partition for segment in rebuilt if not segment.error)
    for number, state in enumerate(snapshot.partitions):
        # only if all logs of the partition are sound: a transaction may begin in any earlier segment
        if sound_counts[number] == len(state.segments):
            for transactions in transactions_of(reader, state):
                key = number, transactions.segment.stem
                by_segment[key] = _rebuild_transactions_of(reader, by_segment[key], transactions, dry_run=dry_run)
    return list(by_segment.values())


def _rebuild_transactions_of(
    reader: SegmentReader, rebuilt: SegmentRebuild, transactions: SegmentTransactions, *, dry_run: bool
) -> SegmentRebuild:
    segment, fields = rebuilt.segment, dict(rebuilt.fields)
    if segment.first_unstable_offset == UNDETERMINED_OFFSET:
        fields["first_unstable_offset"] = transactions.first_unstable_offset
    is_fine = rebuilt.states[_TXN_SUFFIX] == "fine"
    present = _transaction_index(reader, segment) if is_fine else b""
    complete = complete_index(present, _stored_transactions(transactions))
    if is_fine and complete == present:
        return dataclasses.replace(rebuilt, fields=fields)
    if complete and not dry_run:
        reader.storage.put(reader.name(segment, _TXN_SUFFIX), complete)
        reader.forget_indexes(segment)
    fields |= {"txn_index_bytes": len(complete), "txn_index_crc32c": crc32c(complete)}
    states = {**rebuilt.states, _TXN_SUFFIX: "stale" if is_fine else rebuilt.states[_TXN_SUFFIX]}
    written = {**rebuilt.written, _TXN_SUFFIX: len(complete)}
    return dataclasses.replace(rebuilt, states=states, fields=fields, written=written)


def _transaction_index(reader: SegmentReader, segment: SegmentInfo) -> bytes:
    size = index_size(segment, _TXN_SUFFIX)
    return reader.storage.read(reader.name(segment, _TXN_SUFFIX), 0, size) if size else b""


def _stored_transactions(transactions: SegmentTransactions) -> Iterator[AbortedTransaction]:
    """Yield the aborted transactions at the offsets that the segment's files have."""
    return (transaction.moved(-transactions.segment.shift) for transaction in transactions.aborted)


def with_missing_transactions(
    reader: SegmentReader, snapshot: Snapshot, verdicts: Sequence[SegmentVerdict]
) -> list[SegmentVerdict]:
    """Return the verdicts, with an anomaly for each transaction index that lacks aborted transactions of its log."""
    by_segment = {(verdict.segment.partition, verdict.segment.stem): verdict for verdict in verdicts}
    unsound = {verdict.segment.partition for verdict in verdicts if not verdict.ok}
    for number, state in enumerate(snapshot.partitions):
        if number not in unsound:
            # files may be replaced and vacuumed concurrently
            with suppress(CorruptionError, SnapshotTooOldError, FileNotFoundError):
                for transactions in transactions_of(reader, state):
                    key = number, transactions.segment.stem
                    by_segment[key] = _check_index(reader, by_segment[key], transactions)
    return list(by_segment.values())


def _check_index(reader: SegmentReader, verdict: SegmentVerdict, transactions: SegmentTransactions) -> SegmentVerdict:
    present = _transaction_index(reader, transactions.segment)
    if complete_index(present, _stored_transactions(transactions)) == present:
        return verdict
    message = "aborted transactions are missing from the transaction index: rebuild the index"
    file, partition = reader.name(transactions.segment, _TXN_SUFFIX), transactions.segment.partition
    return dataclasses.replace(verdict, anomalies=(Anomaly("index_mismatch", message, file, partition),))


# A right index does not change without `force`, even if the topic has another `index.interval.bytes` now. Each file
# is replaced atomically, under its old name; an index in a bundle gets a file of its own. Then a commit records the
# new sizes, checksums and positions. Before that commit, readers find an unexpected checksum, and scan the log.
def rebuild_segment(
    reader: SegmentReader, segment: SegmentInfo, config: TopicConfig, *, force: bool = False, dry_run: bool = False
) -> SegmentRebuild:
    """Write the index files of the segment that are wrong, from its log."""
    indexes = find_indexes(reader, segment)
    # a key index stays even if the topic's new segments get none
    has_keys = config.key_index_enable or segment.key_index_bytes > 0
    log = LogDescription(segment.stored_base_offset, interval_bytes=config.index_interval_bytes, key_index=has_keys)
    try:
        position = 0
        # a time index has the times in the log, not the append time in the commit
        for chunk in whole_log(reader, dataclasses.replace(segment, append_time_ms=-1)):
            log.add(chunk.data, chunk.batches)
            for index_file in indexes:
                index_file.add(chunk.data, chunk.batches, position)
            position += len(chunk.data)
    except (CorruptRecordError, SnapshotTooOldError) as error:
        return SegmentRebuild(segment, {index.suffix: index.state for index in indexes}, {}, {}, str(error))
    files = log.finish()
    for index in indexes:
        index.finish()
        # the index is missing if it is empty by the metadata, but the log has entries for it
        if index.state == "fine" and not index.data and files.get(index.suffix):
            index.state = "missing"
    by_suffix = {index.suffix: index for index in indexes}
    written = {
        suffix: data
        for suffix, data in files.items()
        if (force or by_suffix[suffix].state != "fine") and _must_be_written(segment, by_suffix[suffix], data)
    }
    index_fields = index_fields_of({suffix: written.get(suffix, by_suffix[suffix].data) for suffix in files})
    if ".keyindex" in written:
        index_fields["key_count"] = log.key_count
    if log.state.batches:
        index_fields |= {"first_batch_crc": log.state.first_batch_crc, "last_batch_crc": log.state.last_batch_crc}
    # a written index is a file, even if the old one was in a bundle
    fields = [(suffix, field) for suffix in files if (field := INDEX_FIELDS[suffix].position)]
    index_fields |= {field: OWN_FILE if suffix in written else getattr(segment, field) for suffix, field in fields}
    if not dry_run:
        rebuilt = dataclasses.replace(segment, **index_fields)
        # an empty index has no file
        reader.storage.put_many({reader.name(rebuilt, suffix): data for suffix, data in written.items() if data})
        reader.forget_indexes(segment)
    sizes = {suffix: len(data) for suffix, data in written.items()}
    return SegmentRebuild(segment, {index.suffix: index.state for index in indexes}, sizes, index_fields)


def _must_be_written(segment: SegmentInfo, index: IndexFile, data: IndexBytes) -> bool:
    """Whether the file, or its size or checksum in the metadata, differs from the right content `data`."""
    recorded = index_size(segment, index.suffix), index_checksum(segment, index.suffix)
    return index.data != data or recorded not in ((len(data), crc32c(data)), (len(data), UNKNOWN))


def commit_index_fields(handle: TopicHandle, snapshot: Snapshot, rebuilt: Sequence[SegmentRebuild]) -> Snapshot:
    """Commit the changed fields of the segments that are still live."""
    after = snapshot
    for start in range(0, max(len(rebuilt), 1), MAX_SEGMENTS):
        with CommitRace(handle.log, after, "rebuild") as race:
            for head in race:  # again with the newest state if another commit was first
                segments = rebuilt[start : start + MAX_SEGMENTS]
                actions = [action for segment in segments for action in _field_changes(head, segment)]
                if not actions:
                    break
                race.put(actions)
        after = race.snapshot
    return after


def _field_changes(snapshot: Snapshot, rebuilt: SegmentRebuild) -> list[Action]:
    live = find_live(snapshot, rebuilt.segment)
    if live is None:
        return []
    changed = dataclasses.replace(live, **rebuilt.fields)  # type: ignore[arg-type]
    return [] if changed == live else [Remove(live.partition, live.stem), Add(changed)]


def find_live(snapshot: Snapshot, segment: SegmentInfo) -> SegmentInfo | None:
    """Return the segment's entry in `snapshot`; None if it is no longer live."""
    table = snapshot.partitions[segment.partition].segments
    row = table.find(segment.base_offset)
    return table[row] if row < len(table) and table[row].stem == segment.stem else None


def rebuild_indexes(
    handle: TopicHandle,
    snapshot: Snapshot,
    executor: Executor | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> tuple[RebuildReport, Snapshot]:
    """Rebuild the wrong index files of a topic, or with `force` all. Returns the report and the new state."""
    after = snapshot = handle.log.refresh(snapshot)
    work = partial(rebuild_segment, handle.reader, config=snapshot.config, force=force, dry_run=dry_run)
    segments = list(_map_segments(handle, snapshot, work, executor, on_progress))
    rebuilt = rebuild_transactions(handle.reader, snapshot, segments, dry_run=dry_run)
    if not dry_run:
        after = commit_index_fields(handle, snapshot, rebuilt)
    if any(segment.error for segment in rebuilt):
        after = handle.log.refresh(after)  # a segment that was removed and vacuumed concurrently is not damaged
        rebuilt = [segment for segment in rebuilt if not segment.error or find_live(after, segment.segment)]
    return RebuildReport(after.version, tuple(rebuilt), dry_run), after
