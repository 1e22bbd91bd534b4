"""What a stream does when records that it should read are gone: it fails, or warns and goes on."""

from __future__ import annotations

import logging

from distlog.core.commits.state.snapshot import PartitionState
from distlog.core.errors import DistlogError, OffsetOutOfRangeError, TopicNotFoundError

_ADVICE = "start again with a new checkpoint, or set failOnDataLoss=false to go on with what is there"

_log = logging.getLogger("distlog")


class DataLoss:
    """Reports lost records: raises the error if `fail` (the option failOnDataLoss), else warns, once of each."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self._warned: dict[int | None, str] = {}

    def report(self, error: DistlogError) -> None:
        """Raise `error`, or warn of it."""
        if self._fail:
            raise error
        text, partition = str(error), error.details.get("partition")
        if self._warned.get(partition) != text:
            self._warned[partition] = text
            _log.warning("the stream goes on, since failOnDataLoss is false: %s", text)

    def check_start(self, state: PartitionState, partition: int, offset: int) -> int:
        """Where the stream can go on that wants to read from `offset`: there, or at the bound next to it."""
        low, high = state.log_start_offset, state.log_end_offset
        if offset < low:
            self.report(_out_of_range("records were deleted before the stream read them", state, partition, offset))
        elif offset > high:
            self.report(_cut(state, partition, offset))
        return min(max(offset, low), high)

    def check_end(self, state: PartitionState, partition: int, offset: int) -> int:
        """Where a batch ends that was planned up to `offset`: there, or at the log's end."""
        if offset > state.log_end_offset:
            self.report(_cut(state, partition, offset))
        return min(offset, state.log_end_offset)

    def topic_gone(self, name: str, *, dropped: bool) -> None:
        """Report that the stream's topic is dropped, or that there is another of its name."""
        what = "dropped" if dropped else "dropped and created again, so its offsets are others"
        self.report(TopicNotFoundError(f"the stream's topic was {what}: {_ADVICE}", topic=name))

    def partition_gone(self, name: str, partition: int) -> None:
        """Report that the stream has read a partition that the options, or the topic, do not have any more."""
        text = f"the stream has read a partition that it does not have any more: check the option assign; {_ADVICE}"
        self.report(TopicNotFoundError(text, topic=name, partition=partition))


def _cut(state: PartitionState, partition: int, offset: int) -> OffsetOutOfRangeError:
    text = "the log ends before what the stream has read, as after a power loss, which cuts off what was not synced"
    return _out_of_range(text, state, partition, offset)


def _out_of_range(text: str, state: PartitionState, partition: int, offset: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"{text}: {_ADVICE}",
        partition=partition,
        offset=offset,
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
    )
