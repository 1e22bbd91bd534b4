"""Verify: checks every checksum, batch, record, index entry and metadata invariant of a topic. Writes nothing."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import table_of_rows
from distlog.core.commits import checkpoint
from distlog.core.commits.snapshot import PartitionState, Snapshot, apply
from distlog.core.commits.snapshot_loader import CommitFiles, SnapshotLoader
from distlog.core.display import Shown, counted
from distlog.core.errors import CorruptMetadataError, DistlogError
from distlog.core.log.live_snapshot import damage_of_tail, is_counted, with_sound_tails, without_tails
from distlog.core.maintain.executor import Executor, LocalExecutor, OnProgress, ignore_progress, map_segments
from distlog.core.maintain.log_floor import is_sound
from distlog.core.maintain.repair import live_segment, with_missing_transactions
from distlog.core.maintain.verify_segment import (
    CHECKS,
    Anomaly,
    SegmentVerdict,
    Word,
    is_contiguous,
    verify_segment,
)
from distlog.core.read.consumer_offsets import all_kafka_positions
from distlog.core.read.group_log import group_states
from distlog.core.segments.segment_parts import part_of
from distlog.core.segments.segment_reader import SegmentReader, TopicHandle
from distlog.core.storage.storage import Storage


def verify(
    handle: TopicHandle,
    snapshot: Snapshot,
    executor: Executor | None = None,
    *,
    on_progress: OnProgress = ignore_progress,
) -> VerifyReport:
    """Check the whole topic at `snapshot`, concurrently with appends and maintenance.

    Active segments are checked up to their ends in it; their offset and time indexes by checksums alone, since these
    lack the last entries. Raises StorageError if the storage does not answer, TopicNotFoundError if the topic was
    dropped.
    """
    committed = without_tails(snapshot)
    topic = [*verify_commits(handle.storage, committed), *verify_table(snapshot)]
    # active segments that refuse appends
    for partition in range(len(committed.partitions)):
        error = damage_of_tail(handle, committed, partition)
        if error is not None:
            topic.append(dataclasses.replace(Anomaly.of("lost_records", error), partition=partition))
    work = partial(verify_segment, handle.reader)
    executor = executor or LocalExecutor(handle.storage)
    verdicts = list(map_segments(executor, work, snapshot, on_progress))
    verdicts = with_missing_transactions(handle.reader, snapshot, verdicts)
    if not all(verdict.ok for verdict in verdicts):
        # a segment that was removed and vacuumed concurrently is not missing; rebuilt indexes are checked again
        head = with_sound_tails(handle, handle.log.refresh(committed))
        settled = (_recheck(handle.reader, head, verdict) for verdict in verdicts)
        verdicts = [_without_old_indexes(handle, head, verdict) for verdict in settled if verdict is not None]
    verdicts = list(_with_gaps(snapshot, verdicts))
    return VerifyReport(snapshot.version, tuple(verdicts), tuple(topic), tuple(_overtaken(handle, snapshot)))


_log = logging.getLogger("distlog")
#: Commits that are read at the same time.
_GROUP = 64


def verify_commits(storage: Storage, snapshot: Snapshot) -> Iterator[Anomaly]:
    """The anomalies of the commits and checkpoints up to `snapshot`, and of `snapshot` itself.

    The oldest sound checkpoint replaces deleted commits. The check ends at a missing or damaged commit, after which
    the state is unknown.
    """
    checkpoints: dict[int, list[str]] = {}
    for file in storage.list(paths.COMMITS_DIR):
        number = paths.parse_checkpoint_file(file.name)
        if number is not None:
            checkpoints.setdefault(number, []).append(file.name)
    state: Snapshot | None = None
    if snapshot.log_floor:
        state = _oldest(storage, checkpoints, snapshot)
        if state is None:
            yield Anomaly("missing_commit", "there is no sound checkpoint that replaces the deleted commits")
            return
    first = 0 if state is None else state.version + 1
    try:
        last = snapshot.version
        groups = CommitFiles(storage).follow(first, end=last + 1, existing=last, group=_GROUP)
        for commit in chain.from_iterable(groups):
            state = apply(state, commit)
            for name in checkpoints.pop(state.version, ()):
                yield from _compare(storage, name, state)
    except CorruptMetadataError as error:
        version = first if state is None else state.version + 1
        if not _is_kept(storage, version):
            return  # vacuum deleted it
        yield Anomaly.of(_word(storage, version), error)
        return
    if state != snapshot:
        yield Anomaly("metadata_mismatch", "the commits give another state than the one that was opened")


def _oldest(storage: Storage, checkpoints: dict[int, list[str]], snapshot: Snapshot) -> Snapshot | None:
    """The oldest sound checkpoint between the log retention horizon and `snapshot`."""
    for version in sorted(checkpoints):
        for name in checkpoints[version] if snapshot.log_floor <= version <= snapshot.version else ():
            if is_sound(storage, name):
                with suppress(CorruptMetadataError, FileNotFoundError):
                    return checkpoint.read(storage, name)
    return None


def _is_kept(storage: Storage, version: int) -> bool:
    """True if the commit of `version` must exist."""
    try:
        head = SnapshotLoader(storage).load()
    except DistlogError:
        return True
    return head is None or version >= head.log_floor


def _compare(storage: Storage, name: str, state: Snapshot) -> Iterator[Anomaly]:
    try:
        same = checkpoint.read(storage, name) == state
    except FileNotFoundError:
        return  # vacuum deleted it
    except CorruptMetadataError as error:
        yield dataclasses.replace(Anomaly.of("checkpoint_mismatch", error), file=name)
        return
    if not same:
        yield Anomaly("checkpoint_mismatch", "the checkpoint differs from the commits: delete it", name)


def _word(storage: Storage, version: int) -> Word:
    try:
        storage.size(paths.commit_file(version))
    except FileNotFoundError:
        return "missing_commit"
    return "corrupt_commit"


def verify_table(snapshot: Snapshot) -> Iterator[Anomaly]:
    """The offsets that two segments of a partition hold, and those that no segment holds.

    Gaps are right below the first dirty offset, and before segments that compaction wrote, even if a restore made
    them dirty again.
    """
    for partition, state in enumerate(snapshot.partitions):
        written = state.segments.next_offsets[state.segments.array("compacted")]
        clean = max([state.first_dirty_offset, *written[-1:].tolist()])
        for end, start in _seams(state):
            if start < end:
                message = f"two segments hold the offsets from {start} to {end}"
                yield Anomaly("offset_overlap", message, partition=partition, offset=start)
            elif start > max(end, clean):
                message = f"no segment holds the offsets from {end} to {start}"
                yield Anomaly("offset_gap", message, partition=partition, offset=end)


def _seams(state: PartitionState) -> list[tuple[int, int]]:
    """(end of a segment, begin of the next one) of all segments."""
    starts, ends = state.segments.base_offsets.tolist(), state.segments.next_offsets.tolist()
    first = min([state.log_start_offset, *starts[:1]])
    return list(zip([first, *ends], [*starts, state.log_end_offset], strict=True))


_NAMES = ("partition", "base_offset", "next_offset", "log_bytes")
_TABLE = pa.schema(
    [
        *((name, pa.int64()) for name in (*_NAMES, "batches", "records")),
        ("ok", pa.bool_()),
        ("anomalies", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport(Shown):
    """The anomalies of each segment, of the commits, checkpoints and the order of the segments."""

    version: int
    segments: tuple[SegmentVerdict, ...]
    topic_anomalies: tuple[Anomaly, ...]
    #: Findings that may be right.
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
        return table_of_rows([_row(verdict) for verdict in self.segments], _TABLE)

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


def _row(verdict: SegmentVerdict) -> dict[str, Any]:
    return {
        **{name: getattr(verdict.segment, name) for name in _NAMES},
        **{name: getattr(verdict, name) for name in ("batches", "records", "ok")},
        "anomalies": [str(anomaly) for anomaly in verdict.anomalies],
    }


def _with_gaps(snapshot: Snapshot, verdicts: Sequence[SegmentVerdict]) -> Iterator[SegmentVerdict]:
    """The verdicts, with anomalies for offsets that no batch holds at the end of a broker's segment."""
    is_compacted = "compact" in snapshot.config.cleanup_policy
    cleaned = {verdict.segment.partition for verdict in verdicts if verdict.is_sparse or verdict.segment.compacted}
    for verdict in verdicts:
        segment, end = verdict.segment, verdict.end_offset
        dirty = snapshot.partitions[segment.partition].first_dirty_offset
        may_have_gaps = is_contiguous(segment) or is_compacted or segment.partition in cleaned
        if may_have_gaps or end < 0 or max(end, dirty) >= segment.next_offset:
            yield verdict
        else:
            message = f"no batch holds the offsets from {end} to {segment.next_offset}: a segment is missing"
            gap = Anomaly("offset_gap", message, partition=segment.partition, offset=end)
            yield dataclasses.replace(verdict, anomalies=(*verdict.anomalies, gap))


def _without_old_indexes(handle: TopicHandle, head: Snapshot, verdict: SegmentVerdict) -> SegmentVerdict:
    """The verdict without its indexes if no page counts their entries: they are rebuilt from the log."""
    segment = verdict.segment
    if not segment.is_active or is_counted(handle, head, segment.partition):
        return verdict
    names = tuple(part_of(handle.name, segment, suffix).name for suffix in CHECKS)
    remaining = tuple(anomaly for anomaly in verdict.anomalies if anomaly.file not in names)
    return dataclasses.replace(verdict, anomalies=remaining)


def _overtaken(handle: TopicHandle, snapshot: Snapshot) -> Iterator[Anomaly]:
    """Anomalies for consumer groups, distlog's and Kafka clients', with committed offsets past a log's end."""
    groups = [(group.group, group.positions) for group in group_states(handle.storage, snapshot.topic_id)]
    for name, positions in (*groups, *_of_clients(handle, snapshot)):
        for partition, state in enumerate(snapshot.partitions):
            position = positions.get(partition)
            if position is not None and position > state.log_end_offset:
                message = (
                    f"the log ends at {state.log_end_offset}, below the committed offset of group {name}: was it cut?"
                )
                yield Anomaly("end_below_group", message, partition=partition, offset=position)


def _of_clients(handle: TopicHandle, snapshot: Snapshot) -> Iterable[tuple[str, Mapping[int, int]]]:
    """The Kafka clients' groups and their committed offsets; none if they cannot be read."""
    try:
        return all_kafka_positions(handle, since_ms=snapshot.replaced_ms).items()
    except DistlogError as error:
        _log.warning("the committed offsets of Kafka clients are not compared with the logs: %s", error)
        return ()


def _recheck(reader: SegmentReader, head: Snapshot, verdict: SegmentVerdict) -> SegmentVerdict | None:
    """Check the segment again if it changed by `head`; None if it is missing since it was removed."""
    if verdict.ok:
        return verdict
    live, is_active = live_segment(head, verdict.segment), verdict.segment.is_active
    if live is None and (is_active or "missing_segment" in {anomaly.word for anomaly in verdict.anomalies}):
        return None
    return verdict if live in (None, verdict.segment) else verify_segment(reader, live)
