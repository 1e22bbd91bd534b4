"""Opens a partition's active segment: as its state says or, where that is not enough, after a walk of its log."""

from __future__ import annotations

from distlog.core.commits.actions import Active
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.log.active_file import FileCalls
from distlog.core.log.log_segment import LogSegment
from distlog.core.log.state_record import Status
from distlog.core.segments.segment_state import SegmentState
from distlog.core.topic_handle import TopicHandle
from distlog.core.transactions.open_transactions import OpenTransactions


class SegmentOpener:
    """Opens the active segments of the partition in `folder`, with the settings of the newest of `snapshots`.

    Whoever opens one to change it holds the partition's lock. Errors are those of LogSegment.
    """

    def __init__(
        self, handle: TopicHandle, partition: int, folder: str, snapshots: CurrentSnapshot, calls: FileCalls
    ) -> None:
        self._handle, self._partition, self._folder = handle, partition, folder
        self._snapshots, self._calls = snapshots, calls

    def create(self, stem: str) -> None:
        """Create the files of an empty segment."""
        config, clock = self._snapshots.snapshot.config, self._handle.clock
        LogSegment.create(self._folder, stem, 0, config, clock=clock, calls=self._calls).close()

    def opened(self, state: SegmentState) -> LogSegment:
        """The segment with this state."""
        config, clock = self._snapshots.snapshot.config, self._handle.clock
        return LogSegment(self._folder, state, config, clock=clock, calls=self._calls)

    def resumed(self, segment: LogSegment | None, state: SegmentState, status: Status) -> LogSegment:
        """The segment with this state, and with what another process wrote behind it before it died.

        It is `segment`, if that is the same one and takes appends.
        """
        if segment is not None and segment.stem == state.stem and status == Status.ACTIVE:
            segment.resume(state)
        else:
            segment = self.opened(state)
        unknown = segment.unknown_bytes()
        if unknown < 0:
            self._walk(segment)
        elif status == Status.TORN:
            segment.drop_uncounted()
        elif unknown > 0 or status != Status.ACTIVE:
            segment.recover_tail(OpenTransactions.before(state.first_unstable_offset))
        return segment

    def walked(self, active: Active) -> LogSegment:
        """The segment that the commit log calls `active`, of which no state is known."""
        segment = self.opened(SegmentState.new(active.stem, active.base_offset, self._handle.clock()))
        self._walk(segment)
        return segment

    def transactions_before(self) -> OpenTransactions:
        """The transactions that are open where the active segment begins."""
        state = self._snapshots.snapshot.partitions[self._partition]
        return OpenTransactions.before(state.first_unstable_offset)

    def _walk(self, segment: LogSegment) -> None:
        segment.recover(self.transactions_before())
        # it is not known how much of the log is on the device
        segment.flush()
