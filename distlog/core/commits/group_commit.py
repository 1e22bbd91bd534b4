"""Group commit on an object store: a queue of pending appends, which are files, and one writer that commits them."""

from __future__ import annotations

import base64
import dataclasses
import logging
import math
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from distlog.core import paths
from distlog.core.arrays import booleans
from distlog.core.commits.actions import Action, Add, AddTable, Commit, Drop, SetTransaction
from distlog.core.commits.commit_log import CommitLog, CommitRace, PreparedCommit
from distlog.core.commits.segment_table import SegmentInfo, SegmentTable, to_segments
from distlog.core.commits.snapshot import Snapshot, apply
from distlog.core.commits.snapshot_loader import BelowHorizonError
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptMetadataError,
    DistlogError,
    OffsetOutOfRangeError,
    StorageError,
    StorageRefusedError,
    TransactionTooOldError,
    UnsupportedVersionError,
)
from distlog.core.storage.calls import in_parallel
from distlog.core.storage.storage import Storage

# docs/design/commit-log.md ("Many writers on an object store") has the steps, and why each append is committed once.
# An append is named by the stem of its first segment, so the queue sorts by the versions that the writers had read.
#
# If no earlier append is committed within LONGEST_WAIT_S, an append leaves the queue and races, since the writers of
# the earlier ones may be dead. While the queue gets shorter, no append leaves it, since only one of many racing
# writers wins. A writer skips an append that is older than its CommitHistory: an earlier commit may have the append.

#: The shortest and the longest pause between polls for the next commit, in seconds. It grows until a commit comes.
POLL_S, LONGEST_POLL_S = 0.05, 0.3
#: How long an append waits for each earlier append in the queue, in seconds.
PATIENCE_S = 1.0
#: The longest wait in the queue while no earlier append is committed, and the longest wait at all, in seconds.
LONGEST_WAIT_S, LONGEST_QUEUE_S = 3.0, 30.0
#: An append joins the queue after this many commits of other writers. If only two writers append, few join.
CONTENDED_COMMITS = 3
#: How long after a group commit a writer's next append joins the queue at once, in seconds.
QUEUE_AFTER_GROUP_COMMIT_S = 10.0
#: The most appends from the queue in one commit, and in a writer's list of the queue.
MAX_GROUP_APPENDS, MAX_LISTED_APPENDS = 200, 1000
#: If a writer can commit at least this many appends of others, it leaves one in the queue, whose writer is next.
LEAVE_ONE_OF = 2
_MAX_REMEMBERED = 64  # a process remembers the stems of this many consecutive commits

# The name of a short append's file contains the append: deflated, and in base64 for URLs. So a writer that commits
# appends only lists the folder. A hundred concurrent reads would be slow, since one read always takes long. The
# dictionary of the compression is the text that all pending appends have in common, with the topic's id and the stem.

#: The most bytes of a file, and of its whole address: stores accept 1,024 bytes for a name with its folders.
MAX_PENDING_BYTES, MAX_ADDRESS_BYTES = 64 << 10, 1000
#: The operations of pending appends: of any records, and of records that all have keys, as compacted topics require.
PENDING, PENDING_KEYED = "append", "append-keyed"
#: The text that pending appends have in common. It is part of the format: another text needs another ending of names.
_COMMON_TEXT = (
    '},{"transaction":{"app_id":"","batch_id":"offsets":{},"in_order":true}}],"operation":"append-keyed","writer":"'
    'distlog","actions":[{"add":{"partition":0,"stem":"base_offset":0,"next_offset":1,"stored_base_offset":0,'
    '"record_count":1,"log_bytes":1,"offset_index_bytes":0,"time_index_bytes":12,"txn_index_bytes":0,'
    '"first_timestamp":17,"max_timestamp":17,"offset_of_max_timestamp":0,"compression":"zstd","gzip","snappy","lz4",'
    '"none","leader_epoch":-1,"compacted":false,"has_transactions":false,"created_ms":17,"crc32c":,"min_timestamp":17,'
    '"append_time_ms":-1,"offset_index_crc32c":0,"time_index_crc32c":,"txn_index_crc32c":0,"first_batch_crc":,'
    '"last_batch_crc":,"first_unstable_offset":-1,"log_position":-1,"offset_index_position":-1,"time_index_position":'
    '-1,"has_producers":false}}],"crc32c":{"format":1,"version":0,"id":"00000000-0000-0000-0000-000000000000","prev":'
    'null,"topic_id":"","timestamp_ms":0,"operation":"append","writer":"distlog","actions":[{"adds":{"stems":[""],'
    '"partition":[0,1,1,1,1,1],"stem":0,"base_offset":0,"next_offset":[1,"stored_base_offset":0,"record_count":[1,'
    '"log_bytes":[1,"offset_index_bytes":0,"time_index_bytes":12,"txn_index_bytes":0,"first_timestamp":0,'
    '"max_timestamp":[-1,"offset_of_max_timestamp":0,"compression":"none","created_ms":[1,0,0,0,0],"crc32c":[],'
    '"min_timestamp":0,"offset_index_crc32c":0,"time_index_crc32c":[],"txn_index_crc32c":0,"first_batch_crc":[],'
    '"last_batch_crc":0,"first_unstable_offset":-1,"log_position":[0,],"time_index_position":[,12,12,12,12]}}],'
    '"crc32c":'
)
_NO_ID = str(uuid.UUID(int=0))
_RAW_DEFLATE = -15  # the `wbits` of zlib for deflate without a header and a checksum
_log = logging.getLogger(__name__)


class PendingAppendQueue:
    """The queue of pending appends of the topic of `log`, as one process uses it."""

    def __init__(self, log: CommitLog) -> None:
        self.log, self.storage = log, log.storage
        self.history = CommitHistory()
        #: The stem of the append whose writer commits next, if the commit of the last append names one.
        self._turn_stem: str | None = None
        self._is_usable = True
        #: True for a store that refuses names long enough to hold an append.
        self.has_short_names = False

    def race(
        self,
        snapshot: Snapshot,
        segments: Sequence[SegmentInfo],
        batch: SetTransaction | None,
        *,
        read_version: int | None,
        is_keyed: bool,
    ) -> CommitRace:
        """The race of an append. Other writers may commit it, unless it has many segments or transactions."""
        append = pending_append(snapshot, segments, batch, is_keyed=is_keyed) if self._is_usable else None
        if append is None:
            return CommitRace(self.log, snapshot, "append", read_version=read_version)
        # after a further commit the turn is unknown, since this commit may have the append whose turn it was
        turn_stem = self._turn_stem if snapshot.commit_id == self.history.commit_id else None
        return AppendRace(AppendTicket(self, append, snapshot, self.history, turn_stem), snapshot, read_version)

    def leave(self, ticket: AppendTicket, commit: Commit) -> None:
        """Delete committed appends from the queue, and note a group commit; `commit` has the ticket's append."""
        is_group_commit = ticket.is_contended or ticket.is_group_commit(commit)
        self.log.last_group_commit_s = self.log.monotonic() if is_group_commit else -math.inf
        # the history has commits of other writers already, but not this writer's own
        self.history = ticket.history if commit is ticket.group_commit else ticket.history.with_next(commit)
        self._turn_stem = commit.next_append
        try:
            ticket.delete_committed()
        except StorageError as error:
            _log.warning("cannot delete committed appends, so this process no longer uses the queue: %s", error)
            self._is_usable = False


class AppendRace(CommitRace):
    """The race of an append that another writer may commit, and whose writer may commit the appends of others."""

    def __init__(self, ticket: AppendTicket, snapshot: Snapshot, read_version: int | None) -> None:
        self._queue, self._ticket = ticket.queue, ticket
        super().__init__(ticket.queue.log, snapshot, "append", read_version=read_version)
        self._should_join_queue = self._log.monotonic() < self._log.last_group_commit_s + QUEUE_AFTER_GROUP_COMMIT_S

    def __iter__(self) -> Iterator[Snapshot]:
        while self.commit is None:
            self.snapshot = head = self._log.existing_head(self.snapshot)
            self._catch_up(head)
            if self._ticket.group_commit is not None:
                self.commit = self._ticket.group_commit
                # the topic may have been dropped since
                self.snapshot = head if head.continues(self._start) else self._start
                return
            self._check_head(head)
            yield head

    def put(self, actions: Sequence[Action]) -> None:
        if self._should_join_queue and self._ticket.join(self._log.monotonic()):
            self._should_join_queue = False
            self._wait_in_queue()
        else:
            super().put(actions)

    def as_committed(self, segments: Sequence[SegmentInfo]) -> Sequence[SegmentInfo]:
        commit = self._ticket.group_commit
        return segments if commit is None else self._ticket.segments_in(commit)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if self.commit is not None:
            self._queue.leave(self._ticket, self.commit)
            return
        self._ticket.withdraw()
        if error is not None:
            self._ticket.raise_if_in_doubt(error)

    def _prepare(self, actions: Sequence[Action], next_append: str | None = None) -> PreparedCommit:
        """The commit of `actions` and other pending appends, or of `actions` alone if the group is not valid."""
        ticket = self._ticket
        try:
            together = [*actions, *ticket.group_actions(self.snapshot, actions)]
            return super()._prepare(together, ticket.next_append)
        except CommitConflictError:
            if not ticket.commit_alone():
                raise
        return super()._prepare(actions)

    def _lose_to(self, winner: Commit) -> None:
        self.backoff.note_loss(winner)
        may_queue = self._ticket.may_queue(self._log.monotonic())
        # one loss may be due to one other writer, and two need no queue: one writes files while the other commits
        is_first_loss = self.backoff.probe_count() == 1  # it is larger from the second loss on
        if not may_queue or (winner.next_append is None and is_first_loss):
            self.backoff.wait()
        self._follow(winner)
        self._should_join_queue = self._ticket.is_contended and self._ticket.may_queue(self._log.monotonic())

    def _follow(self, winner: Commit) -> None:
        self._follow_commits(apply(self.snapshot, winner), [winner], self.backoff.probe_count())

    def _wait_in_queue(self) -> None:
        ticket, log, polls = self._ticket, self._log, 0
        while not ticket.is_wait_over(log.monotonic()):
            if polls:
                # poll less often, the longer no commit comes
                log.sleep(log.random.uniform(0.5, 1.5) * min(POLL_S * polls, LONGEST_POLL_S))
            head = self.snapshot
            self._follow_commits(head, [], one_request=True)
            # after new commits the next ones may come soon
            polls = polls + 1 if self.snapshot is head else min(polls, 1)
            if ticket.group_commit is None:
                self.backoff.check_deadline()

    def _follow_commits(
        self, snapshot: Snapshot, commits: list[Commit], probes: int = 1, *, one_request: bool = False
    ) -> None:
        """Follow the log from `snapshot`, which includes `commits`; `one_request` ends at the first new commits."""
        log, base = self._log, self.snapshot
        try:
            self.snapshot = log.loader.follow(
                snapshot, first_group=probes, base=base, commits=commits, one_request=one_request
            )
        except BelowHorizonError:
            self.snapshot = log.reload(base)
            self._catch_up(self.snapshot)
        else:
            # not before `follow`, which raises if a commit was put at the version of a deleted one
            self._ticket.observe(commits)

    def _catch_up(self, head: Snapshot) -> None:
        """Make the ticket observe the commits up to `head` that it has not observed, if they can be read."""
        ticket = self._ticket
        version, commit_id = ticket.history.version, ticket.history.commit_id
        if version == head.version:
            return
        try:
            commits = self._log.commits(version + 1, head.version + 1) if ticket.is_queued else []
        except (CorruptMetadataError, OffsetOutOfRangeError):
            commits = []
        if commits and commits[0].prev == commit_id and commits[-1].id == head.commit_id:
            ticket.observe(commits)
        else:
            ticket.lose_track(head)


@dataclass(frozen=True, slots=True)
class CommitHistory:
    """The stems in each commit that a process has read up to the one with `commit_id`, the newest last."""

    version: int = -1
    commit_id: str = ""
    stems: tuple[frozenset[str], ...] = ()

    def with_next(self, commit: Commit) -> CommitHistory:
        earlier = self.stems if self.commit_id == commit.prev else ()
        stems = (*earlier, frozenset(_added_stems(commit)))
        return CommitHistory(commit.version, commit.id, stems[-_MAX_REMEMBERED:])


class AppendTicket:
    """One append that other writers may commit. `observe` must get every commit after `base`."""

    def __init__(
        self, queue: PendingAppendQueue, append: Commit, base: Snapshot, history: CommitHistory, turn_stem: str | None
    ) -> None:
        self.queue, self._storage, self._append = queue, queue.storage, append
        self._stem, self._stems = first_stem(append.actions), _added_stems(append)
        self._file = ""
        self._start_at(base)
        if history.commit_id == base.commit_id:
            # the history has the stems of the commits after this version
            self.history, self._base_version = history, history.version - len(history.stems)
            self._committed_stems.update(*history.stems)
        #: The stem of the append whose writer commits next, as named by the commit of `base`, and by later commits.
        self._first_turn_stem = turn_stem
        self._turn_stem: str | None = None
        #: The files of the last list of the queue, by stem; None before the first list.
        self._files: dict[str, str] | None = None
        #: When this writer's turn comes by its place in the queue; None if unknown. While `_waits_for_named_turn`, it
        #: is when this writer stops waiting for the writer of `_turn_stem`.
        self._turn_at_s: float | None = None
        self._waits_for_named_turn = False
        #: When the append leaves the queue, and the latest time to which a shrinking queue may postpone that.
        self._race_at_s = math.inf
        self._leave_at_s = math.inf
        self._commit_count = 0
        self._has_queue_shrunk = False
        #: The pending appends that were read, by stem, and the stems in the group of this writer's last commit.
        self._appends = dict[str, Commit | None]()
        self._group = list[str]()
        self._commits_alone = False
        self._is_topic_dropped = False
        #: True once the append's file may be in the queue, so that other writers may commit it.
        self.is_queued = False
        #: True once this writer commits the appends of others, too, even if its own one is too large for the queue.
        self.is_grouping = False
        #: The commit of another writer that has the append.
        self.group_commit: Commit | None = None
        #: The append that the next commit leaves in the queue, so that its writer commits next.
        self.next_append: str | None = None

    def _start_at(self, base: Snapshot) -> None:
        self._base_version = base.version
        #: The commits up to the last observed one.
        self.history = CommitHistory(base.version, base.commit_id)
        self._committed_stems = set[str]()

    def is_group_commit(self, commit: Commit) -> bool:
        """True if the commit has more than twice as many stems as this append, so probably two other appends."""
        return len(_added_stems(commit)) > 2 * len(self._stems)

    def segments_in(self, commit: Commit) -> list[SegmentInfo]:
        segments = list[SegmentInfo]()
        for action in commit.actions:
            if isinstance(action, Add) and action.segment.stem in self._stems:
                segments.append(action.segment)
            elif isinstance(action, AddTable):
                is_own = [stem in self._stems for stem in action.rows["stem"].to_pylist()]
                segments += to_segments(action.rows.filter(booleans(is_own)))
        return segments

    def observe(self, commits: Iterable[Commit]) -> None:
        """Note the next commits of the log: whether they have the append, and whose turn it is."""
        for commit in commits:
            self.history = self.history.with_next(commit)
            self._commit_count += 1
            stems = self.history.stems[-1]
            self._committed_stems |= stems
            if self._stem in stems:
                self.group_commit = commit
            # a named turn lasts until its append is committed, or a commit names the next one
            if commit.next_append or self._turn_stem is None or self._turn_stem in stems:
                self._turn_stem, self._turn_at_s = commit.next_append, None
            earlier_stems = (stem for stem in stems if stem < self._stem)
            self._has_queue_shrunk |= any(self._files is None or stem in self._files for stem in earlier_stems)
            self._is_topic_dropped |= any(isinstance(action, Drop) for action in commit.actions)

    @property
    def is_contended(self) -> bool:
        """True after CONTENDED_COMMITS commits since the append started, or if a commit names the next append."""
        return self._commit_count >= CONTENDED_COMMITS or self._turn_stem is not None

    def lose_track(self, head: Snapshot) -> None:
        """Start again at `head`; CommitStateUnknownError if the deleted commits before it may have the append."""
        if self.is_queued and not self._is_topic_dropped:
            text = "the append may be in a commit that vacuum deleted: check whether its records exist"
            raise CommitStateUnknownError(text, version=head.version)
        self._start_at(head)

    def may_queue(self, now_s: float) -> bool:
        """True if the append may wait in the queue; False if it must race. `now_s` is in seconds."""
        is_too_large = self.is_grouping and not self.is_queued  # see `join`
        return not self._commits_alone and not is_too_large and now_s < self._race_at_s

    def join(self, now_s: float) -> bool:
        """Put the append into the queue, unless it is large, and list the queue; True if the append waits there."""
        if not self.is_grouping and not self._commits_alone:
            self._turn_stem = self._turn_stem or self._first_turn_stem
            data = self._append.encode()
            try:
                if len(data) <= MAX_PENDING_BYTES:
                    self._store(data)
                if self._turn_stem is None:  # otherwise `_wait_s` lists, after the wait for the named writer
                    self._files = self._list()
                self.is_grouping = True
            except (StorageError, FileNotFoundError) as error:
                # a policy may forbid listings, or vacuum may have aborted the upload: continue without a queue
                _log.warning("cannot store or list pending appends, so this append is committed alone: %s", error)
                self._commits_alone = True
            self._race_at_s, self._leave_at_s = now_s + LONGEST_WAIT_S, now_s + LONGEST_QUEUE_S
        return self.is_queued and self.may_queue(now_s)

    def _store(self, data: bytes) -> None:
        """Put the append's file, under a short name if the store refuses the long one (some allow 255 bytes)."""
        queue = self.queue
        self._file = pending_file(self._append, data, self._storage, by_name=not queue.has_short_names)
        try:
            self._storage.put(self._file, data)
        except StorageRefusedError:
            if queue.has_short_names:
                raise
            queue.has_short_names = True
            self._store(data)
        except BaseException:
            self.is_queued = True  # the file may exist
            raise
        self.is_queued = True

    def is_wait_over(self, now_s: float) -> bool:
        """True if the writer must not wait: it is its turn, or the append is committed; `now_s` is in seconds."""
        if self.group_commit is not None or not self.is_queued or self._commits_alone or self._is_topic_dropped:
            return True
        if self._has_queue_shrunk:
            self._has_queue_shrunk = False
            self._race_at_s = min(now_s + LONGEST_WAIT_S, self._leave_at_s)
        if self._turn_at_s is None:
            self._waits_for_named_turn = self._turn_stem not in (None, self._stem)
            self._turn_at_s = now_s + (PATIENCE_S if self._waits_for_named_turn else self._wait_s())
        if self._waits_for_named_turn and now_s >= self._turn_at_s:
            # the named writer may be dead: now wait for the writers of earlier appends
            self._turn_at_s = now_s + self._wait_s()
            self._waits_for_named_turn = False
        return self._commits_alone or now_s >= min(self._turn_at_s, self._race_at_s)

    def _wait_s(self) -> float:
        """The seconds until this writer's turn if no commit comes: PATIENCE_S for each earlier append."""
        if self._turn_stem == self._stem:
            return 0.0
        try:
            self._files = self._list() if self._files is None else self._files
        except StorageError:
            self._commits_alone = True
            return 0.0
        pending = (stem for stem in self._files if stem not in self._committed_stems and stem != self._turn_stem)
        return PATIENCE_S * sum(stem < self._stem for stem in pending)

    def group_actions(self, head: Snapshot, actions: Sequence[Action]) -> list[Action]:
        """The actions of other writers' pending appends, for a commit after `head` that begins with `actions`."""
        self._group, self.next_append = [], None
        may_group = self.is_grouping and not self._commits_alone
        if not may_group or not all(isinstance(action, Add | SetTransaction) for action in actions):
            return []
        segments = [action.segment for action in actions if isinstance(action, Add)]
        try:
            self._files = self._list()
        except StorageError:
            self._commits_alone = True
            return []
        stems = {*self._committed_stems, *(segment.stem for segment in segments)}
        applications = {action.app_id for action in actions if isinstance(action, SetTransaction)}
        group = dict[str, Commit]()
        for stem, append in self._read_pending(head.topic_id):
            if self._may_commit(head, append, stems, applications):
                group[stem] = append
                stems |= _added_stems(append)
                applications.update(action.app_id for action in append.actions if isinstance(action, SetTransaction))
        if len(group) >= LEAVE_ONE_OF:
            # the writer of the oldest append can commit the most others; a writer that had its turn may be dead
            self.next_append = next(stem for stem in group if stem != self._turn_stem)
            del group[self.next_append]
        self._group = list(group)
        return _at_log_ends(group.values(), head, {segment.partition: segment.next_offset for segment in segments})

    def commit_alone(self) -> bool:
        """Commit no other appends from now on; False if the last commit had none."""
        had_group, self._commits_alone = bool(self._group), True
        self._group, self.next_append = [], None
        return had_group

    def delete_committed(self) -> None:
        """Delete the files of appends in the commits of this writer, and in those that it has read."""
        if self.group_commit is not None:
            return  # the writer of that commit deletes them
        committed = {*self._group, *self._committed_stems}
        files = [file for stem, file in (self._files or {}).items() if stem in committed]
        if self.is_queued:
            files.append(self._file)
        if files:
            self._storage.delete(files)

    def withdraw(self) -> None:
        """Delete the file of an append that is given up. A writer that has read the file may still commit it."""
        if self.is_queued:
            with suppress(Exception):
                self._storage.delete([self._file])

    def raise_if_in_doubt(self, error: BaseException) -> None:
        """Raise CommitStateUnknownError if other writers may commit the append, or may have done so."""
        is_certain = not self.is_queued or self._is_topic_dropped or isinstance(error, TransactionTooOldError)
        if is_certain or not isinstance(error, DistlogError) or isinstance(error, CommitStateUnknownError):
            return
        text = "other writers may still commit the append, which was in the queue: check whether its records exist"
        raise CommitStateUnknownError(text, file=self._file) from error

    def _list(self) -> dict[str, str]:
        """The files of other pending appends, by stem in order, without those from before the commit history."""
        # this name sorts before the stems of writers that had read this version
        oldest, files = f"v{self._base_version:020d}", dict[str, str]()
        for file in self._storage.list_after(paths.PENDING_DIR, oldest):
            stem = paths.parse_pending_file(file.name)
            if stem is not None and stem > oldest and stem != self._stem:
                files[stem] = file.name
                if len(files) == MAX_LISTED_APPENDS:
                    break
        return dict(sorted(files.items()))

    def _read_pending(self, topic_id: str) -> Iterator[tuple[str, Commit]]:
        files = self._files or {}
        stems = list(islice((stem for stem in files if stem not in self._committed_stems), MAX_GROUP_APPENDS))
        # appends in names need no request
        for stem in stems:
            if stem not in self._appends and paths.actions_in_pending_name(files[stem]) is not None:
                self._appends[stem] = read_pending(self._storage, files[stem], topic_id)
        unread = [stem for stem in stems if stem not in self._appends]
        appends = in_parallel(lambda stem: read_pending(self._storage, files[stem], topic_id), unread)
        self._appends.update(zip(unread, appends, strict=True))
        for stem in stems:
            append = self._appends[stem]
            if append is not None:
                yield stem, append

    def _may_commit(self, head: Snapshot, append: Commit, stems: set[str], applications: set[str]) -> bool:
        """True if the append may follow `head`, and its stems and application are not among the committed ones."""
        if append.topic_id != head.topic_id or append.operation not in (PENDING, PENDING_KEYED):
            return False
        if "compact" in head.config.cleanup_policy and append.operation != PENDING_KEYED:
            return False
        *adds, last = append.actions
        # only the last action may be another kind than Add, see `pending_append`
        if not isinstance(last, SetTransaction):
            adds.append(last)
        elif last.app_id in applications or head.transactions.has(last.app_id, last.batch_id, in_order=last.in_order):
            return False
        elif not last.in_order and head.transactions.size > head.config.batch_ids_bytes:
            return False  # its own writer refuses it, too
        oldest_version, files = max(self._base_version, head.gc_floor), set[tuple[int, str]]()
        for add in adds:
            if not isinstance(add, Add) or not is_independent(add.segment) or add.segment.stem in stems:
                return False
            read_version = paths.stem_read_version(add.segment.stem)
            is_usable = read_version is not None and oldest_version <= read_version <= head.version
            if not is_usable or add.segment.partition >= len(head.partitions):
                return False
            files.add((add.segment.partition, add.segment.stem))
        return len(files) == len(adds)


def _added_stems(commit: Commit) -> set[str]:
    stems = {action.segment.stem for action in commit.actions if isinstance(action, Add)}
    # without an object for each segment, since each writer in the queue observes each commit
    tables = (action.rows["stem"].to_pylist() for action in commit.actions if isinstance(action, AddTable))
    return stems.union(*tables)


def _at_log_ends(appends: Iterable[Commit], head: Snapshot, ends: dict[int, int]) -> list[Action]:
    """Return the actions of `appends` at the log ends in `ends`, or else in `head`; advances `ends`."""
    added, batches = list[Action](), list[Action]()
    for append in appends:
        offsets = dict[int, tuple[int, int]]()
        for action in append.actions:
            if isinstance(action, Add):
                number = action.segment.partition
                end = ends.get(number, head.partitions[number].log_end_offset)
                segment = action.segment.moved_to(end)
                ends[number] = segment.next_offset
                offsets[number] = (offsets.get(number, (end, 0))[0], segment.next_offset)
                added.append(Add(segment))
            elif isinstance(action, SetTransaction):
                batches.append(dataclasses.replace(action, offsets=offsets))
    return [*added, *batches]


def pending_append(
    snapshot: Snapshot, segments: Sequence[SegmentInfo], batch: SetTransaction | None, *, is_keyed: bool
) -> Commit | None:
    """An append that other writers may commit; None for a SegmentTable (many), or if a segment is not independent."""
    is_small = not isinstance(segments, SegmentTable) and len(segments) > 0
    if not is_small or not paths.is_own_stem(segments[0].stem) or not all(map(is_independent, segments)):
        return None
    return Commit(
        version=0,
        id=_NO_ID,
        prev=None,
        topic_id=snapshot.topic_id,
        timestamp_ms=0,
        operation=PENDING_KEYED if is_keyed else PENDING,
        writer="distlog",
        actions=(*map(Add, segments), *([batch] if batch else [])),
    )


def is_independent(segment: SegmentInfo) -> bool:
    """True if the segment can be committed after any head: nothing in it depends on earlier commits."""
    return segment.append_time_ms == -1 and not segment.has_producers and not segment.has_transactions


def first_stem(actions: Sequence[Action]) -> str:
    """The stem of the first action's segment, by which a pending append is named; "" if it adds none."""
    first = actions[0] if actions else None
    return first.segment.stem if isinstance(first, Add) else ""


def pending_file(append: Commit, data: bytes, storage: Storage, *, by_name: bool = True) -> str:
    """Return the file name of an append, encoded as `data`; `by_name`: with the append in the name, if it fits."""
    stem = first_stem(append.actions)
    if not by_name:
        return paths.pending_file(stem)
    deflate = zlib.compressobj(9, zlib.DEFLATED, _RAW_DEFLATE, zdict=_dictionary(stem, append.topic_id))
    text = base64.urlsafe_b64encode(deflate.compress(data) + deflate.flush()).rstrip(b"=").decode()
    if len(storage.url.encode()) + len(paths.pending_file(stem, "x")) + len(text) <= MAX_ADDRESS_BYTES:
        return paths.pending_file(stem, text)
    return paths.pending_file(stem)


def read_pending(storage: Storage, file: str, topic_id: str) -> Commit | None:
    """The append in the file or its name; None if this library cannot read it, or the file was deleted."""
    stem, text = paths.parse_pending_file(file) or "", paths.actions_in_pending_name(file)
    try:
        if text is None:
            data = storage.read(file, 0, MAX_PENDING_BYTES + 1)
        else:
            deflated = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            decompressor = zlib.decompressobj(_RAW_DEFLATE, zdict=_dictionary(stem, topic_id))
            data = decompressor.decompress(deflated, MAX_PENDING_BYTES)
        append = Commit.decode(data, file)
    except (FileNotFoundError, StorageError, CorruptMetadataError, UnsupportedVersionError, ValueError, zlib.error):
        return None
    return append if first_stem(append.actions) == stem else None


def _dictionary(stem: str, topic_id: str) -> bytes:
    return f"{_COMMON_TEXT}{topic_id}{stem}".encode()
