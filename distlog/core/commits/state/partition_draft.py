"""One partition while `fold` applies commits to it, with its invariants."""

from __future__ import annotations

from distlog.core.commits.format.actions import Active
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import PartitionState
from distlog.core.paths import stem_read_version


class PartitionDraft:
    """A private, mutable copy of a PartitionState; every method raises ValueError when an invariant breaks.

    Offsets change with each action. Added and removed segments go into the table at the end of the commit, in
    `settle`: only then the holes to fill are known.
    """

    def __init__(self, state: PartitionState) -> None:
        self._log_start_offset = state.log_start_offset
        self._log_end_offset = state.log_end_offset
        self._first_dirty_offset = state.first_dirty_offset
        self._active = state.active
        self._unknown = state.unknown
        self._segments = state.segments
        self._appended: list[SegmentInfo] = []
        self._begin_commit()

    def _begin_commit(self) -> None:
        self._new: list[SegmentInfo] = []
        self._replacements: list[SegmentInfo] = []
        self._removed: set[str] = set()
        self._opened: set[str] = set()
        self._sealed: set[str] = set()
        self._restored_from: int | None = None

    def add(self, segment: SegmentInfo) -> None:
        """Put `segment` at the log's end, or, if it begins below, in a hole that the commit makes."""
        segment.check()
        if segment.base_offset < self._log_end_offset:
            self._replacements.append(segment)
            return
        self._check_at_end(segment.stem, segment.base_offset)
        self._check_append_time(segment)
        self._new.append(segment)
        self._log_end_offset = segment.next_offset

    def remove(self, stem: str) -> None:
        """Take out the segment `stem`, which was live before the commit."""
        if stem in self._removed:
            raise ValueError(f"segment {stem} is removed twice")
        self._removed.add(stem)

    def set_log_start_offset(self, offset: int) -> None:
        """Raise the log start offset, never lower it; an empty partition may begin at any higher offset."""
        if offset > self._log_end_offset:
            if self._active or self._new or self._appended or len(self._segments):
                raise ValueError(f"the log start {offset} is above the log end {self._log_end_offset}")
            self._log_end_offset = offset
        self._log_start_offset = max(self._log_start_offset, offset)

    def restore(self, offset: int) -> None:
        """Lower the log start offset, and let the commit add segments that were removed before."""
        self._log_start_offset = min(self._log_start_offset, offset)
        self._restored_from = offset

    def set_first_dirty_offset(self, offset: int) -> None:
        """Note how far the partition is compacted."""
        if offset > self._log_end_offset:
            raise ValueError(f"cleaned up to {offset}, above the log end {self._log_end_offset}")
        self._first_dirty_offset = offset

    def open(self, active: Active) -> None:
        """Begin an active segment at the log's end."""
        self._check_at_end(active.stem, active.base_offset)
        if self._segments.live([active.stem]):
            raise ValueError(f"segment {active.stem} is sealed already")
        self._opened.add(active.stem)
        self._active = active

    def seal(self, stem: str) -> None:
        """End the active segment `stem`."""
        if not self._active or self._active.stem != stem:
            raise ValueError(f"segment {stem} is not active")
        self._sealed.add(stem)
        self._active = None

    def settle(self, gc_floor: int) -> None:
        """End the commit: fill the holes, and refuse files that were begun below `gc_floor`."""
        self._check_read_versions(gc_floor)
        if self._removed or self._replacements:
            segments = self._segments.appended(self._appended)
            front = None if self._restored_from is None else (self._restored_from, self._log_end_offset)
            self._segments = segments.replaced(self._removed, self._replacements, front)
            self._appended = []
            if any(segment.append_time_ms >= 0 for segment in self._replacements):
                self._segments.check_append_times()
        self._appended += self._new
        self._begin_commit()

    def finish(self) -> PartitionState:
        """The partition's state after the commits."""
        return PartitionState(
            log_start_offset=self._log_start_offset,
            log_end_offset=self._log_end_offset,
            segments=self._segments.appended(self._appended),
            first_dirty_offset=self._first_dirty_offset,
            active=self._active,
            unknown=self._unknown,
        )

    def _check_at_end(self, stem: str, base_offset: int) -> None:
        if self._active:
            raise ValueError(f"the active segment {self._active.stem} must be sealed first")
        if base_offset != self._log_end_offset:
            raise ValueError(f"segment {stem} begins at {base_offset}, not at the log end {self._log_end_offset}")

    def _check_append_time(self, segment: SegmentInfo) -> None:
        if segment.append_time_ms < 0:
            return
        ahead = (self._new or self._appended or self._segments[-1:])[-1:]
        if ahead and segment.append_time_ms < ahead[0].append_time_ms:
            raise ValueError(f"segment {segment.stem} was appended before the segment ahead of it")

    def _check_read_versions(self, gc_floor: int) -> None:
        replacements = self._replacements if self._restored_from is None else ()
        added = {segment.stem for segment in (*self._new, *replacements)}
        for stem in (added | self._opened) - self._removed - self._sealed:
            read_version = stem_read_version(stem)
            if read_version is not None and read_version < gc_floor:
                raise ValueError(f"segment {stem} was begun below the gc floor {gc_floor}")
