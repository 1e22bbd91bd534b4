"""delete-records: raise the log start offset, as Kafka's DeleteRecords does; retention removes the segments later."""

from __future__ import annotations

from collections.abc import Mapping

from distlog.core.commits.format.actions import Action, SetLogStartOffset
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import InvalidConfigError, OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.log.sealed_commit import sealed_commit
from distlog.core.log.tails import with_tails
from distlog.core.topic_handle import TopicHandle
from distlog.core.whole_number import whole_number

#: Instead of an offset: delete everything that is there now (Kafka's high watermark).
LOG_END = -1


def delete_records(
    handle: TopicHandle, snapshot: Snapshot, before: Mapping[int, int]
) -> tuple[dict[int, int], Snapshot]:
    """Delete the records below `before[partition]`; returns the new log start offsets and the new state.

    An offset within an active segment seals it in the same commit. An offset below the log start changes nothing.
    Raises OffsetOutOfRangeError for an offset above the log end, TopicNotFoundError for a partition that does not
    exist, InvalidConfigError when `cleanup.policy` is compact alone (Kafka's PolicyViolationException), and
    StorageError if the lock of an active segment is not free in time.
    """
    snapshot = handle.log.refresh(snapshot)
    wanted = _resolved(with_tails(handle, snapshot), before)

    def needed(current: Snapshot) -> list[int]:
        return [number for number, start in wanted.items() if start > current.partitions[number].log_end_offset]

    def plan(current: Snapshot) -> list[Action] | None:
        starts = _resolved(current, wanted)
        raised = {n: start for n, start in starts.items() if start > current.partitions[n].log_start_offset}
        return [SetLogStartOffset(number, start) for number, start in sorted(raised.items())] or None

    _, after = sealed_commit(handle, snapshot, "delete-records", plan, needed)
    return {number: after.partitions[number].log_start_offset for number in sorted(before)}, after


def _resolved(snapshot: Snapshot, before: Mapping[int, int]) -> dict[int, int]:
    """`before`, checked, with the log end in the place of LOG_END."""
    if "delete" not in snapshot.config.cleanup_policy:
        raise InvalidConfigError("records can be deleted only where cleanup.policy contains delete")
    return {number: _resolve(snapshot, number, offset) for number, offset in before.items()}


def _resolve(snapshot: Snapshot, partition: int, offset: int) -> int:
    if not 0 <= whole_number("partition", partition) < len(snapshot.partitions):
        raise TopicNotFoundError(f"the topic has partitions 0 to {len(snapshot.partitions) - 1}", partition=partition)
    state = snapshot.partitions[partition]
    if whole_number("offset", offset) == LOG_END:
        return state.log_end_offset
    if not 0 <= offset <= state.log_end_offset:
        raise OffsetOutOfRangeError(
            "records can be deleted up to the log end offset, or -1 for all of them",
            partition=partition,
            offset=offset,
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
        )
    return offset
