"""Knows what was acknowledged, watches what happens to the store, and says which promise was broken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from random import Random

import distlog
from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits.actions import (
    LEADER_APP,
    PRODUCER_APP,
    Action,
    Add,
    Create,
    Drop,
    GcFloor,
    LogFloor,
    Pin,
    Remove,
    Restore,
    SetLogStartOffset,
    SetPartitions,
    SetTransaction,
    Unpin,
    each,
)
from distlog.core.commits.commit_json import Commit
from distlog.core.commits.snapshot import Snapshot, fold
from distlog.core.errors import CorruptMetadataError
from distlog.core.groups.group_log import GroupState
from distlog.core.segments.segment_parts import part_of
from simulation.object_store import ObjectStore
from simulation.world import BEGIN_MS, Process, World


class BrokenPromiseError(AssertionError):
    """A promise of the library was broken."""


@dataclass(slots=True, eq=False)
class Batch:
    """Records that are appended together; `values` tells each from all others, `keys` belong to them.

    `offsets` are those that were acknowledged, (first, end) by partition. A batch that is neither acknowledged nor
    refused may be there, or not.
    """

    values: Sequence[bytes]
    keys: Sequence[bytes | None]
    acknowledged: bool = False
    refused: bool = False
    offsets: Mapping[int, tuple[int, int]] | None = None
    #: Whether all of its records come into the log together.
    atomic: bool = True
    #: Who appends it; batches of one sender that were acknowledged are in the order in which they were made.
    sender: str = ""
    #: The ids of the topics that it was sent to, and that acknowledged it last.
    tried: set[str] = field(default_factory=set)
    topic_id: str = ""
    #: Whether its records are hidden from readers of what is committed, unless their transaction is.
    transactional: bool = False

    def acknowledge(self, topic_id: str, offsets: Mapping[int, tuple[int, int]] | None = None) -> None:
        """Note that a topic has it, at these offsets if they were told."""
        self.acknowledged, self.topic_id = True, topic_id
        self.offsets = offsets or self.offsets


@dataclass(frozen=True, slots=True)
class Bounds:
    """What commits say of a version, told without the library: where the logs begin and end, and the gc floor."""

    topic_id: str = ""
    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    gc_floor: int = 0

    def after(self, commit: Commit) -> Bounds:
        """The bounds behind a commit."""
        topic_id, starts, ends, floor = self.topic_id, {**self.starts}, {**self.ends}, self.gc_floor
        for action in each(commit.actions):
            match action:
                case Create():
                    topic_id, starts, ends = commit.topic_id, {}, {}
                case Drop():
                    starts, ends = {}, {}
                case SetPartitions(count):
                    for number in range(count):
                        starts.setdefault(number, 0)
                        ends.setdefault(number, 0)
                case Add(segment):
                    ends[segment.partition] = max(ends[segment.partition], segment.next_offset)
                case SetLogStartOffset(number, offset):
                    starts[number], ends[number] = max(starts[number], offset), max(ends[number], offset)
                case Restore(number, offset):
                    starts[number] = min(starts[number], offset)
                case GcFloor(version):
                    floor = max(floor, version)
        return Bounds(topic_id, starts, ends, floor)


@dataclass(slots=True)
class File:
    """A data file as the commits tell of it: whether it is live, and when it was removed, in s."""

    live: bool = True
    removed_s: float = 0.0


@dataclass(slots=True)
class OldCommits:
    """What may be deleted of the commits: below the committed floor, after `kept_s`, oldest first."""

    kept_s: float = 7 * 86_400.0
    floor: int = 0
    written_s: dict[int, float] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    #: Versions that were put again after they had been deleted.
    late: set[int] = field(default_factory=set)
    pins: dict[str, Pin] = field(default_factory=dict)
    #: So many are deleted together, in any order.
    at_once: int = 3

    @property
    def head(self) -> int:
        """The newest version."""
        return max(self.written_s, default=-1)

    def put(self, version: int, commit: Commit, now_s: float) -> Iterable[str]:
        """Take note of a commit; says which rules it breaks."""
        self.written_s[version] = now_s
        for action in each(commit.actions):
            match action:
                case Pin(name):
                    self.pins[name] = action
                case Unpin(name):
                    self.pins.pop(name, None)
                case Drop():
                    self.pins.clear()
                case LogFloor(floor):
                    self.floor = max(self.floor, floor)
                    for pin in self.pins.values():
                        if pin.version < floor and pin.until_ms > BEGIN_MS + now_s * 1000:
                            yield f"the log floor is {floor}, although {pin.name} pins version {pin.version}"

    def delete(self, version: int, now_s: float, checkpoints: Iterable[str]) -> Iterable[str]:
        """Take note that a commit is deleted; says which rules that breaks. `checkpoints` are there."""
        if version in self.late:
            self.late.remove(version)
            return
        self.deleted.add(version)
        what = f"the commit of version {version} was deleted"
        if version >= self.floor:
            yield f"{what}, although the floor is {self.floor}"
        elif (age_s := now_s - self.written_s.get(version + 1, now_s)) < self.kept_s - 3:
            yield f"{what} {age_s:.0f} s after the next one came, not {self.kept_s:.0f}"
        elif not any((paths.parse_checkpoint_file(name) or -1) >= self.floor for name in checkpoints):
            yield f"{what}, and there is no checkpoint from the floor {self.floor} on"
        left = sorted(one for one in self.written_s if one < version and one not in self.deleted)
        if len(left) >= self.at_once:
            yield f"{what} before that of version {left[0]}"


@dataclass
class Oracle:
    """What was promised, for one topic; `delay_s` is its `file.delete.delay.ms`."""

    world: World
    store: ObjectStore
    url: str
    delay_s: float
    batches: list[Batch] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    #: Up to where records may be gone, by partition.
    may_begin_at: dict[int, int] = field(default_factory=dict)
    #: Whether records may be gone whose key has a later record, and records that are old.
    is_compacted: bool = False
    has_retention: bool = False
    old: OldCommits = field(default_factory=OldCommits)
    _files: dict[tuple[int, str], File] = field(default_factory=dict)
    _times: dict[int, int] = field(default_factory=dict)
    _commits: dict[str, bytes] = field(default_factory=dict)
    #: The state at each version, as far as it was asked for.
    _states: list[Snapshot] = field(default_factory=list)
    #: The newest version, and what commits say of each.
    head: int = -1
    bounds: dict[int, Bounds] = field(default_factory=dict)
    #: Whether end markers take offsets, which readers do not see.
    has_markers: bool = False
    #: The newest generation of each transactional id.
    generations: dict[str, int] = field(default_factory=dict)
    _seen: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    #: Of the gateways' own topics: the commits that were seen, and the leaders by topic and partition.
    _leading: set[str] = field(default_factory=set)
    _leaders: dict[tuple[str, int], Process] = field(default_factory=dict)

    #: The names of the checkpoints that are there.
    _checkpoints: set[str] = field(default_factory=set)
    #: The checkpoint of which a bit has flipped.
    damaged: str = ""

    def __post_init__(self) -> None:
        self._prefix = self.url.partition("://")[2] + "/"
        self.store.watchers.append(self._changes)

    def new_batch(
        self, values: Sequence[bytes], keys: Sequence[bytes | None], *, atomic: bool = True, sender: str = ""
    ) -> Batch:
        """Records that somebody is about to append."""
        batch = Batch(values, keys, atomic=atomic, sender=sender)
        self.batches.append(batch)
        return batch

    def says(self, text: str) -> None:
        """Note a broken promise; nothing happens after it."""
        self.world.note(f"BROKEN: {text}")
        self.broken.append(text)
        self.world.decide()

    def check(self) -> None:
        """Raise BrokenPromiseError if a promise was broken."""
        if self.broken:
            raise BrokenPromiseError(self.broken[0])

    def is_live(self, topic_id: str) -> bool:
        """Whether this topic is there, and not dropped."""
        return self.bounds[self.head].topic_id == topic_id and bool(self.bounds[self.head].starts)

    # --- what readers see

    def observes(self, topic: distlog.Topic, head: int) -> None:
        """Somebody has opened or refreshed the topic, when version `head` was there: he has it, as commits say."""
        snapshot = topic.snapshot
        if snapshot.version < head:
            self.says(f"a reader got version {snapshot.version}, when version {head} was there")
        bounds = self.bounds.get(snapshot.version)
        if bounds is None:
            self.says(f"a reader got version {snapshot.version}, which nobody has committed")
            return
        seen = {number: state.log_start_offset for number, state in enumerate(snapshot.partitions)}
        if seen != bounds.starts:
            self.says(f"the logs of version {snapshot.version} begin at {seen}, not at {dict(bounds.starts)}")
        ends = {number: state.log_end_offset for number, state in enumerate(snapshot.partitions)}
        if ends != bounds.ends:
            self.says(f"the logs of version {snapshot.version} end at {ends}, not at {dict(bounds.ends)}")
        self._is_as_told(snapshot)

    def saw(self, topic_id: str, partition: int, offset: int, value: bytes) -> None:
        """A reader got a record: nobody gets another one at its offset."""
        before = self._seen.setdefault((topic_id, partition, offset), value)
        if before != value:
            self.says(f"offset {offset} of partition {partition} had {before!r} before, and has {value!r}")

    def check_committed(self, topic_id: str, group: str, positions: Mapping[int, int]) -> None:
        """A member was told that its positions are committed: the group's newest version has them, or later ones."""
        folder = f"{self._prefix}{paths.group_folder(topic_id, group)}/"
        versions = [key for key in self.store.objects if key.startswith(folder) and key.endswith(".json")]
        if not versions:
            return
        state = GroupState.decode(self.store.objects[max(versions)].data, max(versions))
        if any(state.positions.get(number, -1) < offset for number, offset in positions.items()):
            self.says(f"the group {group} is told to be at {positions}, and is at {dict(state.positions)}")

    # --- what happens to the store

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
            self._file_is_deleted(name)

    def _leads(self, key: str, data: bytes) -> None:
        """A file of the gateways' own topics changes: only the leader of a partition adds to it."""
        parts = key.split("/")
        if len(parts) != 4 or paths.parse_commit_file(parts[3]) is None or key in self._leading:
            return
        topic, name = parts[1], parts[3]
        author = self.store.author
        assert author is not None
        commit = Commit.decode(data, name)
        self._leading.add(key)
        rewrites = any(isinstance(action, Remove) for action in each(commit.actions))
        for action in each(commit.actions):
            match action:
                case SetTransaction(app_id) if app_id.startswith(LEADER_APP):
                    self._leaders[topic, int(app_id.removeprefix(LEADER_APP))] = author
                case Add(segment) if not rewrites and self._leaders.get((topic, segment.partition)) is not author:
                    self.says(f"{author.name} adds to partition {segment.partition} of {topic}, and does not lead it")

    def _commit_changes(self, kind: str, name: str, version: int, data: bytes | None) -> None:
        now_s = self.world.now
        if kind == "delete":
            for text in self.old.delete(version, now_s, self._checkpoints):
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
        self._commits[name] = data
        commit = Commit.decode(data, name)
        for text in self.old.put(version, commit, now_s):
            self.says(text)
        if version - 1 not in self._times and version:
            self.says(f"version {version} was committed before version {version - 1}")
        elif version and commit.timestamp_ms <= self._times[version - 1]:
            self.says(f"the time of version {version} does not go forward")
        store_ms = BEGIN_MS + self.world.now * 1000
        if commit.timestamp_ms > store_ms + 11 * 60_000 and version:
            self.says(f"version {version} is {(commit.timestamp_ms - store_ms) / 1000:.0f} s in the future")
        self._times[version] = commit.timestamp_ms
        self.head = max(self.head, version)
        self.bounds[version] = self.bounds.get(version - 1, Bounds()).after(commit)
        for action in each(commit.actions):
            self._takes(version, action)

    def _takes(self, version: int, action: Action) -> None:
        match action:
            case Add(segment):
                self._files[segment.partition, segment.stem] = File()
                log = part_of(self.url.rpartition("/")[2], segment).name
                if f"{self._prefix}{log}" not in self.store.objects:
                    self.says(f"version {version} names {log}, which is not there")
            case Remove(partition, stem):
                self._files[partition, stem] = File(False, self.world.now)
            case Drop():
                for file in self._files.values():
                    if file.live:
                        file.live, file.removed_s = False, self.world.now
                self.generations.clear()
            case SetTransaction(app_id, int(number)) if app_id.startswith(PRODUCER_APP):
                generation = number >> 32
                if generation < self.generations.get(app_id, -1):
                    self.says(f"version {version} is of a producer that a newer one had ended: {app_id}")
                self.generations[app_id] = max(generation, self.generations.get(app_id, -1))

    def _file_is_deleted(self, name: str) -> None:
        topic = self.url.rpartition("/")[2]
        bundle, own = paths.parse_bundle_file(name), paths.parse_segment_file(name, topic)
        stems = [(place, file) for place, file in self._files.items() if place == own or place[1] == bundle]
        for (partition, stem), file in stems:
            if file.live:
                self.says(f"{name} was deleted, although segment {stem} of partition {partition} is live")
            elif self.world.now - file.removed_s < self.delay_s - 1:
                ago_s = self.world.now - file.removed_s
                self.says(f"{name} was deleted {ago_s:.0f} s after its segment was removed, not {self.delay_s:.0f}")

    # --- what is there in the end

    def audit(self, topic: distlog.Topic) -> None:
        """Compare the topic's records with what was acknowledged, and its state with what the commits say."""
        self.observes(topic, self.head)
        topic_id = topic.snapshot.topic_id
        table = topic.scan(columns=["partition", "offset", "key", "value"]).to_table()
        places: dict[bytes, list[tuple[int, int]]] = {}
        newest: dict[bytes, dict[int, int]] = {}
        last: dict[int, int] = {}
        columns = (table[name].to_pylist() for name in ("partition", "offset", "key", "value"))
        for partition, offset, key, value in zip(*columns, strict=True):
            self.saw(topic_id, partition, offset, value)
            if offset <= last.get(partition, -1):
                self.says(f"offset {offset} of partition {partition} comes twice, or out of order")
            elif not self.is_compacted and not self.has_markers and offset != last.get(partition, offset - 1) + 1:
                self.says(f"offsets {last[partition] + 1} to {offset} of partition {partition} are missing")
            last[partition] = offset
            places.setdefault(value, []).append((partition, offset))
            if key is not None:
                newest.setdefault(key, {})[partition] = offset
        committed = set(places)
        if self.has_markers:
            committed = set(topic.scan(columns=["value"], isolation="read_committed").to_table()["value"].to_pylist())
        starts = topic.start_offsets()
        for batch in self.batches:
            self._audit(batch, places, committed, newest, starts, topic_id)
        self._audit_order(places, topic_id)

    def check_vacuumed(self) -> None:
        """Vacuum ran long after the end of all writers: only live segments are there, and no parts of others.

        What an adoption left that died does not tell when it was written, and stays. Where no version came behind the
        first, no gc floor can tell what is left of dead writers.
        """
        if not self.head:
            return
        topic, live = self.url.rpartition("/")[2], {place for place, file in self._files.items() if file.live}
        stems = {stem for _, stem in live}
        for key in self.store.objects:
            name = key.partition(self._prefix)[2]
            bundle, own = paths.parse_bundle_file(name), paths.parse_segment_file(name, topic)
            if (bundle and bundle not in stems) or (own and own not in live and not _is_adopted(own)):
                self.says(f"{name} is there after vacuum, and no version names it")
            if paths.parse_pending_file(name):
                self.says(f"{name} waits for a commit after vacuum")
        for name in self._checkpoints:
            if (base := paths.base_of_checkpoint(name)) and base not in self._checkpoints:
                self.says(f"{name} is there after vacuum, and {base}, which it needs, is not")
        for key, _, _ in self.store.uploads.values():
            own = paths.parse_segment_file(key.partition(self._prefix)[2], topic)
            if key.startswith(self._prefix) and not (own and own not in live and _is_adopted(own)):
                self.says(f"the parts of {key} are there after vacuum")

    def damage(self) -> None:
        """Flip a bit of the newest full checkpoint, if another one makes that no loss."""
        full = sorted(
            name
            for name in self._checkpoints
            if paths.base_of_checkpoint(name) is None and (paths.parse_checkpoint_file(name) or 0) >= self.old.floor
        )
        if len({paths.parse_checkpoint_file(name) for name in full}) > 1:
            stored = self.store.objects[self._prefix + full[-1]]
            data = bytearray(stored.data)
            chosen = Random(f"damage/{self.world.seed}")
            data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
            stored.data = bytes(data)
            self.damaged = full[-1]
            self.world.note(f"a bit of {full[-1]} flips")

    def check_checkpoints(self) -> None:
        """Every checkpoint that is there has the state of its version, if nobody has damaged what it needs."""
        for name in sorted(self._checkpoints, key=lambda name: paths.parse_checkpoint_file(name) or 0):
            version, base = paths.parse_checkpoint_file(name) or 0, paths.base_of_checkpoint(name)
            if self.damaged in (name, base):
                continue
            files = [self.store.objects.get(self._prefix + each) for each in (base or name, name)[: 2 if base else 1]]
            try:
                state = checkpoint.decode(files[0].data, name, *(each.data for each in files[1:]))
            except CorruptMetadataError as error:
                self.says(f"nobody can read {name}: {error}")
            else:
                if state != self._told_at(version):
                    self.says(f"{name} has another state than the commits up to its version")

    def check_oldest(self, topic: distlog.Topic) -> None:
        """Time travel reaches back to the log floor."""
        self.check_version(topic, topic.refresh().snapshot.log_floor)

    def check_version(self, topic: distlog.Topic, version: int) -> None:
        """A version that is kept is loaded as its commits say; raises as `CommitLog.load`."""
        self._is_as_told(topic.log.load(version, include_dropped=True))

    def _is_as_told(self, snapshot: Snapshot) -> None:
        if not is_same(snapshot, self._told_at(snapshot.version)):
            self.says(f"version {snapshot.version} is not loaded as its commits say")

    def _told_at(self, version: int) -> Snapshot:
        """The state at a version, folded from the commits as they were put."""
        states = self._states
        while len(states) <= version:
            name = paths.commit_file(len(states))
            states.append(fold(states[-1] if states else None, [Commit.decode(self._commits[name], name)]))
        return states[version]

    def _audit(
        self,
        batch: Batch,
        places: Mapping[bytes, Sequence[tuple[int, int]]],
        committed: Set[bytes],
        newest: Mapping[bytes, Mapping[int, int]],
        starts: Mapping[int, int],
        topic_id: str,
    ) -> None:
        there = [places.get(value, ()) for value in batch.values]
        shown = [value in committed for value in batch.values]
        for value, found, is_shown in zip(batch.values, there, shown, strict=True):
            if len(found) > 1:
                self.says(f"record {value!r} is there {len(found)} times, at {list(found)}")
            if is_shown and batch.refused:
                self.says(f"record {value!r} is there, although its append was refused")
            if found and batch.tried and topic_id not in batch.tried:
                self.says(f"record {value!r} is in a topic that it was not sent to")
        if batch.acknowledged and batch.topic_id not in ("", topic_id):
            return
        if batch.offsets is not None:
            self._audit_offsets(batch, there)
        whole = all(shown) or not any(shown)
        may_lack = self.is_compacted or self.has_retention or any(starts.values())
        if batch.atomic and not whole and not may_lack:
            self.says(f"only a part of the batch of {batch.values[0]!r} is there")
        if batch.acknowledged:
            for value, key, is_shown in zip(batch.values, batch.keys, shown, strict=True):
                if not is_shown and not self._may_be_gone(batch, key, newest, starts):
                    self.says(f"record {value!r} was acknowledged, and is not there")

    def _audit_order(self, places: Mapping[bytes, Sequence[tuple[int, int]]], topic_id: str) -> None:
        """The acknowledged records of one sender in a partition are in the order in which it sent them."""
        last: dict[tuple[str, int], int] = {}
        for batch in self.batches:
            if not batch.sender or not batch.acknowledged or batch.topic_id not in ("", topic_id):
                continue
            for value in batch.values:
                for partition, offset in places.get(value, ())[:1]:
                    if offset < last.get((batch.sender, partition), -1):
                        self.says(f"record {value!r} is ahead of one that {batch.sender} sent before it")
                    last[batch.sender, partition] = offset

    def _audit_offsets(self, batch: Batch, there: Iterable[Sequence[tuple[int, int]]]) -> None:
        spans = batch.offsets or {}
        for found in there:
            for partition, offset in found:
                first, end = spans.get(partition, (0, 0))
                if not first <= offset < end:
                    self.says(f"a record is at offset {offset} of partition {partition}, not where it was said to be")

    def _may_be_gone(
        self,
        batch: Batch,
        key: bytes | None,
        newest: Mapping[bytes, Mapping[int, int]],
        starts: Mapping[int, int],
    ) -> bool:
        if self.is_compacted and key is not None and key in newest:
            return True
        spans = batch.offsets or {}
        if not spans:
            return any(starts.values())
        return any(first < starts.get(partition, 0) for partition, (first, _) in spans.items())


def _is_adopted(segment: tuple[int, str]) -> bool:
    return paths.stem_read_version(segment[1]) is None


def is_same(first: Snapshot, second: Snapshot) -> bool:
    """Whether two states are equal."""
    return first == second


Rows = Set[tuple[int, int, bytes]]


def rows_of(topic: distlog.Topic) -> Rows:
    """What a reader of a snapshot reads: partitions, offsets and values."""
    table = topic.scan().to_table()
    return set(zip(*(table[name].to_pylist() for name in ("partition", "offset", "value")), strict=True))
