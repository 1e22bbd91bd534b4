"""Records what was acknowledged, watches the changes of the store, and reports broken promises."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, NamedTuple

import pyarrow as pa

import distlog
from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import CorruptMetadataError
from distlog.core.maintain import vacuum
from distlog.core.read.consumer_group import GroupState
from simulation.commit_reader import Body, ReadCommit, UnreadableError, read_commit
from simulation.object_store import ObjectStore
from simulation.record_log import Headers, RecordLog, Rewrite, Row, StoredRow, read_segment, rows_by_offset
from simulation.threads import living
from simulation.topic_state import PartitionLog, TopicState, differences
from simulation.world import BEGIN_MS, Process, World

#: The header that identifies a record without a value.
ID_HEADER = "id"
WEEK_MS = 7 * 86_400_000
#: A clock is trusted unless it is further ahead of the store's, in ms.
_AHEAD_MS = 5 * 60_000
_ENDLESS = 1 << 62


class BrokenPromiseError(AssertionError):
    """A promise of the library was broken."""


class NewRecord(NamedTuple):
    """A record to append; without a timestamp it gets the time of the append."""

    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def id(self) -> bytes:
        return id_of(self.value, self.headers)

    def differs_from(self, row: Row, *, by_append: bool) -> bool:
        """Whether another record was stored; `by_append` says that appends set the time."""
        is_timed = self.timestamp is not None and not by_append
        return (self.key, self.value, self.headers) != row[1:] or (is_timed and self.timestamp != row.timestamp)


def id_of(value: bytes | None, headers: Headers) -> bytes:
    """Return the unique id of a record: its value, or its header."""
    return value if value is not None else dict(headers).get(ID_HEADER) or b""


@dataclass(slots=True, eq=False)
class Batch:
    """Records that are appended together; each has a unique value.

    `offsets` are the acknowledged ones, (first, end) by partition. A batch that is not acknowledged and not refused
    may be in the log or not.
    """

    values: Sequence[bytes]
    keys: Sequence[bytes | None]
    acknowledged: bool = False
    refused: bool = False
    offsets: Mapping[int, tuple[int, int]] | None = None
    #: Whether its records appear together or not at all.
    atomic: bool = True
    #: The actor that appends it; acknowledged batches of one sender are in the order of their creation.
    sender: str = ""
    #: The ids of the topics that it was sent to, and of the topic that acknowledged it.
    tried: set[str] = field(default_factory=set)
    topic_id: str = ""
    #: Whether readers of committed records see its records only after a commit of their transaction.
    transactional: bool = False
    #: The whole records, where they are compared.
    records: Sequence[NewRecord] = ()
    #: The times by the clock of the process and of the store when it was created, and when it was acknowledged.
    created_ms: Sequence[float] = ()
    acknowledged_ms: Sequence[float] = ()

    def acknowledge(self, topic_id: str, offsets: Mapping[int, tuple[int, int]] | None = None) -> None:
        """Note that a topic acknowledged it, perhaps with offsets."""
        self.acknowledged, self.topic_id = True, topic_id
        self.acknowledged_ms = _times_ms()
        self.offsets = offsets or self.offsets


@dataclass(slots=True)
class File:
    """A data file of the commits: whether it is live, and when it was removed, in s."""

    live: bool = True
    removed_s: float = 0.0


@dataclass(slots=True)
class OldCommits:
    """The commits that may be deleted: before the log retention horizon, after `commit.retention.ms`, in order."""

    floor: int = 0
    written_s: dict[int, float] = field(default_factory=dict)
    #: How long commits are kept: by version under its settings, and under the settings of each horizon, in s.
    kept_s: dict[int, float] = field(default_factory=dict)
    floors: list[tuple[int, float]] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)
    #: Versions that were stored again after their deletion.
    late: set[int] = field(default_factory=set)
    #: The number of commits that are deleted together, in any order.
    at_once: int = 3

    def put(self, commit: ReadCommit, after: TopicState, now_s: float) -> None:
        version = commit.version
        self.written_s[version] = now_s
        kept_ms = after.number("commit.retention.ms", WEEK_MS)
        self.kept_s[version] = (WEEK_MS if kept_ms < 0 else kept_ms) / 1000
        for body in commit.bodies("log_floor"):
            self.floor = max(self.floor, body["version"])
            self.floors.append((body["version"], self.kept_s.get(version - 1, 0.0)))

    def least_s(self, version: int) -> float:
        """Return how long a commit is kept: by its settings, the previous ones, and the settings of its horizon.

        A process that knows only the previous settings follows them as long as they are the newest ones for it.
        """
        by_floor = next((kept_s for floor, kept_s in self.floors if floor > version), 0.0)
        return max(by_floor, self.kept_s.get(version, 0.0), self.kept_s.get(version - 1, 0.0))

    def delete(self, version: int, now_s: float, checkpoints: Iterable[str]) -> Iterable[str]:
        """Note the deletion of a commit, and yield the rules that it breaks."""
        if version in self.late:
            self.late.remove(version)
            return
        self.deleted.add(version)
        commit, kept_s = f"the commit of version {version} was deleted", self.least_s(version)
        if version >= self.floor:
            yield f"{commit}, although the log retention horizon is {self.floor}"
        elif (age_s := now_s - self.written_s.get(version + 1, now_s)) < kept_s - 3:
            yield f"{commit} {age_s:.0f} s after the next one came, not {kept_s:.0f}"
        elif not any((paths.parse_checkpoint_file(name) or -1) >= self.floor for name in checkpoints):
            yield f"{commit}, and no checkpoint exists from the log retention horizon {self.floor} on"
        older = sorted(number for number in self.written_s if number < version and number not in self.deleted)
        if len(older) >= self.at_once:
            yield f"{commit} before version {older[0]}"


@dataclass
class Oracle:
    """The promises to one topic; `delay_s` is its `file.delete.delay.ms`."""

    world: World
    store: ObjectStore
    url: str
    delay_s: float
    batches: list[Batch] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    #: The offsets before which records may be missing, by partition.
    may_begin_at: dict[int, int] = field(default_factory=dict)
    #: Whether records may be missing that a later one supersedes, and old records.
    is_compacted: bool = False
    has_retention: bool = False
    #: The number of unfinished rebuilds: the sizes of their indexes may not be committed.
    unfinished_rebuilds: int = 0
    #: Whether end markers take offsets that readers do not get.
    has_markers: bool = False
    old: OldCommits = field(default_factory=OldCommits)
    #: The newest version, the state at each, and the bytes of its commit.
    head: int = -1
    states: dict[int, TopicState] = field(default_factory=dict)
    operations: dict[int, str] = field(default_factory=dict)
    _commits: dict[str, bytes] = field(default_factory=dict)
    #: The committed records by topic id and partition, and their offsets by topic id and record id.
    logs: dict[tuple[str, int], RecordLog] = field(default_factory=lambda: defaultdict(RecordLog))
    locations: dict[tuple[str, bytes], list[tuple[int, int]]] = field(default_factory=dict)
    #: By id, all ids of a topic that got a new one.
    _ids: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: The highest start offset of each log.
    highest_starts: dict[tuple[str, int], int] = field(default_factory=dict)
    _stored: dict[tuple[Any, ...], list[StoredRow]] = field(default_factory=dict)
    _files: dict[tuple[int, str], File] = field(default_factory=dict)
    #: The lowest values that settings of compaction have had.
    _least: dict[str, int] = field(default_factory=dict)
    _was_compacted: bool = False
    #: The compared snapshots, by the ids of their parts.
    _compared: dict[tuple[int, ...], Snapshot] = field(default_factory=dict)
    #: The newest generation of each transactional id.
    generations: dict[str, int] = field(default_factory=dict)
    #: For the gateways' own topics: the commits, and the leaders by topic and partition.
    _leading: set[str] = field(default_factory=set)
    _leaders: dict[tuple[str, int], Process] = field(default_factory=dict)
    #: The names of the existing checkpoints.
    _checkpoints: set[str] = field(default_factory=set)
    #: The checkpoint with a flipped bit.
    damaged: str = ""

    def __post_init__(self) -> None:
        self._prefix = self.url.partition("://")[2] + "/"
        self.store.watchers.append(self._changes)

    def new_batch(self, records: Sequence[NewRecord], *, atomic: bool = True, sender: str = "") -> Batch:
        """Return the batch of records that somebody is about to append."""
        values, keys = [record.id for record in records], [record.key for record in records]
        batch = Batch(values, keys, atomic=atomic, sender=sender, records=records, created_ms=_times_ms())
        self.batches.append(batch)
        return batch

    def says(self, text: str) -> None:
        self.world.note(f"BROKEN: {text}")
        self.broken.append(text)
        self.world.decide()

    def check(self) -> None:
        if self.broken:
            raise BrokenPromiseError(self.broken[0])

    @property
    def topic_id(self) -> str:
        return self.states[self.head].topic_id

    def ids_of(self, topic_id: str) -> Sequence[str]:
        """Return the ids that a topic has had, the oldest first."""
        return self._ids.get(topic_id, (topic_id,))

    def is_live(self, topic_id: str) -> bool:
        """Whether the topic exists."""
        state = self.states[self.head]
        return state.topic_id == topic_id and not state.dropped

    # --- what readers get

    def observes(self, topic: distlog.Topic, head: int) -> None:
        """Check a topic that was opened or refreshed when version `head` existed."""
        if topic.snapshot.version < head:
            self.says(f"a reader got version {topic.snapshot.version}, when version {head} existed")
        self._is_as_committed(topic.snapshot)

    def _is_as_committed(self, snapshot: Snapshot) -> None:
        state = self.states.get(snapshot.version)
        if state is None:
            self.says(f"a reader got version {snapshot.version}, which nobody has committed")
            return
        parts = snapshot.partitions, snapshot.transactions, snapshot.config, snapshot.requires
        key = snapshot.version, *map(id, parts), snapshot.gc_floor, snapshot.log_floor
        if key not in self._compared:
            # it is kept, so that no other object gets the same ids
            self._compared[key] = snapshot
            for text in differences(snapshot, state):
                self.says(f"version {snapshot.version} differs from its commits: {text}")

    def read(self, topic_id: str, rows: pa.RecordBatch | pa.Table) -> None:
        """Check columns of records that a reader got against the committed ones."""
        for (partition, offset), row in rows_by_offset(rows).items():
            committed = self.logs[topic_id, partition].rows.get(offset)
            expected = committed and tuple(getattr(committed, name) for name in row._fields)
            if expected != tuple(row):
                self.says(f"offset {offset} of partition {partition} has {expected}, and a reader got {tuple(row)}")

    def rows_at(self, version: int, *, committed: bool = False) -> dict[tuple[int, int], Row]:
        """Return the records of a version by partition and offset; if `committed`, of committed transactions only."""
        state, rows = self.states[version], dict[tuple[int, int], Row]()
        for number, part in enumerate(state.partitions):
            log = self.logs[state.topic_id, number]
            end = log.stable_end(part.end) if committed else part.end
            for segment in part.segments:
                for offset, row, *_ in self._stored[_segment_key(segment)]:
                    if part.start <= offset < end and (not committed or log.is_committed(offset, part.end)):
                        rows[number, offset] = row
        return rows

    def may_lack_files(self, version: int, start_s: float) -> bool:
        """Whether files of a version may be deleted: one was removed long ago, or the read was slow."""
        now_s = self.world.now
        if now_s - start_s > self.delay_s - 1:
            return True
        segments = [segment for log in self.states[version].partitions for segment in log.segments]
        files = [self._files[segment["partition"], segment["stem"]] for segment in segments]
        return any(not file.live and now_s - file.removed_s > self.delay_s - 1 for file in files)

    def live_between(self, topic_id: str, partition: int, first: int, end: int) -> list[int]:
        """Return the offsets from `first` to `end` that readers must get, since they are live and always were."""
        # the oracle of a disk has no states
        state = self.states.get(self.head, TopicState())
        highest = self.highest_starts.get((topic_id, partition), 0)
        if state.topic_id != topic_id or state.dropped or end <= max(first, highest):
            return []
        segments = state.partitions[partition].segments
        stored = (stored.offset for segment in segments for stored in self._stored[_segment_key(segment)])
        return [offset for offset in stored if max(first, highest) <= offset < end]

    def check_rows(self, topic: distlog.Topic) -> Mapping[tuple[int, int], Row]:
        """Compare a scan of a topic's snapshot with its commits; raises as a scan."""
        for isolation in ("read_uncommitted", "read_committed") if self.has_markers else ("read_uncommitted",):
            rows = rows_by_offset(topic.scan(isolation=isolation, columns=_COLUMNS).to_table())
            expected = self.rows_at(topic.snapshot.version, committed=isolation == "read_committed")
            if rows != expected:
                different = sorted({*rows.items()} ^ {*expected.items()})[:2]
                self.says(f"version {topic.snapshot.version} reads otherwise than it was committed: {different}")
        return rows

    def wrong_rows(
        self, partition: int, rows: Mapping[int, Row], start: int, end: int, *, committed: bool
    ) -> Iterator[str]:
        """Yield what is wrong with the records that somebody got from a range of a partition."""
        log = self.logs[self.topic_id, partition]
        for offset, row in rows.items():
            if log.rows.get(offset) != row or (committed and log.is_committed(offset, _ENDLESS) is not True):
                yield f"offset {offset} has {row}, and {log.rows.get(offset)} was committed"
        for offset in self.live_between(self.topic_id, partition, start, end):
            if offset not in rows and (not committed or log.is_committed(offset, _ENDLESS)):
                yield f"offset {offset} is left out"

    def kept_too_long(self, version: int, now_ms: float) -> Iterator[str]:
        """Yield the segments of a version that retention at a time must have removed."""
        state = self.states[version]
        for number, log in enumerate(state.partitions):
            remaining_bytes = sum(segment["log_bytes"] for segment in log.segments)
            for segment in log.segments[:1]:
                if segment["next_offset"] <= log.start or _must_go(segment, remaining_bytes, state, now_ms):
                    yield f"segment {segment['stem']} of partition {number} exists"

    def check_committed(self, topic_id: str, group: str, positions: Mapping[int, int]) -> None:
        """Check that a group's newest version has these acknowledged offsets, or later ones."""
        folder = f"{self._prefix}{paths.group_folder(topic_id, group)}/"
        versions = [key for key in self.store.objects if key.startswith(folder) and key.endswith(".json")]
        if not versions:
            # vacuum deletes the groups of a dropped topic
            if self.is_live(topic_id):
                self.says(f"the group {group} committed {positions}, and has no file")
            return
        state = GroupState.decode(self.store.objects[max(versions)].data, max(versions))
        if any(state.positions.get(number, -1) < offset for number, offset in positions.items()):
            self.says(f"the group {group} committed {positions}, and is at {dict(state.positions)}")

    # --- changes of the store

    def _changes(self, kind: str, key: str, data: bytes | None) -> None:
        name = key.partition(self._prefix)[2]
        if not name:
            if kind == "put" and data is not None and key.startswith("bucket/__"):
                self._leads(key, data)
            return
        folder, _, file = name.rpartition("/")
        version = paths.parse_commit_file(file) if folder == paths.COMMITS_DIR else None
        if version is not None:
            self._commit_changes(kind, name, version, data)
        elif paths.parse_checkpoint_file(name) is not None:
            (self._checkpoints.add if kind == "put" else self._checkpoints.discard)(name)
        elif kind == "delete":
            for text in self.wrong_deletion(name):
                self.says(text)

    def _leads(self, key: str, data: bytes) -> None:
        """Check a change of a gateway's own topic: only the leader of a partition adds to it."""
        parts = key.split("/")
        if len(parts) != 4 or paths.parse_commit_file(parts[3]) is None or key in self._leading:
            return
        topic, author = parts[1], self.store.author
        assert author is not None
        commit = read_commit(data)
        self._leading.add(key)
        rewrites = any(commit.bodies("remove"))
        for name, body in commit.actions:
            if name == "transaction" and body["app_id"].startswith("leader:"):
                self._leaders[topic, int(body["app_id"].removeprefix("leader:"))] = author
            elif name == "add" and not rewrites and self._leaders.get((topic, body["partition"])) is not author:
                self.says(f"{author.name} adds to partition {body['partition']} of {topic}, and does not lead it")

    def _commit_changes(self, kind: str, name: str, version: int, data: bytes | None) -> None:
        if kind == "delete":
            for text in self.old.delete(version, self.world.now, self._checkpoints):
                self.says(text)
            return
        assert data is not None
        if version in self.old.deleted:
            self.old.late.add(version)
            return
        if name in self._commits:
            if self._commits[name] != data:
                self.says(f"the commit of version {version} was overwritten")
            return
        if version - 1 not in self.states and version:
            self.says(f"version {version} was committed before version {version - 1}")
            return
        self._commits[name] = data
        previous = self.states.get(version - 1, TopicState())
        try:
            commit = read_commit(data)
            state = previous.after(commit)
        except (ValueError, UnreadableError) as error:
            self.says(str(error))
            return
        self.states[version], self.operations[version] = state, commit.operation
        self.head = max(self.head, version)
        self.old.put(commit, state, self.world.now)
        store_ms = BEGIN_MS + self.world.now * 1000
        if commit.timestamp_ms > store_ms + 11 * 60_000 and version:
            self.says(f"version {version} is {(commit.timestamp_ms - store_ms) / 1000:.0f} s in the future")
        self._record_actions(commit, previous, state)

    def _record_actions(self, commit: ReadCommit, previous: TopicState, after: TopicState) -> None:
        version = commit.version
        added, removed = defaultdict[int, list[Body]](list), defaultdict[int, list[str]](list)
        for name, body in commit.actions:
            if name == "create":
                self._least, self._was_compacted = {}, False
            elif name == "add":
                self._files[body["partition"], body["stem"]] = File()
                added[body["partition"]].append(body)
            elif name == "remove":
                self._files[body["partition"], body["stem"]] = File(False, self.world.now)
                removed[body["partition"]].append(body["stem"])
            elif name == "topic_id":
                self._gets_new_id(after, previous)
            elif name == "drop":
                for file in self._files.values():
                    if file.live:
                        file.live, file.removed_s = False, self.world.now
                self.generations.clear()
            elif name == "transaction" and body["app_id"].startswith("producer:"):
                app_id, generation = body["app_id"], body["batch_id"] >> 32
                if generation < self.generations.get(app_id, -1):
                    self.says(f"version {version} is of a producer that a newer one had fenced: {app_id}")
                self.generations[app_id] = max(generation, self.generations.get(app_id, -1))
        self._was_compacted = self._was_compacted or after.has_policy("compact")
        for name, default in (("delete.retention.ms", 86_400_000), ("min.compaction.lag.ms", 0)):
            now = after.number(name, default)
            self._least[name] = min(now, self._least.get(name, now))
        for number in {*added, *removed}:
            for text in self._changed(commit, number, previous, after, removed[number], added[number]):
                self.says(f"version {version} ({commit.operation}), partition {number}: {text}")
        for number, part in enumerate(after.partitions):
            key = after.topic_id, number
            self.highest_starts[key] = max(part.start, self.highest_starts.get(key, 0))
        for text in self._moved_starts(commit, previous, after):
            self.says(f"version {version} ({commit.operation}): {text}")

    def _gets_new_id(self, after: TopicState, previous: TopicState) -> None:
        """The topic has the same records under its new id."""
        ids = (*after.former_ids, after.topic_id)
        self._ids.update(dict.fromkeys(ids, ids))
        for number in range(len(after.partitions)):
            former, new = (previous.topic_id, number), (after.topic_id, number)
            self.logs[new], self.highest_starts[new] = self.logs[former], self.highest_starts.get(former, 0)

    def _changed(
        self,
        commit: ReadCommit,
        number: int,
        previous: TopicState,
        after: TopicState,
        removed: Sequence[str],
        added: Sequence[Body],
    ) -> Iterator[str]:
        """Yield the forbidden changes of a commit to the records of a partition."""
        log, now_s = self.logs[after.topic_id, number], self.world.now
        part = after.partitions[number]
        earlier_offsets, rows_after = set(log.rows), list[StoredRow]()
        for segment in added:
            rows = yield from self._rows_of(segment, log)
            rows_after += rows
            is_timed = previous.settings.get("message.timestamp.type") == "LogAppendTime" and not removed
            if is_timed and commit.operation == "append" and segment["append_time_ms"] != commit.timestamp_ms:
                yield f"records are appended at {segment['append_time_ms']}, not {commit.timestamp_ms}"
            for stored in rows:
                first = log.add(stored, now_s)
                if first != stored.row:
                    yield f"offset {stored.offset} had {first}, and has {stored.row}"
                elif stored.offset not in earlier_offsets:
                    key = after.topic_id, id_of(stored.row.value, stored.row.headers)
                    self.locations.setdefault(key, []).append((number, stored.offset))
        if not removed:
            return
        old = previous.partitions[number]
        rows_before = [
            stored
            for segment in old.segments
            if segment["stem"] in removed
            for stored in self._stored[_segment_key(segment)]
        ]
        if commit.operation != "restore":
            removed_offsets = {stored.offset for stored in rows_before}
            for stored in rows_after:
                if stored.offset not in removed_offsets and stored.offset in earlier_offsets:
                    yield f"the record at offset {stored.offset} is back"
        cleaned = [body["first_dirty_offset"] for body in commit.bodies("cleaned") if body["partition"] == number]
        rewrite = Rewrite(
            log,
            part.start,
            cleaned[0] if cleaned else part.end,
            self._was_compacted and commit.operation == "compact",
            self._author_ms,
            now_s,
            self._least["min.compaction.lag.ms"],
            self._least["delete.retention.ms"],
        )
        yield from rewrite.wrong(rows_before, rows_after)
        if commit.operation == "compact" and cleaned:
            yield from rewrite.superseded(
                stored for segment in part.segments for stored in self._stored[_segment_key(segment)]
            )
        if commit.operation == "retention":
            yield from _kept_too_short(old, removed, previous, self._author_ms)

    @property
    def _author_ms(self) -> float:
        """The clock of the process that commits, or the store's if the other is far ahead."""
        store_ms = BEGIN_MS + self.world.now * 1000
        author = self.store.author
        author_ms = store_ms if author is None else author.now_ns() / 1e6
        return store_ms if author_ms > store_ms + _AHEAD_MS else author_ms

    def _rows_of(self, segment: Body, log: RecordLog) -> Generator[str, None, list[StoredRow]]:
        """Read and return the records of a segment that a commit adds."""
        key = _segment_key(segment)
        if key not in self._stored:
            name = log_file(self.url.rpartition("/")[2], segment)
            stored = self.store.objects.get(f"{self._prefix}{name}")
            if stored is None:
                yield f"it names {name}, which does not exist"
                self._stored[key] = []
                return self._stored[key]
            start = max(segment["log_position"], 0)
            try:
                rows, markers = read_segment(stored.data[start : start + segment["log_bytes"]], segment)
            except UnreadableError as error:
                yield str(error)
                rows, markers = [], []
            self._stored[key] = rows
            for marker in markers:
                log.end(marker)
            count = len(rows) + len(markers)
            if segment["record_count"] != count:
                yield f"segment {segment['stem']} has {count} records, not {segment['record_count']}"
        return self._stored[key]

    def _moved_starts(self, commit: ReadCommit, previous: TopicState, after: TopicState) -> Iterator[str]:
        """Yield the logs that start later than before, without a request."""
        if previous.topic_id != after.topic_id or commit.operation in ("retention", "import"):
            return
        for number, (old, new) in enumerate(zip(previous.partitions, after.partitions, strict=False)):
            least = self.may_begin_at.get(number, 0) if commit.operation == "delete-records" else 0
            if new.start > max(old.start, least):
                yield f"partition {number} begins at {new.start}, not at {old.start}"

    def wrong_deletion(self, name: str) -> Iterator[str]:
        """Yield why a file must not be deleted now: readers may need it."""
        topic = self.url.rpartition("/")[2]
        bundle, segment = paths.parse_bundle_file(name), paths.parse_segment_file(name, topic)
        stems = [(key, file) for key, file in self._files.items() if key == segment or key[1] == bundle]
        for (partition, stem), file in stems:
            if file.live:
                yield f"{name} was deleted, although segment {stem} of partition {partition} is live"
            elif self.world.now - file.removed_s < self.delay_s - 1:
                ago_s = self.world.now - file.removed_s
                yield f"{name} was deleted {ago_s:.0f} s after its segment was removed, not {self.delay_s:.0f}"

    def wrong_retention(self, version: int, partition: int, stems: Sequence[str]) -> Iterator[str]:
        """Yield why retention must not remove the segments from a version."""
        state = self.states[version]
        yield from _kept_too_short(state.partitions[partition], stems, state, self._author_ms)

    # --- the audit at the end

    def audit(self, topic: distlog.Topic) -> None:
        """Compare the topic's records with the acknowledged ones, and its state with the commits."""
        self.observes(topic, self.head)
        self.check_rows(topic)
        topic_id = topic.snapshot.topic_id
        for batch in self.batches:
            self._audit(batch, batch.topic_id or topic_id)
            if not batch.acknowledged:
                for tried in batch.tried - {topic_id}:
                    self._audit(batch, tried)
        ids = self.ids_of(topic_id)
        locations = {id_: offsets for (of, id_), offsets in self.locations.items() if of in ids}
        self._audit_order(locations, topic_id)

    def _audit(self, batch: Batch, topic_id: str) -> None:
        """Check that the batch is in the log as it was appended: all or nothing, once, at its offsets."""
        visible = list[bool]()
        ids = self.ids_of(topic_id)
        for record in batch.records:
            locations = [location for of in ids for location in self.locations.get((of, record.id), [])]
            if len(locations) > 1:
                self.says(f"record {record.id!r} is there {len(locations)} times, at {locations}")
            visible.append(False)
            for partition, offset in locations:
                log = self.logs[topic_id, partition]
                visible[-1] = log.is_committed(offset, _ENDLESS) is True
                if visible[-1] and batch.refused:
                    self.says(f"record {record.id!r} is there, although its append was refused")
                by_append = self.states[self.head].settings.get("message.timestamp.type") == "LogAppendTime"
                if record.differs_from(log.rows[offset], by_append=by_append):
                    self.says(f"record {record} was appended, and {log.rows[offset]} is there")
                time_ms = log.rows[offset].timestamp
                # a broker's old messages have no time
                is_old = batch.sender == "broker" and time_ms == -1
                if record.timestamp is None and batch.acknowledged and not (by_append or is_old):
                    for text in _wrong_time(batch, time_ms, self.world.now):
                        self.says(f"record {record.id!r} without a time {text}")
                first, end = (batch.offsets or {}).get(partition, (0, _ENDLESS if batch.offsets is None else 0))
                if not first <= offset < end:
                    self.says(f"record {record.id!r} is at offset {offset} of partition {partition}, not as reported")
            if batch.tried and any((of, record.id) in self.locations for of in ids if of not in batch.tried):
                self.says(f"record {record.id!r} is in a topic that it was not sent to")
            if batch.acknowledged and not visible[-1]:
                self.says(f"record {record.id!r} was acknowledged, and is missing")
        if batch.atomic and any(visible) and not all(visible):
            self.says(f"only a part of the batch of {batch.values[0]!r} is there")

    def _audit_order(self, locations: Mapping[bytes, Sequence[tuple[int, int]]], topic_id: str) -> None:
        """Check that acknowledged records of one sender in a partition are in the order of their appends."""
        last: dict[tuple[str, int], int] = {}
        for batch in self.batches:
            if not batch.sender or not batch.acknowledged or batch.topic_id not in ("", *self.ids_of(topic_id)):
                continue
            for value in batch.values:
                for partition, offset in locations.get(value, ())[:1]:
                    if offset < last.get((batch.sender, partition), -1):
                        self.says(f"record {value!r} is ahead of one that {batch.sender} sent before it")
                    last[batch.sender, partition] = offset

    def check_vacuumed(self) -> None:
        """Check the files after vacuum ran long after the end of all writers: only live segments may exist.

        Files of an interrupted import have no time of their writer, and remain. With no version after the first one,
        no vacuum horizon covers the files of dead writers.
        """
        if not self.head:
            return
        topic, live = self.url.rpartition("/")[2], {key for key, file in self._files.items() if file.live}
        stems = {stem for _, stem in live}
        for key in self.store.objects:
            name = key.partition(self._prefix)[2]
            bundle, segment = paths.parse_bundle_file(name), paths.parse_segment_file(name, topic)
            if (bundle and bundle not in stems) or (segment and segment not in live and not _is_adopted(segment)):
                self.says(f"{name} exists after vacuum, and no version names it")
            if paths.parse_pending_file(name):
                self.says(f"{name} waits for a commit after vacuum")
        for name in self._checkpoints:
            if (base := paths.base_of_checkpoint(name)) and base not in self._checkpoints:
                self.says(f"{name} exists after vacuum, and its base {base} does not")
        for key, _, _ in self.store.uploads.values():
            segment = paths.parse_segment_file(key.partition(self._prefix)[2], topic)
            if key.startswith(self._prefix) and not (segment and segment not in live and _is_adopted(segment)):
                self.says(f"the parts of {key} exist after vacuum")

    def damage(self) -> None:
        """Flip a bit of the newest full checkpoint, if another one replaces it."""
        full = sorted(
            name
            for name in self._checkpoints
            if paths.base_of_checkpoint(name) is None and (paths.parse_checkpoint_file(name) or 0) >= self.old.floor
        )
        if len({paths.parse_checkpoint_file(name) for name in full}) > 1:
            stored = self.store.objects[self._prefix + full[-1]]
            data = bytearray(stored.data)
            random = Random(f"damage/{self.world.seed}")
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            stored.data = bytes(data)
            self.damaged = full[-1]
            self.world.note(f"a bit of {full[-1]} flips")

    def check_checkpoints(self) -> None:
        """Check that every undamaged checkpoint has the state of its version."""
        for name in sorted(self._checkpoints, key=lambda name: paths.parse_checkpoint_file(name) or 0):
            base = paths.base_of_checkpoint(name)
            if self.damaged in (name, base):
                continue
            names = (base, name) if base else (name,)
            files = [self.store.objects.get(self._prefix + file) for file in names]
            try:
                state = checkpoint.decode(files[0].data, name, *(file.data for file in files[1:]))
            except CorruptMetadataError as error:
                self.says(f"nobody can read {name}: {error}")
            else:
                self._is_as_committed(state)

    def check_new_checkpoint(self, topic: distlog.Topic) -> None:
        """Check that a checkpoint can have the state of a topic; without one, its commits stay."""
        try:
            state = checkpoint.decode(checkpoint.encode(topic.snapshot), "a new checkpoint")
        except (CorruptMetadataError, ValueError) as error:
            self.says(f"a checkpoint cannot have the state of version {topic.version}: {error}")
        else:
            self._is_as_committed(state)

    def check_horizon(self, version: int, passed_s: float) -> None:
        """Check that vacuum raised the log retention horizon to the versions of `passed_s` ago, up to `version`."""
        state = self.states[self.head]
        # a lowered setting applies after the horizon has passed the version that lowered it
        versions = range(state.log_floor, self.head + 1)
        kept_ms = [self.states[number].number("commit.retention.ms", WEEK_MS) for number in versions]
        # it is raised to the versions of the checkpoints that are kept for time travel
        if min(kept_ms) >= 0 and max(kept_ms) < passed_s * 1000 and state.log_floor < version - 2 * vacuum.KEPT_EVERY:
            self.says(f"after vacuum the log retention horizon is {state.log_floor}, and {version} is old")

    def check_oldest(self, topic: distlog.Topic) -> None:
        """Check that time travel reaches back to the log retention horizon."""
        floor = topic.refresh().snapshot.log_floor
        # its checkpoint may be damaged between vacuum's read and the rise of the horizon
        if paths.parse_checkpoint_file(self.damaged) != floor:
            self.check_version(topic, floor)

    def check_version(self, topic: distlog.Topic, version: int) -> None:
        """Compare a kept version with its commits; raises as `CommitLog.load`."""
        self._is_as_committed(topic.log.load(version, include_dropped=True))


def _times_ms() -> tuple[float, float]:
    process = living().process
    return process.now_ns() / 1e6, BEGIN_MS + process.world.now * 1000


def _wrong_time(batch: Batch, time_ms: int, now_s: float) -> Iterator[str]:
    """Yield what is wrong with the time that an append gave a record; two clocks may drift apart."""
    drift_ms = now_s * 0.2 + 2
    spans = zip(batch.created_ms, batch.acknowledged_ms, strict=True)
    if not any(first - drift_ms <= time_ms <= last + drift_ms for first, last in spans):
        yield f"has {time_ms}, and was appended from {batch.created_ms} to {batch.acknowledged_ms}"


def _is_adopted(segment: tuple[int, str]) -> bool:
    return not paths.is_own_stem(segment[1])


def log_file(topic: str, segment: Body) -> str:
    if segment["log_position"] >= 0:
        return f"_bundles/{segment['stem']}.bundle"
    return f"{topic}-{segment['partition']}/{segment['stem']}.log"


def _segment_key(segment: Body) -> tuple[Any, ...]:
    return tuple(segment[name] for name in ("partition", "stem", "base_offset", "next_offset", "log_bytes"))


def _kept_too_short(log: PartitionLog, removed: Sequence[str], state: TopicState, now_ms: float) -> Iterator[str]:
    """Yield the segments that retention removes although no setting asks for it."""
    remaining_bytes = sum(segment["log_bytes"] for segment in log.segments)
    for segment in log.segments[: len(removed)]:
        if segment["stem"] not in removed:
            yield f"segment {segment['stem']} remains, and a newer one was removed"
        elif segment["next_offset"] > log.start and not _must_go(segment, remaining_bytes, state, now_ms):
            yield f"segment {segment['stem']} was removed, although the settings keep it: {segment}"
        remaining_bytes -= segment["log_bytes"]


def _must_go(segment: Body, log_bytes: int, state: TopicState, now_ms: float) -> bool:
    """Whether retention must remove the first segment of a log of `log_bytes`."""
    size, age_ms = state.number("retention.bytes", -1), state.number("retention.ms", WEEK_MS)
    if not state.has_policy("delete"):
        return False
    written_ms = segment["max_timestamp"] if 0 <= segment["max_timestamp"] <= now_ms else segment["created_ms"]
    return 0 <= size <= log_bytes - segment["log_bytes"] or 0 <= age_ms < now_ms - written_ms


_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
Rows = Mapping[tuple[int, int], Any]


def rows_of(
    topic: distlog.Topic, isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
) -> Rows:
    """Return the records of a snapshot by partition and offset."""
    return rows_by_offset(topic.scan(columns=_COLUMNS, isolation=isolation).to_table())
