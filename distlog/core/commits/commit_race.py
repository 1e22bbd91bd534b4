"""The race of one commit for the next version: an iterator of heads, with pauses after lost races."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from types import TracebackType

from distlog.core.commits.actions import Action, Commit
from distlog.core.commits.commit_log import TIMEOUT_S, CommitLog, PreparedCommit, check_read_version
from distlog.core.commits.pending_queue import CROWDED_S, LONGEST_POLL_S, POLL_S, AppendTicket
from distlog.core.commits.snapshot import Snapshot, apply
from distlog.core.commits.snapshot_loader import BehindFloorError
from distlog.core.errors import CommitConflictError, CorruptMetadataError, OffsetOutOfRangeError
from distlog.core.storage.storage import PutTime


class CommitRace:
    """The race of one commit for the next version: iterate it for heads, and put the actions made from a head.

        with CommitRace(log, snapshot, "config") as race:
            for head in race:
                race.put([SetConfig(settings)])
        return race.commit, race.after

    The first head is `snapshot` (no request), the next one the newest after a lost race. If nothing was put for a
    head, it comes again, or the newer one that `after` was set to; to commit nothing, leave the loop. After an error
    in the loop nothing was committed. On a fresh snapshot and without a race a commit is one PUT.

    `read_version` is the oldest version that was read before a new data file was started, `write_id` is stored in the
    commit. Another writer may commit an append with a `ticket`: then `commit` is its commit, and the loop ends.

    Iterating raises CommitConflictError when nothing was and nothing will be committed; its subclass
    TransactionTooOldError when the data files must be written again; CommitStateUnknownError when the data files must
    be kept, since the commit may exist; UnsupportedVersionError when only a newer library may write the topic.
    """

    def __init__(
        self,
        log: CommitLog,
        snapshot: Snapshot,
        operation: str,
        *,
        read_version: int | None = None,
        write_id: str | None = None,
        timeout_s: float = TIMEOUT_S,
        ticket: AppendTicket | None = None,
    ) -> None:
        self._log, self._start, self._read_version = log, snapshot, read_version
        self._backoff = RaceBackoff(operation, timeout_s, clock=log.monotonic, sleep=log.pause, random=log.random)
        self._operation, self._write_id = operation, write_id
        self._ticket, self._joins_queue = ticket, ticket is not None and log.queue.was_crowded(CROWDED_S)
        #: The commit, once it is in the log; None if nothing was committed.
        self.commit: Commit | None = None
        #: The snapshot after the commit, or the newest head.
        self.after = snapshot
        #: True while a put has no clear result, so that it may be in the log.
        self.is_in_doubt = False

    def __iter__(self) -> Iterator[Snapshot]:
        while self.commit is None:
            self.after = head = self._log.still_exists(self.after)
            if self._ticket is not None:
                self._catch_up(head)
                if self._ticket.group_commit is not None:
                    self.commit = self._ticket.group_commit
                    self.after = head if head.continues(self._start) else self._start
                    return
            self._check_same_topic(head)
            head.requires.check_writable()
            check_read_version(head, self._read_version)
            yield head

    def put(self, actions: Sequence[Action]) -> bool:
        """Put `actions`, made from the last head, as the next version; False if the next head must be tried."""
        head, ticket, log = self.after, self._ticket, self._log
        if ticket is not None and self._joins_queue and ticket.join(log.monotonic()):
            self._joins_queue = False
            self._wait_in_queue()
            return False
        attempt, put_time = self._prepared(head, actions), PutTime()
        self.is_in_doubt = True
        winner = log.put_if_next(attempt, self._backoff.left_s(), put_time)
        newer = log.confirm_put(head, attempt, put_time) if winner is None else None
        if winner is None and newer is None:
            self.commit, self.after = attempt.commit, attempt.after
            self.is_in_doubt = False
            log.checkpoints.write_if_due(head, attempt.after)
            return True
        self.is_in_doubt = False
        if winner is not None:
            self._lose(winner)
        elif newer is not None:
            self.after = newer
        return False

    def try_for(self, timeout_s: float) -> None:
        """Try until `timeout_s` seconds from now."""
        self._backoff.try_for(timeout_s)

    def __enter__(self) -> CommitRace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.commit is None:
            # the caller may rely on another writer's commit
            self._log.sync()
        if self._ticket is not None and self.commit is not None:
            self._log.queue.leave(self._ticket, self.commit)
        elif self._ticket is not None:
            self._ticket.withdraw()
            if error is not None:
                self._ticket.raise_if_in_doubt(error)

    def _prepared(self, head: Snapshot, actions: Sequence[Action]) -> PreparedCommit:
        """The commit of `actions` with other pending appends, or without if readers would refuse it with them."""
        ticket, waited_ms = self._ticket, self._backoff.waited_ms()
        prepare = partial(self._log.prepare, self._operation, head, write_id=self._write_id, waited_ms=waited_ms)
        if ticket is not None:
            try:
                return prepare([*actions, *ticket.group_actions(head, actions)], next_append=ticket.next_append)
            except CommitConflictError:
                if not ticket.go_alone():
                    raise
        return prepare(actions)

    def _lose(self, winner: bytes) -> None:
        """Wait for a turn after a lost race, and follow the log."""
        log, ticket, head = self._log, self._ticket, self.after
        commit = log.files.decode(head.version + 1, winner)
        self._backoff.lost_to(commit)
        # two writers win alternately, as one writes a file while the other commits: the queue is for more
        probes = self._backoff.probes()
        may_wait = ticket is not None and ticket.may_wait(log.monotonic())
        if not may_wait or (commit.next_append is None and probes == 1):
            self._backoff.wait()
        self._follow(apply(head, commit), [commit], probes)
        self._joins_queue = ticket is not None and ticket.is_contended and ticket.may_wait(log.monotonic())

    def _wait_in_queue(self) -> None:
        """Wait until another writer committed the append, or it is this one's turn."""
        ticket, log, polls = self._ticket, self._log, 0
        assert ticket is not None
        while not ticket.is_first(log.monotonic()):
            if polls:
                # the longer no commit comes, the longer the next one takes
                log.pause(log.random.uniform(0.5, 1.5) * min(POLL_S * polls, LONGEST_POLL_S))
            head = self.after
            self._follow(head, [], one_request=True)
            polls = polls + 1 if self.after is head else min(polls, 1)
            if ticket.group_commit is None:
                self._backoff.check_time()

    def _follow(
        self, snapshot: Snapshot, commits: list[Commit], probes: int = 1, *, one_request: bool = False
    ) -> None:
        """Move to `snapshot`, made of the head and `commits`, with later commits; by just `one_request` if set."""
        log, base = self._log, self.after
        try:
            self.after = log.loader.follow(
                snapshot, group=probes, base=base, commits=commits, one_request=one_request
            )
        except BehindFloorError:
            self.after = log.reload(base)
            if self._ticket is not None:
                self._catch_up(self.after)
        else:
            # only now: one may have been put at the version of a commit that was deleted
            if self._ticket is not None:
                self._ticket.observe(commits)

    def _catch_up(self, head: Snapshot) -> None:
        """Give the ticket the commits up to `head` that it lacks, if they can be read."""
        ticket = self._ticket
        assert ticket is not None
        version, commit_id = ticket.history.version, ticket.history.commit_id
        if version == head.version:
            return
        try:
            commits = self._log.commits(version + 1, head.version + 1) if ticket.is_left else []
        except (CorruptMetadataError, OffsetOutOfRangeError):
            commits = []
        if commits and commits[0].prev == commit_id and commits[-1].id == head.commit_id:
            ticket.observe(commits)
        else:
            ticket.lose_track(head)

    def _check_same_topic(self, head: Snapshot) -> None:
        if not head.continues(self._start):
            self._log.sync()
            raise CommitConflictError(
                "nothing was committed: the topic was dropped, or has another id", url=self._log.url
            )


MAINTENANCE = frozenset({"retention", "compact", "rebuild", "gc"})
#: The longest usual pause, in seconds. It is short and does not grow, or the latest writer would win.
PAUSE_S = 0.05
#: Maintenance waits longer, so that appends win.
MAINTENANCE_PAUSE_S = 1.0
#: The share of the usual time to try after which a writer's turn comes. At 1 there were times when nobody tries.
TURN = 0.6
#: The longest wait for a turn.
LONGEST_TURN_S = 5.0
#: If other writers try for less than this, in seconds, turns cost more than they save.
_SHORT_S = 0.5
_PROBES = 4


class RaceBackoff:
    """How long a writer waits after a lost race, and when it gives up, `timeout_s` seconds from now.

    A commit has the time for which its writer had tried. A writer that has tried for less than usual waits, so
    writers roughly take turns. If there are few, none waits. `clock` and `sleep` are in seconds.
    """

    def __init__(
        self,
        operation: str,
        timeout_s: float,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        random: Random,
    ) -> None:
        self._is_maintenance = operation in MAINTENANCE
        self._clock, self._sleep, self._random = clock, sleep, random
        self._start = clock()
        self._end = self._start + timeout_s
        self._losses, self._winners_s = 0, 0.0

    def try_for(self, timeout_s: float) -> None:
        self._end = self._clock() + timeout_s

    def left_s(self) -> float:
        """The time left for tries, in seconds."""
        return self._end - self._clock()

    def waited_ms(self) -> int:
        """The time for which this writer has tried, in ms; 0 until another writer was first."""
        return int((self._clock() - self._start) * 1000) if self._losses else 0

    def probes(self) -> int:
        """The number of versions to read at once: with many writers, several commits follow the winner's."""
        return 1 if self._losses < 2 else _PROBES

    def lost_to(self, winner: Commit) -> None:
        """Note a lost race; raises CommitConflictError when no time is left for another try."""
        self.check_time()
        self._losses += 1
        self._winners_s += winner.waited_ms / 1000

    def check_time(self) -> None:
        """Raise CommitConflictError when no time is left."""
        if self._clock() >= self._end:
            raise CommitConflictError("nothing was committed: other commits came first until the deadline; try again")

    def wait(self) -> None:
        """Wait before the next try, after a lost race."""
        now_s = self._clock()
        self._sleep(max(0.0, min(self._pause_s(now_s - self._start), self._end - now_s)))

    def _pause_s(self, waited_s: float) -> float:
        if self._is_maintenance:
            return self._random.uniform(0, MAINTENANCE_PAUSE_S)
        usual_s = self._winners_s / self._losses
        if usual_s <= _SHORT_S:
            return self._random.uniform(0, PAUSE_S)
        turn_s = min(TURN * usual_s, LONGEST_TURN_S)
        if waited_s < turn_s:
            return self._random.uniform(0.5, 1) * (turn_s - waited_s)
        return 0.0 if waited_s > usual_s else self._random.uniform(0, PAUSE_S)
