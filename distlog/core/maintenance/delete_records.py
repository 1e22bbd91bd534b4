"""delete-records: raise the log start offset, as Kafka's DeleteRecords does; retention removes the segments later."""

from __future__ import annotations

from collections.abc import Mapping

from distlog.core.commits.actions import Action, SetLogStartOffset
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import whole_number
from distlog.core.errors import InvalidConfigError, OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.topic_handle import TopicHandle

#: Instead of an offset: delete everything that is there now (Kafka's high watermark).
LOG_END = -1


def delete_records(
    handle: TopicHandle, snapshot: Snapshot, before: Mapping[int, int]
) -> tuple[dict[int, int], Snapshot]:
    """Delete the records below `before[partition]`; returns the new log start offsets and the new state.

    An offset below the log start changes nothing. Raises OffsetOutOfRangeError for an offset above the log end,
    TopicNotFoundError for a partition that does not exist, and InvalidConfigError when `cleanup.policy` is compact
    alone (Kafka's PolicyViolationException).
    """

    def plan(current: Snapshot) -> list[Action] | None:
        if "delete" not in current.config.cleanup_policy:
            raise InvalidConfigError("records can be deleted only where cleanup.policy contains delete")
        starts = {number: _resolve(current, number, offset) for number, offset in before.items()}
        raised = {n: start for n, start in starts.items() if start > current.partitions[n].log_start_offset}
        return [SetLogStartOffset(number, start) for number, start in sorted(raised.items())] or None

    _, after = handle.log.commit(handle.log.refresh(snapshot), "delete-records", plan)
    return {number: after.partitions[number].log_start_offset for number in sorted(before)}, after


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
