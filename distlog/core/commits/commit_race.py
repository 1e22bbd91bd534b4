"""The race of writers for the next version: how long a loser waits, and how losers commit together."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random

from distlog.core import paths
from distlog.core.arrays import booleans
from distlog.core.commits.actions import Action, Add, AddTable, Drop, SetTransaction
from distlog.core.commits.commit_json import Commit
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.segment_table import to_segments
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptMetadataError,
    DistlogError,
    StorageError,
    TransactionTooOldError,
    UnsupportedVersionError,
)
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import Storage

# ---
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


# ---
# Group commit: on an object store, appends that lost a race wait for one of them, which commits them all.
#
# Only one commit is put at a time, whatever the number of writers. So a writer that lost leaves its append as a file
# in `_pending/`: a commit without a place in the log, named by the stem of its first segment. The writer whose file
# comes first takes along what waits. The others look for the next commit, and find themselves in it. If it does not
# come, the next one in line goes ahead, and each after LONGEST_WAIT_S in which the line before it got no shorter:
# nobody is waited for who may be dead. Each that goes ahead reads what waits. So a line that gets shorter is not
# left: of a thousand writers that go ahead at once each would read all the others, and one would commit.
#
# An append is committed once, since commits are a chain. Whoever puts version V has read all commits before it, back
# to the one that the files of each append were begun at: the stem says which that is. An append that is in one of
# these is not taken again. Its own writer has read them too, when it puts V. What is older than one has followed
# the log is left to others.
#
# An append that was left may be committed at any time, also if its writer is dead: until vacuum raises the gc floor
# above its files, as of any commit. So an error after that is an unknown outcome, unless the topic was dropped or the
# files are too old.


#: A waiting append looks for the next commit so often, in seconds.
POLL_S = 0.15
#: So long each append in line waits for those before it, in seconds.
PATIENCE_S = 1.0
#: The longest wait in line while nothing before the append is committed, and at all, in seconds; then it races.
LONGEST_WAIT_S, LONGEST_LINE_S = 3.0, 30.0
#: After a commit of many appends, a writer's next one joins the line at once, so long, in seconds.
CROWDED_S = 10.0
#: The most appends that one commit takes along, and the bytes of one.
MOST_TOGETHER, MOST_LISTED, LARGEST_PENDING = 200, 1000, 64 << 10
#: The operations of appends that wait: any, and one whose records all have keys, which compacted topics ask for.
PENDING, PENDING_KEYED = "append", "append-keyed"

_log = logging.getLogger(__name__)


def pending_append(
    snapshot: Snapshot, segments: Sequence[SegmentInfo], batch: SetTransaction | None, *, is_keyed: bool
) -> Commit | None:
    """An append of these segments that may wait for others; None if it cannot.

    `batch` is of the application that appends, if it names any. `is_keyed` says that all records have keys.
    """
    if not segments or paths.stem_read_version(segments[0].stem) is None:
        return None
    if not all(map(_is_plain, segments)):
        return None
    return Commit(
        version=0,
        id=str(uuid.uuid4()),
        prev=None,
        topic_id=snapshot.topic_id,
        timestamp_ms=0,
        operation=PENDING_KEYED if is_keyed else PENDING,
        writer="distlog",
        actions=(*map(Add, segments), *([batch] if batch else [])),
    )


class GroupCommit:
    """One append to the topic in `storage` that other writers may commit, and that may take along theirs.

    `base` is the snapshot with which it begins; every later commit must be shown to `saw`. Without an `append` it is
    of a commit that waits for nobody.
    """

    def __init__(self, storage: Storage, append: Commit | None, base: Snapshot) -> None:
        self._storage, self._append = storage, append
        self._stem, self._stems = (_first_stem(append), _added_stems(append)) if append else ("", set[str]())
        self._begin(base)
        self._listed = list[str]()
        self._goes_at: float | None = None
        self._races_at = self._ends_at = float("inf")
        self._ahead = 0
        self._others = dict[str, Commit | None]()
        self._taken = list[str]()
        self._goes_alone = self._is_over = False
        #: True once the append may be where others find it.
        self.is_left = False
        #: True once this writer takes along what waits.
        self.is_in_line = False
        #: The commit of another writer that has the append.
        self.found: Commit | None = None

    def _begin(self, base: Snapshot) -> None:
        self._base = self._version = base.version
        #: The id of the last commit that it has seen.
        self.commit_id = base.commit_id
        self._seen = set[str]()

    def is_crowd(self, commit: Commit) -> bool:
        """True if the commit, which has the append, has more than one other."""
        return len(_added_stems(commit)) > 2 * len(self._stems) > 0

    def saw(self, commit: Commit) -> None:
        """Note the next commit of the log."""
        self._version, self.commit_id, self._goes_at = commit.version, commit.id, None
        if self._append is None:
            return
        stems = _added_stems(commit)
        self._seen |= stems
        if self._stem in stems:
            self.found = commit
        self._is_over = self._is_over or any(isinstance(action, Drop) for action in commit.actions)

    @property
    def version(self) -> int:
        """The version up to which it has seen all commits, from its base on."""
        return self._version

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
        return self._append is not None and not self._goes_alone and now_s < self._races_at

    def joins_line(self, now_s: float) -> bool:
        """Let others commit the append, and look who comes before it; False if it does not wait for them.

        A large append does not wait in line, but takes along what does.
        """
        if not self.is_in_line and self._append is not None and not self._goes_alone:
            self._join(self._append.encode())
            self._races_at, self._ends_at = now_s + LONGEST_WAIT_S, now_s + LONGEST_LINE_S
        return self.is_left and self.may_wait(now_s)

    def _join(self, data: bytes) -> None:
        try:
            if len(data) <= LARGEST_PENDING:
                self.is_left = True
                self._storage.put(paths.pending_file(self._stem), data)
            self._listed, self.is_in_line = self._list(), True
        except (StorageError, FileNotFoundError) as error:
            # as where a policy lets no one list, or vacuum ended an upload: then it goes on as if there was no line
            _log.warning("appends that wait for each other cannot be stored or listed: %s", error)
            self._goes_alone = True

    def is_first(self, now_s: float) -> bool:
        """True if this writer need not wait in line: it is its turn, or it was found; `now_s` is in seconds."""
        if self._goes_at is None:
            ahead = sum(stem < self._stem for stem in self._listed if stem not in self._seen)
            if ahead < self._ahead:
                self._races_at = min(now_s + LONGEST_WAIT_S, self._ends_at)
            self._ahead = ahead
            self._goes_at = min(now_s + ahead * PATIENCE_S, self._races_at)
        waits = self.is_left and not self._goes_alone and not self._is_over
        return self.found is not None or not waits or now_s >= self._goes_at

    def others(self, head: Snapshot, actions: Sequence[Action]) -> list[Action]:
        """The actions of the appends that wait, behind this one's own `actions`, which add to `head`."""
        self._taken = []
        if (
            not self.is_in_line
            or self._goes_alone
            or not all(isinstance(own, Add | SetTransaction) for own in actions)
        ):
            return []
        own = [action.segment for action in actions if isinstance(action, Add)]
        try:
            self._listed = self._list()
        except StorageError:
            self._goes_alone = True
            return []
        ends = {segment.partition: segment.next_offset for segment in own}
        stems = {*self._seen, *(segment.stem for segment in own)}
        applications = {action.app_id for action in actions if isinstance(action, SetTransaction)}
        added, batches = list[Action](), list[Action]()
        for stem, append in self._waiting():
            if not self._may_take(head, append, stems, applications):
                continue
            offsets = dict[int, tuple[int, int]]()
            for action in append.actions:
                if isinstance(action, Add):
                    number = action.segment.partition
                    end = ends.get(number, head.partitions[number].log_end_offset)
                    segment = action.segment.at(end)
                    ends[number] = segment.next_offset
                    offsets[number] = (offsets.get(number, (end, 0))[0], segment.next_offset)
                    stems.add(segment.stem)
                    added.append(Add(segment))
                elif isinstance(action, SetTransaction):
                    applications.add(action.app_id)
                    batches.append(dataclasses.replace(action, offsets=offsets))
            self._taken.append(stem)
        return [*added, *batches]

    def go_alone(self) -> bool:
        """Take along nothing from now on, since a commit with the others is refused; False if it had none."""
        had_others, self._goes_alone, self._taken = bool(self._taken), True, []
        return had_others

    def clear(self) -> None:
        """Delete the files of what this writer has committed, and of what it knows to be committed."""
        if self.found is not None:
            return
        stems = [*self._taken, *(stem for stem in self._listed if stem in self._seen)]
        if self.is_left:
            stems.append(self._stem)
        if stems:
            self._storage.delete([paths.pending_file(stem) for stem in stems])

    def withdraw(self) -> None:
        """Delete the append's own file, as its writer gives up; a writer that has read it may commit it still."""
        if self.is_left:
            with suppress(Exception):
                self._storage.delete([paths.pending_file(self._stem)])

    def found_segments(self) -> list[SegmentInfo]:
        """The segments of the append, as the commit that was found adds them."""
        found = list[SegmentInfo]()
        for action in self.found.actions if self.found else ():
            if isinstance(action, Add) and action.segment.stem in self._stems:
                found.append(action.segment)
            elif isinstance(action, AddTable):
                own = [stem in self._stems for stem in action.rows["stem"].to_pylist()]
                found += to_segments(action.rows.filter(booleans(own)))
        return found

    def _list(self) -> list[str]:
        """The other appends that wait, in line; not those that this writer could not take along."""
        oldest = f"v{self._base:020d}"
        files = self._storage.list_after(paths.PENDING_DIR, oldest)
        stems = (paths.parse_pending_file(file.name) for file in files)
        others = (stem for stem in stems if stem is not None and stem > oldest and stem != self._stem)
        return sorted(itertools.islice(others, MOST_LISTED))

    def _waiting(self) -> Iterator[tuple[str, Commit]]:
        names = [stem for stem in self._listed if stem not in self._seen][:MOST_TOGETHER]
        unread = [stem for stem in names if stem not in self._others]
        self._others.update(zip(unread, in_parallel(self._read, unread), strict=True))
        for stem in names:
            append = self._others[stem]
            if append is not None:
                yield stem, append

    def _read(self, stem: str) -> Commit | None:
        """The append that waits under this name; None if there is none that this library can commit."""
        file = paths.pending_file(stem)
        try:
            append = Commit.decode(self._storage.read(file, 0, LARGEST_PENDING + 1), file)
        except (FileNotFoundError, StorageError, CorruptMetadataError, UnsupportedVersionError):
            return None
        return append if _first_stem(append) == stem else None

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
        oldest, parts = max(self._base, head.gc_floor), set[tuple[int, str]]()
        for add in adds:
            if not isinstance(add, Add) or not _is_plain(add.segment) or add.segment.stem in stems:
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
                file=paths.pending_file(self._stem),
            ) from error


def _is_plain(segment: SegmentInfo) -> bool:
    """True if nothing in the segment depends on the commit before it."""
    return segment.append_time_ms == -1 and not segment.has_producers and not segment.has_transactions


def _added_stems(commit: Commit) -> set[str]:
    stems = {action.segment.stem for action in commit.actions if isinstance(action, Add)}
    # each writer in line looks at each commit, so it makes no object of each segment
    tables = (action.rows["stem"].to_pylist() for action in commit.actions if isinstance(action, AddTable))
    return stems.union(*tables)


def _first_stem(append: Commit) -> str:
    first = append.actions[0] if append.actions else None
    return first.segment.stem if isinstance(first, Add) else ""
