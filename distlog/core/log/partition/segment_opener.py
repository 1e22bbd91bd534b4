"""Opens a partition's active segment: as its state says or, where that is not enough, after a walk of its log."""

from __future__ import annotations

from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.format.actions import Active
from distlog.core.log.partition.state_record import Status
from distlog.core.log.partition.sync_mark import Sync, mark_doubted, stored_mark
from distlog.core.log.producers.stored_producers import transactions_before
from distlog.core.log.segment.active_file import FileCalls
from distlog.core.log.segment.log_segment import LogSegment
from distlog.core.log.segment.readable_segment import closed_on_error
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

    def resumed(self, segment: LogSegment | None, state: SegmentState, status: Status) -> LogSegment | None:
        """The segment with this state, and with what another process wrote behind it before it died.

        It is `segment`, if that is the same one and takes appends. None if a sync of it failed, or may have, and what
        that was to save is gone.
        """
        if status == Status.FAILED:
            return None
        is_known = segment is not None and segment.stem == state.stem and status == Status.ACTIVE
        if segment is not None and is_known:
            segment.resume(state)
        else:
            segment = self.opened(state)
        with closed_on_error(segment):
            self._repair(segment, status, is_known=is_known)
            # who began to seal it may have died when a sync had failed
            if status == Status.CHANGING:
                is_whole = self.write_again(segment, Sync.BEGUN)
            else:
                is_whole = self._is_in_good_hands(segment) or self.write_again(segment, Sync.DOUBTED)
            if not is_whole:
                segment.close()
                return None
        return segment

    def as_before(self, state: SegmentState) -> LogSegment:
        """The segment with this state, and nothing behind it: its seal was not committed."""
        segment = self.opened(state)
        with closed_on_error(segment):
            self._mend_indexes(segment)
            segment.drop_uncounted()
        return segment

    def _repair(self, segment: LogSegment, status: Status, *, is_known: bool) -> None:
        """Have the files be as the state says, with what another process wrote behind it before it died."""
        unknown = segment.unknown_bytes()
        if unknown < 0:
            segment.recover(self.transactions_before())
            segment.flush()
            return
        # who only comes along opens no index: of what is changed in one, a seal will know
        if unknown > 0 or status != Status.ACTIVE or not (is_known or segment.seems_to_have_entries()):
            self._mend_indexes(segment)
        if status == Status.TORN:
            segment.drop_uncounted()
        elif unknown > 0 or status != Status.ACTIVE:
            segment.recover_tail(self.transactions_before())

    def _mend_indexes(self, segment: LogSegment) -> None:
        """Make indexes anew that somebody deleted, cut or changed; a log that is damaged too stays as it is."""
        if not segment.has_its_bytes():
            segment.make_indexes(self.transactions_before())

    def _is_in_good_hands(self, segment: LogSegment) -> bool:
        """Whether the next sync tells the truth of what is not flushed; False while that cannot be brought about.

        Whoever wrote it may have been killed, so that nobody had the file open. Then the kernel forgets that it could
        not write pages, and forgets the pages. So who opens the file then has them read before the next sync.
        """
        if segment.is_open or not segment.unflushed.size:
            return True
        segment.open()
        return mark_doubted(self._folder, segment.stem)

    def recovered(self, active: Active, recovery_point: SegmentState | None) -> LogSegment:
        """The segment that the commit log calls `active`, whose end is not known: it is walked, and synced.

        The walk begins at the recovery point, if one is known, and the files have what it counts.
        """
        segment = self.opened(
            recovery_point or SegmentState.new(active.stem, active.base_offset, self._handle.clock())
        )
        with closed_on_error(segment):
            if recovery_point is None or not segment.has_its_bytes():
                segment.recover(self.transactions_before())
            elif segment.unknown_bytes():
                segment.recover_tail(self.transactions_before())
            else:
                # zeros, as far as anybody looked
                segment.drop_uncounted()
            # the page tells nothing of a sync that failed, so all is written again
            if stored_mark(self._folder, segment.stem) in (Sync.BEGUN, Sync.FAILED):
                self.write_again(segment, Sync.BEGUN)
            # it is not known how much of the log is on the device
            segment.flush()
        return segment

    def sealed(self, segment: LogSegment, status: Status) -> SegmentState:
        """Seal the segment's files; FAILED says that it has only what is known to be on the device."""
        if status != Status.FAILED:
            # first: of an error that is told to others from now on, this process is told too
            segment.open()
            sync = stored_mark(self._folder, segment.stem)
            if sync == Sync.FAILED or (sync != Sync.ENDED and not self.write_again(segment, sync)):
                raise segment.sync_error()
            self._mend_indexes(segment)
        return segment.seal()

    def write_again(self, segment: LogSegment, sync: Sync) -> bool:
        """See `LogSegment.write_again`; what is only DOUBTED is only read."""
        return segment.write_again(self.transactions_before(), only_read=sync == Sync.DOUBTED)

    def transactions_before(self) -> OpenTransactions:
        """The transactions that are open where the active segment begins."""
        return transactions_before(self._handle, self._snapshots.refresh().partitions[self._partition])
