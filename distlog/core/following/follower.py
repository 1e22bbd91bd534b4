"""A follower: hands out the records of a topic as they come, one Arrow batch after the other."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from distlog.core.errors import OffsetOutOfRangeError, SnapshotTooOldError
from distlog.core.following.followed_log import FollowedLog, Handed, Window
from distlog.core.following.share import Share
from distlog.core.reading.slices.slices import OutOfRange, bounded_start
from distlog.core.times import elapsed_s

if TYPE_CHECKING:
    from typing_extensions import Self

#: The first pause between two looks, and the longest, in seconds, and how many times longer each is than the one
#: before, by whether the storage is local. A look at a local disk costs microseconds, and one at an object store is a
#: request. So a local record is seen within a sixteenth of the time since the one before, and the first pause.
FIRST_PAUSE_S = {True: 0.0005, False: 0.05}
LONGEST_PAUSE_S = {True: 0.005, False: 1.0}
PAUSE_GROWTH = {True: 17 / 16, False: 2.0}
#: How many times in a row vacuum may delete what is being read before that is an error.
_TRIES = 3

_log = logging.getLogger(__name__)


class Follower:
    """An iterator of RecordBatches, in order in each partition; made by `topic.follow`.

    For one thread of one process; only `close` may be called from other threads, and from signal handlers. After an
    error, and after the timeout, iterating again goes on behind the last batch that was returned. At the end of a
    `with` block it leaves its group. If there was no error, and `commit` was never called, it first commits what was
    handed out.
    """

    def __init__(
        self,
        log: FollowedLog,
        share: Share,
        out_of_range: OutOfRange,
        timeout_s: float | None,
        pauses: tuple[float, float, float],
        *,
        clock: Callable[[], float] = elapsed_s,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._log, self._share, self._out_of_range, self._timeout_s = log, share, out_of_range, timeout_s
        (self._first_pause_s, self._longest_pause_s, self._growth), self._clock = pauses, clock
        self._window: Window | None = None
        #: Where partitions were cut below the position.
        self._cuts: dict[int, int] = {}
        self._use, self._gate, self._is_closed = threading.Lock(), threading.Lock(), False
        self._is_entered, self._commits_at_end, self._process = False, True, os.getpid()
        # a plain lock, not an Event: a signal handler may interrupt the thread that waits, and end its pause
        self._gate.acquire()
        self._sleep = sleep or self._wait_at_gate

    @property
    def position(self) -> dict[int, int]:
        """The next offset to be handed out, by partition; with a group, of this member's partitions."""
        return dict(self._share.position)

    def lag(self) -> dict[int, int]:
        """How many offsets each of these partitions has behind its position, by the newest metadata."""
        with self._used():
            self._look()
            known = {number: offset for number, offset in self.position.items() if number < self._log.partitions}
            return {number: max(0, self._log.end(number) - offset) for number, offset in known.items()}

    def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Keep the group's positions: all that was handed out is done, or all below `positions`, by partition.

        Raises FencedMemberError when others have the partitions by now, OffsetOutOfRangeError for offsets that were
        not handed out or were committed before, InvalidConfigError without a group, CommitStateUnknownError when it
        may have happened: to commit again is harmless.
        """
        with self._used():
            self._commits_at_end = False
            self._share.commit(positions)

    def close(self) -> None:
        """End the iteration, and leave the group without a commit.

        Inside of a `with` block the iteration ends, and leaving is up to the block's end. Without one, a thread that
        iterates leaves when it notices.
        """
        if self._is_inherited:
            return
        self._is_closed = True
        with suppress(RuntimeError):
            self._gate.release()
        if not self._is_entered and self._use.acquire(blocking=False):
            try:
                self._share.leave()
            finally:
                self._use.release()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        handed: Handed | None = None
        before: dict[int, int] = {}
        try:
            with self._used():
                handed = self._awaited()
                if handed is None:
                    raise StopIteration
                position = self._share.position
                before = {number: position[number] for number in handed[1]}
                position.update(handed[1])
            return handed[0]
        except BaseException:
            if handed is not None:
                # an interrupt came before the caller had the batch: it is handed out again
                self._window = None
                self._share.position.update(before)
            raise

    def _awaited(self) -> Handed | None:
        """The next records, when there are some; None at the timeout, and when it is closed."""
        idle_since, pause_s, lost = self._clock(), self._first_pause_s, 0
        while not self._is_closed:
            try:
                handed = self._handed()
            except SnapshotTooOldError:
                lost += 1
                if lost == _TRIES:
                    raise
                self._look(again=True)
                continue
            if handed is not None:
                return handed
            if self._share.due_s() <= 0 and self._left_s(idle_since) <= 0:
                return None
            while not (self._is_closed or (due_s := self._share.due_s()) <= 0 or self._look()):
                left_s = self._left_s(idle_since)
                if left_s <= 0:
                    return None
                self._sleep(min(pause_s, left_s, due_s))
                pause_s = min(self._growth * pause_s, self._longest_pause_s)
        if not self._is_entered:
            self._share.leave()
        return None

    def _handed(self) -> Handed | None:
        """The next records to hand out, if there are any."""
        try:
            if self._share.renew():
                self._window = None
            handed = self._pulled()
            if handed is None or not self._share.is_lapsed:
                return handed
        except BaseException:
            self._window = None
            raise
        _log.warning("a batch took longer than the lease, so it was not handed out: choose a longer lease")
        self._window = None
        return None

    def _pulled(self) -> Handed | None:
        while True:
            if self._window is None:
                self._stay_inside()
                self._window = self._log.read(self._share.wanted)
                if self._window is None:
                    return None
            handed = self._window.next()
            if handed is not None:
                return handed
            self._share.position.update(self._window.ends)
            self._window = None

    def _look(self, *, again: bool = False) -> bool:
        moved, position = self._log.look(again=again), self._share.position
        self._cuts |= {number: cut for number, cut in self._log.cuts.items() if position.get(number, 0) > cut}
        return moved

    def _stay_inside(self) -> None:
        """Move positions that retention has passed, or that were cut off, as `out_of_range` says."""
        if self._log.is_behind(self._share.wanted):
            self._look(again=True)
        for number, offset in self._share.wanted.items():
            # others may have appended up to the position since, so the log end does not tell that it was cut
            at = self._at_cut(number, offset, self._cuts[number]) if number in self._cuts else offset
            state = self._log.snapshot.partitions[number]
            inside = bounded_start(number, at, state, self._out_of_range)
            if inside != offset:
                self._share.move(number, inside)
            self._cuts.pop(number, None)
        # others may move what it does not have any more
        self._cuts = {number: cut for number, cut in self._cuts.items() if number in self._share.position}

    def _at_cut(self, number: int, offset: int, cut: int) -> int:
        if offset > cut and self._out_of_range == "fail":
            raise OffsetOutOfRangeError(
                "records that were handed out are lost, since the log was cut off when a sync failed; take back what "
                "came of them, and begin again at the cut, with start, or in a group with reset_group",
                partition=number,
                offset=offset,
                cut_at=cut,
            )
        return min(offset, cut)

    def _left_s(self, since: float) -> float:
        return self._longest_pause_s if self._timeout_s is None else since + self._timeout_s - self._clock()

    def _wait_at_gate(self, seconds: float) -> None:
        if self._gate.acquire(timeout=seconds):
            self._gate.release()

    def _used(self) -> threading.Lock:
        """The lock for a `with` of its own, which no interrupt comes between. Raises RuntimeError if it is held.

        Another thread gets an error, since the order of what it gets would mean nothing.
        """
        if self._is_inherited:
            raise RuntimeError("a forked child cannot use the follower of its parent: make one in the child")
        if self._use.locked():
            raise RuntimeError("another thread uses this follower: give each thread a follower of its own")
        return self._use

    @property
    def _is_inherited(self) -> bool:
        return os.getpid() != self._process

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_entered = False
        try:
            if kind is None and self._commits_at_end and not self._is_inherited:
                with self._used():
                    self._share.finish()
        finally:
            self.close()
