"""The race of writers for the next version: how long a loser waits, and how losers commit together."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from random import Random

from distlog.core import paths
from distlog.core.arrays import booleans
from distlog.core.commits import waiting_append
from distlog.core.commits.actions import Action, Add, AddTable, Drop, SetTransaction
from distlog.core.commits.commit_json import Commit
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.segment_table import to_segments
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.waiting_append import LARGEST_PENDING, PENDING, PENDING_KEYED, is_plain
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    DistlogError,
    StorageError,
    StorageRefusedError,
    TransactionTooOldError,
)
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import Storage

# The race of writers for the next version: how long a writer waits after it lost.
#
# The winner's commit says how long it had tried. A writer that has tried for less than usual waits; one that has
# tried for longer does not. So many writers roughly take turns without talking to each other. With few writers none
# tries for long, so none waits.


MAINTENANCE = frozenset({"retention", "compact", "rebuild", "gc"})
# Longest usual pause, in seconds. It is short and does not grow, or else the latest writer would win. Maintenance
# waits longer, so that appends win.
PAUSE_S = 0.05
MAINTENANCE_PAUSE_S = 1.0
# The part of the usual time to try after which one's own turn comes. Were it all, no process would try at some times.
TURN = 0.6
#: The longest wait for a turn, whatever commits say.
LONGEST_TURN_S = 5.0
# If others try for no longer than this, in seconds, writers do not take turns: it would cost more than it gives.
_SHORT_S = 0.5
_PROBES = 4


class CommitRetries:
    """The tries of one commit, for `timeout_s` seconds from now; `clock` and `sleep` are in seconds."""

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
        now = self._clock()
        self._sleep(max(0.0, min(self._pause_s(now - self._start), self._end - now)))

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


# Group commit: on an object store, appends that lost races wait for one of them, which commits them all.
#
# Only one commit is put at a time, whatever the number of writers. So a writer that lost leaves its append as a file
# in `_pending/`: a commit without a place in the log, named by the stem of its first segment. The writer whose turn
# it is takes along what waits, but for the oldest append, which its commit names: that one's writer commits next. The
# others look for the next commit, and find themselves in it. If it does not come, the first one in line goes ahead,
# then the next one, and each after LONGEST_WAIT_S in which the line before it got no shorter: nobody is waited for
# who may be dead. A line that gets shorter is not left: of a thousand writers that go ahead at once one would commit.
#
# An append is committed once, since commits are a chain. The writer of version V has read all commits before it, back
# to the one that the files of each append were begun at: the stem says which that is. An append that is in one of
# these is not taken again. Its own writer has read them too, when it puts V. What is older than one has followed
# the log is left to others.
#
# An append that was left may be committed at any time, also if its writer is dead: until vacuum raises the gc floor
# above its files, as of any commit. So an error after that is an unknown outcome, unless the topic was dropped or the
# files are too old.


#: A waiting append looks for the next commit after so long, in seconds, and the more seldom the longer none comes.
POLL_S, LONGEST_POLL_S = 0.05, 0.3
#: So long each append in line waits for those before it, in seconds.
PATIENCE_S = 1.0
#: The longest wait in line while nothing before the append is committed, and at all, in seconds; then it races.
LONGEST_WAIT_S, LONGEST_LINE_S = 3.0, 30.0
#: An append that meets so many commits of others waits in line; of two writers seldom one does.
MANY = 3
#: After a commit of many appends, a writer's next one joins the line at once, so long, in seconds.
CROWDED_S = 10.0
#: So long, in seconds, an append in a crowd may begin with what the one before it has seen of the log.
JUST_NOW_S = 1.0
#: The most appends that one commit takes along, and that a writer lists.
MOST_TOGETHER, MOST_LISTED = 200, 1000
#: A commit that could take along so many leaves one of them in line, whose writer commits next.
CROWD = 2

_log = logging.getLogger(__name__)


#: So many commits are remembered that a process has followed, one after the other.
_MOST_FOLLOWED = 64


@dataclass(frozen=True, slots=True)
class Followed:
    """The stems in the commits that one process has followed up to the one of `commit_id`, the newest last."""

    version: int = -1
    commit_id: str = ""
    stems: tuple[frozenset[str], ...] = ()

    def then(self, commit: Commit) -> Followed:
        """The same with the next commit."""
        before = self.stems if self.commit_id == commit.prev else ()
        return Followed(commit.version, commit.id, (*before, frozenset(_added_stems(commit)))[-_MOST_FOLLOWED:])


class GroupCommit:
    """One append to the topic in `storage` that other writers may commit, and that may take along theirs.

    `base` is the snapshot with which it begins; every later commit must be shown to `saw`. Without an `append` it is
    of a commit that waits for nobody.
    """

    def __init__(self, storage: Storage, append: Commit | None, base: Snapshot) -> None:
        self._storage, self._append = storage, append
        self._stem = waiting_append.first_stem(append.actions) if append else ""
        self._stems = _added_stems(append) if append else set[str]()
        self._file = ""
        self._begin(base)
        self._line: dict[str, str] | None = None
        self._goes_at: float | None = None
        self._waits_for_next = False
        self._races_at = self._ends_at = float("inf")
        self._next: str | None = None
        self._met = 0
        self._is_shorter = False
        self._others = dict[str, Commit | None]()
        self._taken = list[str]()
        self._goes_alone = self._is_over = False
        #: True for a store that takes no name which tells an append.
        self.has_short_names = False
        #: True once the append may be where others find it.
        self.is_left = False
        #: True once this writer takes along what waits.
        self.is_in_line = False
        #: The commit of another writer that has the append.
        self.found: Commit | None = None
        #: The append that the next commit leaves in line, so that its writer commits next.
        self.next_append: str | None = None

    def _begin(self, base: Snapshot) -> None:
        self._base = base.version
        #: The commits up to the last one that it has seen.
        self.followed = Followed(base.version, base.commit_id)
        self._seen = set[str]()

    def knows(self, followed: Followed, *, has_short_names: bool = False) -> None:
        """Note what this process has followed before, so that older appends can be taken along, too."""
        self.has_short_names = has_short_names
        if followed.commit_id == self.followed.commit_id:
            self.followed, self._base = followed, followed.version - len(followed.stems)
            self._seen.update(*followed.stems)

    def is_crowd(self, commit: Commit) -> bool:
        """True if the commit, which has the append, has more than one other."""
        return len(_added_stems(commit)) > 2 * len(self._stems) > 0

    def saw(self, commit: Commit) -> None:
        """Note the next commit of the log."""
        self.followed, self._met = self.followed.then(commit), self._met + 1
        if self._append is None:
            return
        stems = self.followed.stems[-1]
        self._seen |= stems
        if self._stem in stems:
            self.found = commit
        if commit.next_append or self._next is None or self._next in stems:
            self._next, self._goes_at = commit.next_append, None
        before = (stem for stem in stems if stem < self._stem)
        self._is_shorter = self._is_shorter or any(self._line is None or stem in self._line for stem in before)
        self._is_over = self._is_over or any(isinstance(action, Drop) for action in commit.actions)

    @property
    def meets_many(self) -> bool:
        """True if MANY commits came since the append began, or one says whose turn it is."""
        return self._met >= MANY or self.is_led

    @property
    def is_led(self) -> bool:
        """True if the last commits say whose turn it is."""
        return self._next is not None

    def lost_track(self, head: Snapshot) -> None:
        """Begin anew at `head`, since commits before it cannot be read any more.

        Raises CommitStateUnknownError if these may have the append.
        """
        if self.is_left and not self._is_over:
            text = "commits were deleted that may have the append: look whether its records are there"
            raise CommitStateUnknownError(text, version=head.version)
        self._begin(head)

    def may_wait(self, now_s: float) -> bool:
        """True if the append may wait in line; False if it must go on racing. `now_s` is in seconds."""
        is_large = self.is_in_line and not self.is_left
        return self._append is not None and not self._goes_alone and not is_large and now_s < self._races_at

    def joins_line(self, now_s: float, next_append: str | None = None) -> bool:
        """Let others commit the append, and look who comes before it; False if it does not wait for them.

        A large append does not wait in line, but takes along what does. `next_append` is that of a crowd, if this
        writer was in one just now.
        """
        if not self.is_in_line and self._append is not None and not self._goes_alone:
            self._next = self._next or next_append
            data = self._append.encode()
            try:
                if len(data) <= LARGEST_PENDING:
                    self._leave(self._append, data)
                if not self.is_led:
                    self._line = self._list()
                self.is_in_line = True
            except (StorageError, FileNotFoundError) as error:
                # as where a policy forbids lists, or vacuum ended an upload: then it goes on as if there was no line
                _log.warning("appends that wait for each other cannot be stored or listed: %s", error)
                self._goes_alone = True
            self._races_at, self._ends_at = now_s + LONGEST_WAIT_S, now_s + LONGEST_LINE_S
        return self.is_left and self.may_wait(now_s)

    def _leave(self, append: Commit, data: bytes) -> None:
        """Put the file; under a short name where the store refuses a long one, as for files of 255 bytes."""
        self._file = waiting_append.file_of(append, data, self._storage, by_name=not self.has_short_names)
        try:
            self._storage.put(self._file, data)
        except StorageRefusedError:
            if self.has_short_names:
                raise
            self.has_short_names = True
            self._leave(append, data)
        except BaseException:
            # it may have been put
            self.is_left = True
            raise
        self.is_left = True

    def is_first(self, now_s: float) -> bool:
        """True if this writer need not wait in line: it is its turn, or it was found; `now_s` is in seconds."""
        if self.found is not None or not self.is_left or self._goes_alone or self._is_over:
            return True
        if self._is_shorter:
            self._is_shorter, self._races_at = False, min(now_s + LONGEST_WAIT_S, self._ends_at)
        if self._goes_at is None:
            self._waits_for_next = self._next not in (None, self._stem)
            self._goes_at = now_s + (PATIENCE_S if self._waits_for_next else self._place_s())
        if self._waits_for_next and now_s >= self._goes_at:
            # the writer whose turn it is may be dead
            self._waits_for_next, self._goes_at = False, now_s + self._place_s()
        return self._goes_alone or now_s >= min(self._goes_at, self._races_at)

    def _place_s(self) -> float:
        """After how many seconds it is this writer's turn, if no commit comes."""
        if self._next == self._stem:
            return 0.0
        try:
            self._line = self._list() if self._line is None else self._line
        except StorageError:
            self._goes_alone = True
            return 0.0
        ahead = (stem for stem in self._line if stem not in self._seen and stem != self._next)
        return PATIENCE_S * sum(stem < self._stem for stem in ahead)

    def others(self, head: Snapshot, actions: Sequence[Action]) -> list[Action]:
        """The actions of the appends that wait, behind this one's own `actions`, which add to `head`."""
        self._taken, self.next_append = [], None
        if (
            not self.is_in_line
            or self._goes_alone
            or not all(isinstance(own, Add | SetTransaction) for own in actions)
        ):
            return []
        own = [action.segment for action in actions if isinstance(action, Add)]
        try:
            self._line = self._list()
        except StorageError:
            self._goes_alone = True
            return []
        stems = {*self._seen, *(segment.stem for segment in own)}
        applications = {action.app_id for action in actions if isinstance(action, SetTransaction)}
        together = dict[str, Commit]()
        for stem, append in self._waiting(head.topic_id):
            if self._may_take(head, append, stems, applications):
                together[stem] = append
                stems |= _added_stems(append)
                applications.update(each.app_id for each in append.actions if isinstance(each, SetTransaction))
        if len(together) >= CROWD:
            # the oldest one, whose writer can take along most; not twice, since its writer may be dead
            self.next_append = next(stem for stem in together if stem != self._next)
            del together[self.next_append]
        self._taken = list(together)
        return _placed(together.values(), head, {segment.partition: segment.next_offset for segment in own})

    def go_alone(self) -> bool:
        """Take along nothing from now on, since a commit with the others is refused; False if it had none."""
        had_others, self._goes_alone, self._taken, self.next_append = bool(self._taken), True, [], None
        return had_others

    def clear(self) -> None:
        """Delete the files of what this writer has committed, and of what it knows to be committed."""
        if self.found is not None:
            return
        done = {*self._taken, *self._seen}
        files = [file for stem, file in (self._line or {}).items() if stem in done]
        if self.is_left:
            files.append(self._file)
        if files:
            self._storage.delete(files)

    def withdraw(self) -> None:
        """Delete the append's own file, as its writer gives up; a writer that has read it may commit it still."""
        if self.is_left:
            with suppress(Exception):
                self._storage.delete([self._file])

    def found_segments(self) -> list[SegmentInfo]:
        """The segments of the append, as the commit that was found adds them."""
        segments = list[SegmentInfo]()
        for action in self.found.actions if self.found else ():
            if isinstance(action, Add) and action.segment.stem in self._stems:
                segments.append(action.segment)
            elif isinstance(action, AddTable):
                own = [stem in self._stems for stem in action.rows["stem"].to_pylist()]
                segments += to_segments(action.rows.filter(booleans(own)))
        return segments

    def _list(self) -> dict[str, str]:
        """The files of the other appends that wait, in line; not those that this writer could not take along."""
        oldest, waiting = f"v{self._base:020d}", dict[str, str]()
        for file in self._storage.list_after(paths.PENDING_DIR, oldest):
            stem = paths.parse_pending_file(file.name)
            if stem is not None and stem > oldest and stem != self._stem:
                waiting[stem] = file.name
                if len(waiting) == MOST_LISTED:
                    break
        return dict(sorted(waiting.items()))

    def _waiting(self, topic_id: str) -> Iterator[tuple[str, Commit]]:
        line = self._line or {}
        names = list(islice((stem for stem in line if stem not in self._seen), MOST_TOGETHER))
        unread = [stem for stem in names if stem not in self._others]
        in_names = [stem for stem in unread if paths.told_by_pending_file(line[stem]) is not None]
        for stem in in_names:
            self._others[stem] = waiting_append.read(self._storage, line[stem], topic_id)
        rest = [stem for stem in unread if stem not in self._others]
        read = in_parallel(lambda stem: waiting_append.read(self._storage, line[stem], topic_id), rest)
        self._others.update(zip(rest, read, strict=True))
        for stem in names:
            append = self._others[stem]
            if append is not None:
                yield stem, append

    def _may_take(self, head: Snapshot, append: Commit, stems: set[str], applications: set[str]) -> bool:
        """True if the append is of this topic, is in no commit, and may be committed by any writer behind `head`."""
        if append.topic_id != head.topic_id or append.operation not in (PENDING, PENDING_KEYED):
            return False
        if "compact" in head.config.cleanup_policy and append.operation != PENDING_KEYED:
            return False
        *adds, last = append.actions
        if not isinstance(last, SetTransaction):
            adds.append(last)
        elif last.app_id in applications or head.transactions.has(last.app_id, last.batch_id, in_order=last.in_order):
            return False
        elif not last.in_order and head.transactions.size > head.config.batch_ids_bytes:
            # its writer refuses it, too
            return False
        oldest, parts = max(self._base, head.gc_floor), set[tuple[int, str]]()
        for add in adds:
            if not isinstance(add, Add) or not is_plain(add.segment) or add.segment.stem in stems:
                return False
            begun = paths.stem_read_version(add.segment.stem)
            if begun is None or not oldest <= begun <= head.version or add.segment.partition >= len(head.partitions):
                return False
            parts.add((add.segment.partition, add.segment.stem))
        return len(parts) == len(adds)

    @contextmanager
    def outcome(self) -> Iterator[None]:
        """Turn errors into CommitStateUnknownError if others may have committed the append, or may do so yet."""
        try:
            yield
        except BaseException as error:
            self.withdraw()
            is_certain = not self.is_left or self._is_over or isinstance(error, TransactionTooOldError)
            if is_certain or not isinstance(error, DistlogError) or isinstance(error, CommitStateUnknownError):
                raise
            raise CommitStateUnknownError(
                "other writers may commit the append, which was left for them: look whether its records are there",
                file=self._file,
            ) from error


def _added_stems(commit: Commit) -> set[str]:
    stems = {action.segment.stem for action in commit.actions if isinstance(action, Add)}
    # each writer in line looks at each commit, so it makes no object of each segment
    tables = (action.rows["stem"].to_pylist() for action in commit.actions if isinstance(action, AddTable))
    return stems.union(*tables)


def _placed(appends: Iterable[Commit], head: Snapshot, ends: dict[int, int]) -> list[Action]:
    """The actions of appends that waited, behind the log `ends` by partition, which move on, or those of `head`."""
    added, batches = list[Action](), list[Action]()
    for append in appends:
        offsets = dict[int, tuple[int, int]]()
        for action in append.actions:
            if isinstance(action, Add):
                number = action.segment.partition
                end = ends.get(number, head.partitions[number].log_end_offset)
                segment = action.segment.at(end)
                ends[number] = segment.next_offset
                offsets[number] = (offsets.get(number, (end, 0))[0], segment.next_offset)
                added.append(Add(segment))
            elif isinstance(action, SetTransaction):
                batches.append(dataclasses.replace(action, offsets=offsets))
    return [*added, *batches]
