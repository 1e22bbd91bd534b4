"""The snapshot for readers: the newest snapshot of the commit log, with the active segments up to their ends."""

from __future__ import annotations

import dataclasses
import logging
import os
from contextlib import closing, suppress
from functools import lru_cache
from typing import NamedTuple

from distlog.core import paths
from distlog.core.commits.actions import Active
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import SnapshotTooOldError
from distlog.core.log.active_partition import active_folder, check_exists
from distlog.core.log.log_segment import ReadableSegment
from distlog.core.log.partition_files import (
    DamagedLogError,
    DurableEnd,
    PageStatus,
    StateRecord,
    recovery_point,
    stored_page_value,
)
from distlog.core.log.producers import transactions_at_start
from distlog.core.segments.segment_parts import missing_file_error
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.segments.segment_state import SegmentState
from distlog.core.storage.local_files import failing_as
from distlog.core.storage.locks_and_pages import WatchedPage

# A partition's tail is its active segment up to the current end. Readers take no lock: the page in the lock's file
# has the end. If the page is invalid, or of another boot or segment, they walk the log, from a recovery point if any.
_log = logging.getLogger("distlog")
#: The number of reads of the page before the log is walked. A read may fail if the page is written twice during it.
_PAGE_READS = 3


class LiveSnapshot:
    """The snapshot that a topic object reads, with active segments unless it is pinned; thread-safe."""

    def __init__(self, handle: TopicHandle, current: CurrentSnapshot) -> None:
        self._handle, self._current = handle, current
        self._view: _View | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot to read, never to commit from; its active segments end as at the last `refresh`."""
        view, committed = self._view, self._current.snapshot
        if view is None or view.committed is not committed or view.tails_token is not self._current.tails:
            view = self._load_view(committed)
        return view.live

    def refresh(self) -> Snapshot:
        """Load the newest version and the ends of its active segments. This takes one GET if nothing changed."""
        self._current.expire_tails()
        with suppress(SnapshotTooOldError):
            return self._load_view(self._current.refresh()).live
        # an active segment was sealed after the version was read, and vacuum deleted it
        return self._load_view(self._current.refresh()).live

    def _load_view(self, committed: Snapshot) -> _View:
        tails_token, view = self._current.tails, self._view
        if view is not None and view.committed is not committed:
            # vacuum may have deleted files of older versions
            self._handle.reader.forget_deleted()
        live = committed if self._current.pinned else with_tails(self._handle, committed)
        self._view = view = _View(committed, live, tails_token)
        return view


def with_tails(handle: TopicHandle, snapshot: Snapshot, *, only_sound: bool = False) -> Snapshot:
    """Return `snapshot` with active segments up to their current ends, for readers, not for commits."""
    states = dict[int, PartitionState]()
    for number in snapshot.active_partitions:
        try:
            states[number] = with_tail(handle, snapshot, number)
        except DamagedLogError:  # noqa: PERF203 - other partitions may be readable
            if not only_sound:
                raise
    return dataclasses.replace(snapshot, partitions=snapshot.partitions.with_states(states)) if states else snapshot


class ActiveTail:
    """The active segment of a partition, for a reader without the partition's lock."""

    def __init__(self, handle: TopicHandle, snapshot: Snapshot, partition: int) -> None:
        self._handle, self._snapshot, self._partition = handle, snapshot, partition
        active = snapshot.partitions[partition].active
        assert active is not None
        self._active, self._folder = active, active_folder(handle, partition)
        self._page = os.path.join(self._folder, paths.LOCK_FILE)

    def known_state(self) -> SegmentState | None:
        """Return the state in a page of this boot; None without one, or while a failed sync cuts the segment."""
        for _ in range(_PAGE_READS):
            record = StateRecord.unpack(stored_page_value(self._page))
            if record is not None:
                is_cut = record.status == PageStatus.FAILED
                return None if is_cut else record.state_of(self._snapshot.topic_id, self._active)
        return None

    def info(self) -> SegmentInfo | None:
        """Return the segment with its current end; None without records."""
        state = self.known_state()
        if state is None:
            walked, is_end_given = self._walk()
            # a writer that appended concurrently may publish these batches later, or cut them off
            state = self.known_state()
            if state is None:
                state = walked
                page_value = stored_page_value(self._page)
                _, durable = recovery_point(page_value, self._snapshot.topic_id, self._active)
                with closing(self._readable(state)) as segment:
                    error = segment.damage(durable, is_end_given=is_end_given)
                    # warn only if no writer has appended or recovered since: it would have written the page
                    if error is not None and page_value == stored_page_value(self._page) and not self.known_state():
                        _warn_once(segment.file, str(error))
        return state.tail_info(self._partition, self._handle.clock()) if state.batches else None

    def damage(self) -> DamagedLogError | None:
        """Return the error that appends to the segment raise, or None."""
        for _ in range(_PAGE_READS):
            page_value = stored_page_value(self._page)
            damage = self._damage()
            # the damage is real, unless a process has appended, recovered or sealed concurrently
            if damage is None or (page_value == stored_page_value(self._page) and self._is_active()):
                return damage
        return None

    def _damage(self) -> DamagedLogError | None:
        page_value, state = stored_page_value(self._page), self.known_state()
        _, durable = recovery_point(page_value, self._snapshot.topic_id, self._active)
        try:
            if state is not None:
                # the page is of this boot, so the log has all bytes up to this end, unless it was cut or replaced
                durable = DurableEnd(state.next_offset, state.position)
                with closing(self._readable(state)) as segment:
                    if segment.bytes_past_end() >= 0:
                        return None
            check_exists(os.path.join(self._folder, f"{self._active.stem}.log"), self._active)
        except DamagedLogError as error:
            return error
        walked, is_end_given = self._walk()
        with closing(self._readable(walked)) as segment:
            return segment.damage(durable, is_end_given=is_end_given)

    def _walk(self) -> tuple[SegmentState, bool]:
        """Walk the log; returns the state at its end, and whether a failed sync set this end."""
        handle, snapshot, active = self._handle, self._snapshot, self._active
        name = paths.segment_file(handle.name, self._partition, active.stem, ".log")
        path = handle.storage.local_path(name)
        if not os.path.exists(path):
            if self._is_active():
                check_exists(path, active)
            raise missing_file_error(name, self._partition)
        start_state = SegmentState.new(active.stem, active.base_offset, handle.clock())
        page_value = stored_page_value(self._page)
        point, _ = recovery_point(page_value, snapshot.topic_id, active)
        end = _end_after_failed_sync(page_value, snapshot, active)
        if point is not None:
            with closing(self._readable(point)) as segment:
                start_state = point if segment.has_its_bytes() else start_state
        with closing(self._readable(start_state)) as segment:
            state = segment.scan_tail(transactions_at_start(handle, snapshot.partitions[self._partition]), end)
        return state, end is not None

    def _readable(self, state: SegmentState) -> ReadableSegment:
        return ReadableSegment(self._folder, state, self._snapshot.config)

    def _is_active(self) -> bool:
        head = self._handle.log.refresh(self._snapshot)
        is_same = head.topic_id == self._snapshot.topic_id
        return is_same and head.partitions[self._partition].active == self._active


def has_known_end(handle: TopicHandle, snapshot: Snapshot, partition: int) -> bool:
    """True if a page of this boot has the active segment's end."""
    is_active = snapshot.partitions[partition].active is not None
    return is_active and ActiveTail(handle, snapshot, partition).known_state() is not None


def damage_of_tail(handle: TopicHandle, snapshot: Snapshot, partition: int) -> DamagedLogError | None:
    """Return the error that appends to the active segment raise; None without one, or without an active segment."""
    is_active = snapshot.partitions[partition].active is not None
    return ActiveTail(handle, snapshot, partition).damage() if is_active else None


def without_tails(snapshot: Snapshot) -> Snapshot:
    """Return `snapshot` as the commits describe it: active segments have no records."""
    states = {
        number: dataclasses.replace(
            state, segments=state.segments.without_active(), log_end_offset=state.active.base_offset
        )
        for number in snapshot.active_partitions
        if (state := snapshot.partitions[number]).active is not None
    }
    return dataclasses.replace(snapshot, partitions=snapshot.partitions.with_states(states)) if states else snapshot


def tail(handle: TopicHandle, snapshot: Snapshot, partition: int) -> SegmentInfo | None:
    """Return the active segment with its current end; None without records, or without an active segment."""
    is_active = snapshot.partitions[partition].active is not None
    return ActiveTail(handle, snapshot, partition).info() if is_active else None


def with_tail(handle: TopicHandle, snapshot: Snapshot, partition: int) -> PartitionState:
    """Return the state of one partition for readers, with the active segment up to its current end."""
    state, segment = snapshot.partitions[partition], tail(handle, snapshot, partition)
    if segment is None:
        return state
    return dataclasses.replace(
        state, segments=state.segments.with_active(segment), log_end_offset=segment.next_offset
    )


def _end_after_failed_sync(page_value: bytes | None, snapshot: Snapshot, active: Active) -> int | None:
    """Return the position where a failed sync cuts the log, or None; the kernel may lose the bytes from there on."""
    record = StateRecord.unpack(page_value)
    if record is None or record.status != PageStatus.FAILED:
        return None
    state = record.state_of(snapshot.topic_id, active)
    return None if state is None else state.flushed_position


@lru_cache(maxsize=1024)
def _warn_once(path: str, text: str) -> None:
    _log.warning("%s; readers get the records before the damage", text)


class TailWatch:
    """Detects new records on a local disk without a refresh: by new commits, and by pages, which appends change."""

    def __init__(self, handle: TopicHandle) -> None:
        self._handle = handle
        self._pages: dict[int, WatchedPage] = {}
        self._snapshot: Snapshot | None = None
        self._newest_commit, self._next_commit, self._active = "", "", list[int]()

    def changed(self, snapshot: Snapshot) -> bool:
        """True if there may be records that are newer than `snapshot`, to which the caller refreshed last."""
        if snapshot is not self._snapshot:
            self._newest_commit, self._next_commit = (
                self._handle.storage.local_path(paths.commit_file(snapshot.version + step)) for step in (0, 1)
            )
            self._active = snapshot.active_partitions
            self._snapshot = snapshot
        # if this process was paused, vacuum may have deleted the newest known commit, so there are later ones
        is_newer = os.path.exists(self._next_commit) or not os.path.exists(self._newest_commit)
        for number in self._active:
            # check all pages, even after a change, since a check notes the page's value for the next call
            page = self._pages.get(number)
            if page is None:
                folder = self._handle.storage.local_path(paths.partition_dir(self._handle.name, number))
                path = os.path.join(folder, paths.LOCK_FILE)
                with failing_as("read", path), suppress(FileNotFoundError):
                    page = self._pages[number] = WatchedPage(path)
            # if there is no lock file, as in a copied topic, only a refresh can detect new records
            is_newer = page is None or page.changed() or is_newer
        return is_newer


class _View(NamedTuple):
    committed: Snapshot
    live: Snapshot
    #: `CurrentSnapshot.tails` at the time of the read: an object that `expire_tails` replaces.
    tails_token: object
