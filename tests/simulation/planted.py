"""Known bugs, planted one at a time. The simulation must find them."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from commits import put_commit, put_state

from distlog.core import times, topic
from distlog.core.commits import (
    checkpoint,
    commit_log,
    group_commit,
    snapshot,
    snapshot_loader,
)
from distlog.core.commits.actions import SetLogStartOffset, SetTransaction
from distlog.core.commits.commit_log import CommitLog, CommitRace
from distlog.core.commits.deduplication import NO_PRODUCERS, NO_TRANSACTIONS
from distlog.core.commits.group_commit import AppendRace, AppendTicket
from distlog.core.commits.partition_table import PartitionTable
from distlog.core.commits.snapshot import PartitionDraft, Snapshot
from distlog.core.commits.snapshot_loader import CommitFiles
from distlog.core.errors import CommitStateUnknownError, StorageError
from distlog.core.kafka import adopt, export
from distlog.core.maintain import merge, merge_job, restore, vacuum
from distlog.core.maintain.group_rewrite import SegmentGroup
from distlog.core.maintain.vacuum import StemSet
from distlog.core.read import consumer_group
from distlog.core.storage import calls, object_store
from distlog.core.write import append as append_commit
from distlog.core.write import engine, producer
from distlog.gateway import cluster
from distlog.gateway.topics import gathered_appends
from distlog.gateway.transactions import transaction_coordinator
from simulation import planted_records, planted_state
from simulation.threads import current

Plant = Callable[[], Any]


def patched(owner: Any, name: str, *replacement: Any, **options: Any) -> Plant:
    """Replace a name of the library while the bug is planted."""
    return lambda: mock.patch.object(owner, name, *replacement, **options)


def _read_back(read_back: Callable[[], bytes], path: str) -> bytes:
    for _ in range(20):
        with suppress(Exception):
            return read_back()
    raise StorageError("cannot read it", file=path) from None


def _exists_means_lost() -> Any:
    """A writer whose own response was lost takes its commit for another writer's."""
    unanswered, put = set[bytes](), CommitLog.put_if_next

    def resolve_put(create: Any, read_back: Any, path: str, errors: Any, deadline: Any) -> bytes:
        try:
            return create()
        except FileExistsError:
            stored = _read_back(read_back, path)
            unanswered.add(stored)
            return stored
        except Exception:
            return calls.resolve_put(create, read_back, path, errors, deadline)

    def put_and_forget(self: Any, attempt: Any, timeout_s: float, put_time: Any) -> bytes | None:
        winner = put(self, attempt, timeout_s, put_time)
        return attempt.data if winner is None and attempt.data in unanswered else winner

    patches = ExitStack()
    patches.enter_context(mock.patch.object(object_store, "resolve_put", resolve_put))
    patches.enter_context(mock.patch.object(CommitLog, "put_if_next", put_and_forget))
    return patches


def _unclear_means_failed(
    create: Callable[[], bytes], read_back: Callable[[], bytes], path: str, errors: Any, deadline: Any
) -> bytes:
    """A failed put counts as not stored."""
    try:
        return create()
    except FileExistsError:
        return _read_back(read_back, path)
    except Exception as error:
        raise StorageError("nothing was written", file=path) from error


def _unknown_means_failed(*arguments: Any) -> bytes:
    """An unknown outcome counts as a failure after the deadline."""
    try:
        return calls.resolve_put(*arguments)
    except CommitStateUnknownError as error:
        raise StorageError("nothing was written") from error


def _put_overwrites() -> Any:
    """The put of a commit has no condition."""

    def create(self: Any, path: str, data: bytes) -> bytes:
        self._put(path, data)
        return data

    return mock.patch.object(object_store.ObjectStore, "_create", create)


def _replays_only_at_first() -> Any:
    """The writer looks for an application's batch at first, and not before the commit."""
    real, look_up, inside = append_commit.commit_append, append_commit.earlier_result, set[object]()

    def commit(*arguments: Any, **named: Any) -> Any:
        inside.add(current())
        try:
            return real(*arguments, **named)
        finally:
            inside.discard(current())

    def earlier_result(*arguments: Any, **named: Any) -> Any:
        return None if current() in inside else look_up(*arguments, **named)

    return mock.patch.multiple(append_commit, commit_append=commit, earlier_result=earlier_result)


def _old_files_are_committed() -> Any:
    """The writer commits files that vacuum may have deleted."""
    every = ExitStack()
    every.enter_context(mock.patch.object(commit_log, "check_read_version", return_value=None))
    every.enter_context(mock.patch.object(snapshot, "first_stem_below", return_value=None))
    return every


def _delay_of(factor: float) -> Plant:
    """Vacuum overestimates the age of a version."""

    def plant() -> Any:
        real = vacuum.CommitsFolder.head_at

        def head_at(commits: Any, time_ms: int, now_ms: int) -> int | None:
            return real(commits, now_ms - int((now_ms - time_ms) * factor), now_ms)

        return mock.patch.object(vacuum.CommitsFolder, "head_at", head_at)

    return plant


def _vacuum_by_own_clock() -> Any:
    """Vacuum uses the clock of its process instead of the store's."""
    real = vacuum.vacuum

    def run(storage: Any, log: CommitLog, **named: Any) -> Any:
        storage_of_process = storage.child("")
        storage_of_process._set_folder(storage.url)
        storage_of_process.now_ms = lambda folder: times.now_ms()
        return real(storage_of_process, log, **named)

    return mock.patch.object(topic, "vacuum", run)


def _vacuum_forgets_what_was_removed() -> Any:
    """Vacuum ignores files that commits removed since the vacuum horizon."""
    real = vacuum.removals

    def forgetful(*arguments: Any, **named: Any) -> Any:
        removals = real(*arguments, **named)
        removals.stems = StemSet()
        return removals

    return mock.patch.object(vacuum, "removals", forgetful)


def _late_misses_are_believed() -> Any:
    """A missing object counts as missing, even if the response came late."""

    def believed(self: Any, base: Any, head: Any, store_ms: int) -> Any:
        head.note_seen(store_ms)
        return head

    return mock.patch.object(snapshot_loader.SnapshotLoader, "_if_newest", believed)


def _log_floor_is_not_committed() -> Any:
    """Vacuum deletes commits without raising the log retention horizon first."""
    real = vacuum._raise_floor

    def raise_floor(*arguments: Any) -> Any:
        head, freed = real(*arguments[:-1], 0)
        return dataclasses.replace(head, log_floor=max(head.log_floor, arguments[-1])), freed

    return mock.patch.object(vacuum, "_raise_floor", raise_floor)


def _no_checkpoint_at_the_floor() -> Any:
    """Vacuum deletes commits although no checkpoint has their state."""

    def floor(storage: Any, log: Any, head: Snapshot, folder: Any, highest: int, **_: Any) -> int:
        return max(head.log_floor, highest)

    return mock.patch.multiple(vacuum, next_log_floor=floor, ensure_checkpoint=lambda *_: True)


def _newest_commits_go_first() -> Any:
    """Vacuum deletes the newest of the old commits first."""
    real = vacuum.delete_below

    def delete(storage: Any, files: Any) -> None:
        for file in sorted(files, key=lambda file: file.name, reverse=True):
            real(storage, [file])

    return mock.patch.object(vacuum, "delete_below", delete)


def _commits_of(now_ms: Callable[[int], int], factor: float = 1.0) -> Plant:
    """Vacuum uses another present time, or another retention, for old commits."""

    def plant() -> Any:
        def highest(head: Snapshot, folder: Any, gc_floor: int, true_ms: int) -> int:
            now = now_ms(true_ms)
            kept_ms = int((head.commits_kept_ms or 10**15) * factor)
            head_then = folder.head_at(now - kept_ms, max(now, true_ms))
            return min(-1 if head_then is None else head_then, gc_floor)

        return mock.patch.object(vacuum, "highest_log_floor", highest)

    return plant


def _a_hole_is_passed_over() -> Any:
    """A reader that misses a version continues with the next one."""

    def commits(sequence: Any) -> Iterator[Any]:
        yield from (commit for commit in sequence if commit is not None)

    return mock.patch.object(snapshot_loader, "_until_missing", commits)


def _stale_members_commit() -> Any:
    """A member commits offsets of partitions that another member owns."""
    real = consumer_group.Membership.commit

    def commit(self: Any, positions: Any, *, back: bool = False) -> None:
        def plan(state: Any) -> Any:
            return dataclasses.replace(state, positions={**state.positions, **positions})

        if self.state is None:
            return real(self, positions, back=back)
        put_state(self.log, self.state, plan)
        return None

    return mock.patch.object(consumer_group.Membership, "commit", commit)


def _others_die_at_once() -> Any:
    """A member takes other members for dead at once."""

    def dead(self: Any, state: Any) -> set[str]:
        return {member.id for member in state.members if member.id != self.id}

    return mock.patch.object(consumer_group.Membership, "_dead_ids", dead)


def _without_part(name: str, value: Any) -> Plant:
    """A checkpoint lacks a part of the state."""

    def plant() -> Any:
        real = checkpoint.encode
        return mock.patch.object(
            checkpoint, "encode", lambda snapshot: real(dataclasses.replace(snapshot, **{name: value}))
        )

    return plant


def _nothing_is_committed_unchecked() -> Any:
    """A fenced producer commits a transaction without records."""
    real = producer.TransactionSender.commit

    def commit(self: Any) -> Any:
        if self._segments is None:
            self._segments = self._open_appender().close()
        if self._segments:
            return real(self)
        self._appender = None
        return producer.AppendResult(None)

    return mock.patch.object(producer.TransactionSender, "commit", commit)


def _an_abort_believes_in_itself() -> Any:
    """A producer reports an abort without checking whether its commit succeeded."""

    def abort(self: Any) -> None:
        self._open_appender().abort()
        self._appender = None

    return mock.patch.object(producer.TransactionSender, "abort", abort)


def _a_checkpoint_lacks_producers() -> Any:
    """A checkpoint lacks the producers of its partitions."""
    real = checkpoint.encode

    def encode(snapshot: Any) -> bytes:
        bare = [dataclasses.replace(part, producers=NO_PRODUCERS) for part in snapshot.partitions]
        return real(dataclasses.replace(snapshot, partitions=PartitionTable.of(bare)))

    return mock.patch.object(checkpoint, "encode", encode)


def _a_restore_leaves_starts() -> Any:
    """A restore brings segments back, and leaves the log start offset."""
    real = restore._actions

    def actions(restored: Any, version: int) -> Iterator[Any]:
        yield from real(restored, version)
        yield from (SetLogStartOffset(part.partition, part.start_before) for part in restored)

    return mock.patch.object(restore, "_actions", actions)


def _a_log_start_goes_back() -> Any:
    """A commit may lower a log start offset."""

    def set_log_start_offset(self: Any, offset: int) -> None:
        self._log_start_offset = offset

    def delete(handle: Any, snapshot: Any, offsets: Mapping[int, int]) -> Any:
        actions = [SetLogStartOffset(number, offset) for number, offset in offsets.items()]
        _, after = put_commit(handle.log, snapshot, "delete-records", lambda current: actions)
        return dict(offsets), after

    patches = ExitStack()
    patches.enter_context(mock.patch.object(PartitionDraft, "set_log_start_offset", set_log_start_offset))
    patches.enter_context(mock.patch.object(topic, "delete_records", delete))
    return patches


def _a_failed_read_is_the_end() -> Any:
    """A commit that fails to be read counts as missing."""
    real = CommitFiles.read

    def read(self: Any, version: int, **named: Any) -> Any:
        try:
            return real(self, version, **named)
        except StorageError:
            return None

    return mock.patch.object(CommitFiles, "read", read)


def _a_loser_does_not_plan_again() -> Any:
    """A writer that lost a race commits its first plan."""
    real = CommitRace.put

    def put(self: Any, actions: Any) -> bool:
        self.first_actions = getattr(self, "first_actions", actions)
        return real(self, self.first_actions)

    return mock.patch.object(CommitRace, "put", put)


def _a_drop_ends_snapshots() -> Any:
    """Vacuum does not keep what a drop removed."""
    real = vacuum.removals

    def forgetful(*arguments: Any, **named: Any) -> Any:
        return dataclasses.replace(real(*arguments, **named), before_drops=[])

    return mock.patch.object(vacuum, "removals", forgetful)


def _bundles_are_forgotten() -> Any:
    """Vacuum looks for segments, and not for their bundles."""
    real = StemSet.has

    def has(self: Any, stems: Any) -> Any:
        return real(self, stems) & np.array([partition is not None for partition, _ in stems])

    return mock.patch.object(StemSet, "has", has)


def _groups_outlive_topics() -> Any:
    """A group's offsets apply to a new topic of the same name."""
    real = consumer_group.GroupLog.__init__

    def init(self: Any, storage: Any, topic_id: str, group: str, **named: Any) -> None:
        real(self, storage, str(uuid.UUID(int=0)), group, **named)

    return mock.patch.object(consumer_group.GroupLog, "__init__", init)


def _nobody_begins_to_lead() -> Any:
    """A gateway leads partitions without a commit, so the previous leader continues."""

    def begin(self: Any, partitions: Any, may_lead: Any = lambda: None) -> None:
        may_lead()
        snapshot = self._current.refresh()
        self._epochs = {**self._epochs, **{number: cluster._epoch(snapshot, number) for number in partitions}}

    return mock.patch.object(cluster.Leadership, "begin", begin)


def _decisions_are_not_stored() -> Any:
    """A coordinator reports its decision before it is stored."""

    def decide(self: Any, transaction: Any, decided: Any) -> None:
        transaction.state = decided

    return mock.patch.object(transaction_coordinator.TransactionCoordinator, "_decide", decide)


def _names_of_copies_are_offsets() -> Any:
    """An import of a log that has grown reuses the names of an earlier import, whose files it deletes first."""
    real = adopt.write_partition

    def write_partition(topic: Any, name: str, partition: Any, **named: Any) -> None:
        topic.delete(adopt.written_files(topic, name, [partition]))
        real(topic, name, partition, **named)

    return mock.patch.multiple(
        adopt, with_names_of_contents=lambda partition: partition, write_partition=write_partition
    )


def _of_spark(name: str, change: Any) -> Plant:
    """A change of Spark's sink, imported when the bug is planted since that takes seconds."""
    return lambda: mock.patch(f"distlog.spark.sink.{name}", change)


def _without_a_number(*arguments: Any, **named: Any) -> Any:
    return append_commit.commit_append(*arguments, **{**named, "app_id": None, "batch_id": None})


# ---
# The checkpoint at the log retention horizon, and the bound of batch ids.


def _the_floor_has_another_checkpoint() -> Any:
    """Vacuum writes a checkpoint of the head, not of the version that it keeps."""
    real = vacuum.next_log_floor

    def floor(storage: Any, log: CommitLog, head: Snapshot, *arguments: Any, **named: Any) -> int:
        return real(storage, SimpleNamespace(load=lambda *_, **__: head), head, *arguments, **named)

    def is_sound(storage: Any, name: str) -> bool:
        return True

    patches = ExitStack()
    patches.enter_context(mock.patch.object(vacuum, "next_log_floor", floor))
    patches.enter_context(mock.patch.object(vacuum, "is_sound", is_sound))
    return patches


# ---
# Merges and queued appends.


def _a_merge_lacks_a_segment() -> Any:
    """A merge removes the last segment of a group without reading it."""
    real = merge.do_job

    def do_job(handle: Any, job: Any, **named: Any) -> Any:
        groups = [SegmentGroup(group.segments.part(0, max(1, len(group.segments) - 1))) for group in job.groups]
        return real(handle, merge_job.MergeJob.of(groups), **named)

    return mock.patch.object(merge, "do_job", do_job)


def _the_next_commit_is_taken_for_ones_own() -> Any:
    """A queued writer takes the next commit for the group commit with its append."""
    real = AppendTicket.observe

    def observe(self: Any, commits: Any) -> None:
        real(self, commits)
        if self.is_queued:
            self.group_commit = commits[-1]

    return mock.patch.object(AppendTicket, "observe", observe)


def _queued_batches_keep_planned_offsets() -> Any:
    """A group commit records an application's batch at its planned offsets."""
    real = group_commit._at_log_ends

    def placed(appends: Any, head: Any, ends: Any) -> list[Any]:
        appends = list(appends)
        batches = [append.actions[-1] for append in appends if isinstance(append.actions[-1], SetTransaction)]
        return [*(action for action in real(appends, head, ends) if not isinstance(action, SetTransaction)), *batches]

    return mock.patch.object(group_commit, "_at_log_ends", placed)


@dataclasses.dataclass(frozen=True)
class Bug:
    """A bug, and the words of the plans that may meet it: other plans are skipped."""

    plant: Plant
    words: frozenset[str]


def bug(plant: Plant, *words: str) -> Bug:
    return Bug(plant, frozenset(words))


#: Each bug, by what is wrong with it.
BUGS: Mapping[str, Bug] = {
    "tombstones go at once": bug(planted_records.tombstones_go_at_once, "compact"),
    "young records are compacted": bug(planted_records.young_records_are_compacted, "compact", "compaction lag"),
    "retention takes too much": bug(planted_records.retention_takes_too_much, "retention"),
    "a time opens the version after": bug(planted_records.a_time_opens_the_version_after, "historian"),
    "a time is passed over": bug(planted_records.a_time_is_passed_over, "searcher"),
    "undecided records are shown": bug(planted_records.undecided_records_are_shown, "transacting", "reader"),
    "aborted records are fetched": bug(planted_records.aborted_records_are_fetched, "transacting", "consumer"),
    "settings begin at once": bug(planted_records.settings_begin_at_once, "vacuumer", "config"),
    "a put that exists is another's": bug(_exists_means_lost, "unanswered"),
    "an unclear put has failed": bug(
        patched(object_store, "resolve_put", _unclear_means_failed), "plain", "unanswered"
    ),
    "an unknown outcome is a failure": bug(
        patched(object_store, "resolve_put", _unknown_means_failed), "plain", "silence"
    ),
    "a commit's put has no condition": bug(_put_overwrites),
    "a batch is never a replay": bug(patched(append_commit, "earlier_result", return_value=None), "appender"),
    "a replay is known only at the start": bug(_replays_only_at_first, "appender"),
    "files below the floor are committed": bug(_old_files_are_committed, "vacuum", "still"),
    "vacuum does not commit its floor": bug(
        patched(vacuum, "_raise_floor", lambda storage, log, head, *_: (head, [])), "vacuum", "still"
    ),
    "vacuum waits half as long": bug(_delay_of(0.5), "vacuum", "reader"),
    "vacuum does not wait": bug(_delay_of(0.0), "vacuum"),
    "vacuum goes by its process's clock": bug(_vacuum_by_own_clock, "vacuum"),
    "vacuum forgets what was removed": bug(_vacuum_forgets_what_was_removed, "vacuum"),
    "vacuum deletes what is not named yet": bug(patched(vacuum, "is_below", return_value=True), "vacuum"),
    "a wrong clock is believed": bug(patched(commit_log, "trusted_ms", lambda now_ms, storage, passed_ms=0: now_ms)),
    "a missing version is passed over": bug(_a_hole_is_passed_over, "unanswered", "appender", "gateway"),
    "stale members commit positions": bug(_stale_members_commit, "several followers"),
    "members never expire": bug(
        patched(consumer_group.Membership, "is_lapsed", property(lambda self: False)), "several followers"
    ),
    "others die at once": bug(_others_die_at_once, "several followers"),
    "a checkpoint lacks transactions": bug(_without_part("transactions", NO_TRANSACTIONS)),
    "a checkpoint lacks the vacuum horizon": bug(_without_part("gc_floor", 0), "vacuum"),
    "a checkpoint lacks producers": bug(_a_checkpoint_lacks_producers, "client"),
    "a loser does not plan again": bug(_a_loser_does_not_plan_again),
    "a failed read is the end": bug(_a_failed_read_is_the_end, "silence"),
    "a newer producer fences none": bug(
        patched(producer.ProducerIdentity, "check", return_value=None), "several producers"
    ),
    "nothing is committed unchecked": bug(_nothing_is_committed_unchecked, "several producers"),
    "an abort believes in itself": bug(_an_abort_believes_in_itself, "producer", "silence"),
    "a producer's batches are not checked": bug(
        patched(engine.ProducerCheck, "check", return_value=None), "client", "unanswered"
    ),
    "producers are checked only at first": bug(
        patched(engine, "_check_again", return_value=None), "client", "several gateways"
    ),
    "a restore leaves log starts": bug(_a_restore_leaves_starts, "restore", "delete-records"),
    "a log start goes back": bug(_a_log_start_goes_back, "delete-records"),
    "a new id has no committed offsets": bug(
        patched(topic, "carry_over_groups", return_value=None), "renamer", "follower"
    ),
    "a new topic takes old records": bug(
        patched(Snapshot, "continues", lambda head, snapshot: not head.dropped), "recreate"
    ),
    "a drop ends snapshots": bug(_a_drop_ends_snapshots, "recreate", "vacuum", "deletes soon"),
    "vacuum forgets bundles": bug(_bundles_are_forgotten),
    "groups outlive topics": bug(_groups_outlive_topics, "follower", "recreate"),
    "nobody begins to lead": bug(_nobody_begins_to_lead, "committing"),
    "ended transactions take records": bug(
        patched(gathered_appends, "refuse_fenced", return_value=None), "transacting", "several gateways"
    ),
    "old producers are not fenced": bug(
        patched(transaction_coordinator, "check_producer", return_value=None), "several transactings"
    ),
    "a micro-batch has no number": bug(
        _of_spark("commit_append", _without_a_number),
        "query",
    ),
    "files of the dead stay": bug(patched(vacuum, "is_below", return_value=False), "death"),
    "uploads of the dead stay": bug(patched(vacuum, "dead_uploads", return_value=[]), "death", "parts", "s3"),
    "decisions are not stored": bug(_decisions_are_not_stored, "transacting", "several gateways", "death"),
    "names of copies are offsets": bug(_names_of_copies_are_offsets, "adopter", "late"),
    "exports keep what was rewritten": bug(
        patched(
            export.ExportedSegment,
            "is_complete_copy_of",
            lambda self, segment: self.base_offset == segment.base_offset,
        ),
        "exporter",
        "compact",
    ),
    "a queued append has failed": bug(patched(AppendTicket, "raise_if_in_doubt"), "crowd", "silence"),
    "dead appends stay": bug(patched(vacuum, "dead_appends", return_value=[]), "crowd", "death"),
    "a late put is believed": bug(patched(CommitLog, "confirm_put", return_value=None), "vacuumer"),
    "a late miss is believed": bug(_late_misses_are_believed, "vacuumer"),
    "a head is always fresh": bug(patched(Snapshot, "is_fresh_at", return_value=True), "vacuumer"),
    "an old head is the newest": bug(
        patched(snapshot_loader.SnapshotLoader, "is_newest", return_value=True), "vacuumer"
    ),
    "the log retention horizon is not committed": bug(_log_floor_is_not_committed, "vacuumer"),
    "no checkpoint at the log retention horizon": bug(_no_checkpoint_at_the_floor, "vacuumer"),
    "the newest commits go first": bug(_newest_commits_go_first, "vacuumer"),
    "commits go by the process's clock": bug(_commits_of(lambda _: times.now_ms()), "vacuumer"),
    "commits stay half as long": bug(_commits_of(lambda now_ms: now_ms, 0.5), "vacuumer"),
    "removed rows stay": bug(planted_state.removed_rows_stay, "incremental", "compact"),
    "changed rows are the same": bug(planted_state.changed_rows_are_the_same, "incremental"),
    "a base is stale": bug(planted_state.on_a_stale_base, "many bases"),
    "bases are deleted": bug(planted_state.bases_are_deleted, "many bases"),
    "damage is not noticed": bug(planted_state.damage_is_not_noticed, "damage"),
    "the index of topics is not checked": bug(planted_state.the_index_is_not_checked, "lister"),
    "the index of topics has no age": bug(planted_state.the_index_has_no_age, "lister"),
    "merges store offsets of the log": bug(planted_state.merges_store_offsets_of_the_log, "compact"),
    "merged groups are swapped": bug(planted_state.merged_groups_are_swapped, "compact"),
    "joined batches have no holes": bug(planted_state.joined_batches_have_no_holes, "compact", "holes"),
    "the floor has another checkpoint": bug(_the_floor_has_another_checkpoint, "traveller"),
    "batch ids have no bound": bug(
        patched(append_commit, "check_room_for_batch_id", return_value=None), "few batch ids", "appender"
    ),
    "the next commit is taken for one's own": bug(_the_next_commit_is_taken_for_ones_own, "crowd"),
    "queued batches keep planned offsets": bug(_queued_batches_keep_planned_offsets, "crowd", "appender"),
    "a merge lacks a segment": bug(_a_merge_lacks_a_segment, "compact"),
    "found appends are where they were planned": bug(
        patched(AppendRace, "as_committed", lambda self, segments: segments), "crowd"
    ),
}
