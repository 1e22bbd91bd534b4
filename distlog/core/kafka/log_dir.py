"""A broker's log directory: its partitions, checkpoints, and internal topics.

An import needs the decided transactions (`__transaction_state`) and the settings of topics (`__cluster_metadata`).
"""

from __future__ import annotations

import itertools
import os
import re
import uuid
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core import paths
from distlog.core.arrays import MAX_INT, MAX_LONG, byte_array
from distlog.core.config import TopicConfig, settings
from distlog.core.display import short_text
from distlog.core.errors import CorruptRecordError, DistlogError, InvalidConfigError, InvalidTopicError
from distlog.core.format.kernels.batch_scan import CODEC_MASK, LOG_OVERHEAD
from distlog.core.format.record_batch import CONTROL, HEADER_SIZE, Batches, check_crcs, read_headers, size_of_first
from distlog.core.format.record_decoder import decode
from distlog.core.kafka.partition_folder import (
    CLEAN_SHUTDOWN_FILE,
    CLUSTER_METADATA,
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    PartitionFolder,
    PartitionName,
    SourceLog,
    folder_state,
    parse_file,
    parse_partition_folder,
    read_offsets,
)
from distlog.core.kafka.transactions import TRANSACTIONS_TOPIC, TransactionState, apply_records
from distlog.core.paths import LEADER_EPOCHS
from distlog.core.read.kafka_offsets import FieldReader
from distlog.core.segments.producer_states import control_type
from distlog.core.storage.calls import in_parallel
from distlog.core.storage.storage import FileInfo, Storage


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory's partitions and their checkpoints. `is_clean`: whether the broker has shut down cleanly."""

    storage: Storage
    #: The partitions whose folders are symbolic links.
    links: Set[PartitionName]
    files: Mapping[PartitionName, Sequence[FileInfo]]
    is_clean: bool
    partitions: tuple[PartitionName, ...]
    #: By skipped folder, the reason.
    left_out: Mapping[str, str]
    #: By name of the checkpoint file, the offsets of partitions.
    checkpoints: Mapping[str, Mapping[PartitionName, int]]
    stored_transactions: StoredTransactions
    metadata: ClusterMetadata | None

    def folder(self, name: PartitionName) -> PartitionFolder:
        """Return the folder of a partition. Raises StorageError for a link."""
        if name in self.links:
            self.storage.refuse_links()
        return PartitionFolder(self.storage.child(_folder_name(name)), name, self.files[name])

    def offset(self, checkpoint: str, name: PartitionName) -> int:
        return self.checkpoints[checkpoint].get(name, 0)


@dataclass(frozen=True, slots=True)
class StoredTransactions:
    """The newest state per transactional id in the partitions of `__transaction_state` of a log directory."""

    by_id: Mapping[str, TransactionState] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, producer_id: int, epoch: int, partition: tuple[str, int]) -> TransactionState | None:
        """Return the state of the producer's open transaction in a partition; None if unknown."""
        for state in self.by_id.values():
            # the epoch may be later, since a decision that fences the producer increases it by one
            if state.producer.id == producer_id and state.producer.epoch >= epoch and partition in state.partitions:
                return state
        return None


def merged_transactions(directories: Sequence[StoredTransactions]) -> StoredTransactions:
    """Merge the states of several log directories: the newest one of each id."""
    states = [state for directory in directories for state in directory.by_id.values()]
    states.sort(key=lambda state: (state.updated_ms, state.status.value))  # statuses increase in a transaction
    notes = dict.fromkeys(note for directory in directories for note in directory.notes)
    return StoredTransactions({state.transactional_id: state for state in states}, tuple(notes))


def read_transactions(folders: Iterable[PartitionFolder]) -> StoredTransactions:
    """Read the states in `__transaction_state`; a partition that cannot be read is noted."""
    states, notes = dict[str, TransactionState](), list[str]()
    for folder in folders:
        name = f"{folder.name.topic}-{folder.name.partition}"
        try:
            if damage := _read_states(folder, states):
                notes.append(f"{name}: transactions that were decided later are not known: {damage}")
        except DistlogError as error:
            notes.append(f"{name}: which transactions were decided is not known: {error}")
    return StoredTransactions(states, tuple(notes))


def _read_states(folder: PartitionFolder, states: dict[str, TransactionState]) -> CorruptRecordError | None:
    for names in folder.loaded.segments.values():
        walk = folder.walk(names[".log"], checked=True)
        for batches in walk:
            rows = batches.rows[(batches.rows["attributes"] & CONTROL == 0) & (batches.rows["record_count"] > 0)]
            records = decode(batches.data, rows, columns=("key", "value"))
            apply_records(states, records, folder.path(names[".log"]))
        if walk.damage is not None:
            return walk.damage
    return None


#: The most bytes of a `meta.properties`; a broker's has a few hundred.
_MAX_PROPERTIES_BYTES = 64 << 10
_STATES = {"delete": "was being deleted", "future": "was a copy on its way to another disk", "stray": "was stray"}


def read_log_dir(
    directory: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> tuple[LogDir, PartitionName | None]:
    """Read a log directory; if `directory` is a partition's folder, read its parent, and return the partition too."""
    storage = Storage(directory, options)
    if storage.is_local:
        # the directory itself may be a link, but no file in it
        storage = Storage(os.path.realpath(storage.local_path(""))).without_links()
    parent, _, folder = storage.url.rstrip("/").rpartition("/")
    state = folder_state(folder)
    if state is not None:
        raise InvalidTopicError(f"this partition {_STATES[state]}: adopt another folder", directory=storage.url)
    if storage.is_local and not os.path.isdir(storage.url):
        raise InvalidTopicError("the directory to adopt does not exist", directory=storage.url)
    name = parse_partition_folder(folder)
    if name is not None and _is_partition(storage.list()):
        parent_dir = Storage(parent or "/", options).without_links()
        siblings = parent_dir.list_folders()
        check_is_no_topic(parent_dir, siblings)
        return _read(parent_dir, [folder], siblings), name
    folders = sorted(storage.list_folders())
    check_is_no_topic(storage, folders)
    log_dir = _read(storage, folders, folders, storage.links())
    if not log_dir.partitions and log_dir.metadata is None:
        text = "not a broker's log directory, and not a partition's folder: no folder is named <topic>-<partition>"
        raise InvalidTopicError(text, directory=storage.url)
    return log_dir, None


def check_is_no_topic(directory: Storage, folders: Container[str]) -> None:
    """Raise InvalidTopicError for the folders of a topic, since its partitions are named as in a log directory."""
    if paths.COMMITS_DIR in folders:
        text = "this is the folder of a topic, not a broker's log directory: use the log directory"
        raise InvalidTopicError(text, directory=directory.url)


def _read(storage: Storage, folders: Sequence[str], siblings: Iterable[str], links: Iterable[str] = ()) -> LogDir:
    """Read the partitions in `folders`, and the internal topics in `siblings` (all folders of the directory)."""
    sibling_names = [name for folder in siblings if (name := parse_partition_folder(folder))]
    sizes = {file.name: file.size for file in storage.list()}
    names = sizes.keys()
    checkpoints = {
        name: read_offsets(storage.read(name), file=f"{storage.url}/{name}") if name in names else {}
        for name in (RECOVERY_POINTS, LOG_START_OFFSETS, FIRST_DIRTY_OFFSETS, HIGH_WATERMARKS)
    }
    files = _partition_files(storage, folders, checkpoints[LOG_START_OFFSETS])
    linked = {name for link in links if (name := parse_partition_folder(link))}
    left_out = {folder: _STATES[state] for folder in folders if (state := folder_state(folder))}
    metadata_names = [name for name in files if name.topic == CLUSTER_METADATA]
    left_out |= {_folder_name(name): "holds the cluster's own metadata" for name in metadata_names}
    is_clean, metadata = CLEAN_SHUTDOWN_FILE in names, None
    if metadata_folders := _folders(storage, files, sibling_names, CLUSTER_METADATA):
        metadata = read_cluster_metadata(metadata_folders[0], _cluster_id(storage, sizes), is_clean=is_clean)
    return LogDir(
        storage=storage,
        links=frozenset(linked),
        files=files,
        is_clean=is_clean,
        partitions=tuple(sorted((files.keys() | linked) - {*metadata_names})),
        left_out=left_out,
        checkpoints=checkpoints,
        stored_transactions=read_transactions(_folders(storage, files, sibling_names, TRANSACTIONS_TOPIC)),
        metadata=metadata,
    )


def _cluster_id(storage: Storage, sizes: Mapping[str, int]) -> str | None:
    """Return the id of the broker's cluster in `meta.properties`; None if it cannot be read, or is a pipe."""
    is_small = sizes.get(META_PROPERTIES, MAX_INT) <= _MAX_PROPERTIES_BYTES
    if not is_small or (storage.is_local and not os.path.isfile(storage.local_path(META_PROPERTIES))):
        return None
    with suppress(DistlogError, OSError):
        for line in storage.read(META_PROPERTIES).decode("utf-8", "replace").splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "cluster.id":
                return value.strip() or None
    return None


def _folders(
    storage: Storage, listed: Mapping[PartitionName, Sequence[FileInfo]], names: Iterable[PartitionName], topic: str
) -> list[PartitionFolder]:
    """Return the folders of an internal topic among `names`; `listed` has the files of some folders."""
    names = sorted(name for name in names if name.topic == topic)
    unlisted = [_folder_name(name) for name in names if name not in listed]
    files = {**listed, **_partition_files(storage, unlisted, ())}
    return [PartitionFolder(storage.child(_folder_name(name)), name, files[name]) for name in names if name in files]


def _partition_files(
    storage: Storage, folders: Iterable[str], starts: Container[PartitionName]
) -> dict[PartitionName, list[FileInfo]]:
    """List the files of each folder that has a broker's files, or whose partition has a log start in `starts`."""
    names = [name for folder in folders if (name := parse_partition_folder(folder))]
    listed = in_parallel(lambda name: storage.child(_folder_name(name)).list(), names)
    return {name: files for name, files in zip(names, listed, strict=True) if name in starts or _is_partition(files)}


def _is_partition(files: Iterable[FileInfo]) -> bool:
    """Return whether a broker wrote these files: a log, or files next to a log."""
    names = [file.name for file in files]
    return any(".log" in name or name in (PARTITION_METADATA, LEADER_EPOCHS) or parse_file(name) for name in names)


def _folder_name(name: PartitionName) -> str:
    return f"{name.topic}-{name.partition}"


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The settings of a cluster's topics in one replica; the replica with the largest `progress` is the newest."""

    cluster_id: str | None
    #: By name and id of a topic, its settings.
    topics: Mapping[str, Mapping[uuid.UUID, Mapping[str, str]]] = field(default_factory=dict)
    progress: tuple[int, int] = (-1, -1)  # (leader epoch, end offset)
    notes: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        return self.progress[1] >= 0

    def settings(self, topic: str, topic_ids: Collection[uuid.UUID]) -> Mapping[str, str] | None:
        """Return the settings of `topic` with an id in `topic_ids` (any id if that is empty), or None if missing."""
        candidates = self.topics.get(topic, {})
        return next((values for key, values in candidates.items() if not topic_ids or key in topic_ids), None)


# A value is a frame: its version (1), the kind of the record and the record's version as unsigned varints, and the
# record's fields, flexible (KIP-482). Null resets a setting. Records of a transaction (KIP-868) apply at its end.
_FRAME, _VERSION = 1, 0
#: Kinds: TopicRecord, ConfigRecord, RemoveTopicRecord, and those that begin, end and abort a transaction.
_TOPIC, _SETTING, _REMOVED_TOPIC, _BEGIN, _END, _ABORT = 2, 4, 9, 23, 24, 25
_TOPIC_RESOURCE = 2  # the resource type of topics in settings; other types are brokers and clients
#: The first two bytes of the values that are applied.
_RELEVANT_PREFIXES = [bytes([_FRAME, kind]) for kind in (_TOPIC, _SETTING, _REMOVED_TOPIC, _BEGIN, _END, _ABORT)]
#: The most bytes of all files, the most values, and the most bytes of all values, which brokers also hold in memory.
_MAX_BYTES, _MAX_VALUES, _MAX_VALUE_BYTES = 1 << 30, 1_000_000, 256 << 20
#: The most bytes of a topic's settings; Kafka's have a few hundred, and lists of throttled replicas up to 32 KiB.
_MAX_TOPIC_BYTES = 256 << 10
#: The most bytes of a record, and of a batch; Kafka's batches have up to 8 MiB (`KafkaRaftClient`).
_MAX_RECORD_BYTES, _MAX_BATCH_BYTES = 64 << 10, 16 << 20


@dataclass(slots=True)
class _Image:
    """The topics of a cluster and their settings after the records up to `end_offset`."""

    end_offset: int = 0
    names: dict[uuid.UUID, str] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    #: The records of an unfinished transaction, if any.
    _transaction_values: list[bytes] | None = None
    _count: int = 0
    _bytes: int = 0

    def add(self, value: bytes) -> None:
        """Apply the next record. Raises CorruptRecordError, also for a record of a newer version."""
        reader = FieldReader(value, "a record", CLUSTER_METADATA)
        reader.is_flexible = True
        _, kind, version = reader.varint(), reader.varint(), reader.varint()
        if version != _VERSION:
            text = f"a record of {CLUSTER_METADATA} has an unknown version: a newer Kafka wrote it, so upgrade"
            raise CorruptRecordError(text, kind=kind, version=version)
        if kind == _BEGIN:
            self._transaction_values = []
        elif kind == _ABORT:
            self._transaction_values = None
        elif kind == _END:
            values, self._transaction_values = self._transaction_values or [], None
            for record in values:
                self.add(record)
        elif self._transaction_values is not None:
            self._count_value(len(value))
            self._transaction_values.append(value)
        else:
            self._apply(kind, reader)
            reader.skip_tags()
            reader.finish()

    def _apply(self, kind: int, reader: FieldReader) -> None:
        if kind == _TOPIC:
            name = reader.text()
            self._count_value(len(name))
            self.names[uuid.UUID(bytes=reader.read(16))] = name
        elif kind == _REMOVED_TOPIC:
            self.settings.pop(self.names.pop(uuid.UUID(bytes=reader.read(16)), ""), None)
        else:
            resource, name, setting, value = reader.number(">b"), reader.text(), reader.text(), reader.nullable_text()
            if resource != _TOPIC_RESOURCE:
                return
            if value is None:
                self.settings.get(name, {}).pop(setting, None)
            else:
                self._count_value(len(name) + len(setting) + len(value))
                self.settings.setdefault(name, {})[setting] = value

    def _count_value(self, size: int) -> None:
        self._count += 1
        self._bytes += size
        if self._count > _MAX_VALUES or self._bytes > _MAX_VALUE_BYTES:
            raise CorruptRecordError(f"{CLUSTER_METADATA} has too many topics and settings", most=_MAX_VALUES)

    def add_batches(self, batches: Batches, file: str) -> None:
        """Apply the records from `end_offset` on. Raises CorruptRecordError if batches are missing or bad."""
        rows = batches.rows
        ends = rows["base_offset"] + rows["last_offset_delta"] + 1
        rows, ends = rows[ends > self.end_offset], ends[ends > self.end_offset]
        if not len(rows):
            return
        if rows["base_offset"][0] > self.end_offset or (rows["base_offset"][1:] != ends[:-1]).any():
            raise _gap_error(file, self.end_offset)
        rows = rows[(rows["attributes"] & CONTROL == 0) & (rows["record_count"] > 0)]
        # Kafka never compresses metadata (`BatchAccumulator`), so the file's size bounds the memory of the records
        if (rows["attributes"] & CODEC_MASK).any():
            raise CorruptRecordError("a batch is compressed, and batches of metadata never are", file=file)
        if (rows["size"] > _MAX_BATCH_BYTES).any():
            raise CorruptRecordError("a batch of metadata is too large", file=file, most=_MAX_BATCH_BYTES)
        for value in _relevant_records(batches.data, rows, file, self.end_offset):
            self.add(value)
        self.end_offset = int(ends[-1])


def _relevant_records(data: Any, rows: np.ndarray, file: str, start_offset: int) -> Iterator[bytes]:
    """Yield the values of relevant records, without making Python objects of other records."""
    values = decode(data, rows, columns=("value",), start_offset=start_offset, file=file).column("value")
    has_version = pc.equal(pc.binary_slice(values, 0, 1), bytes([_FRAME]))
    is_framed = pc.and_(has_version, pc.greater(pc.binary_length(values), 2))
    if not pc.all(pc.fill_null(is_framed, False), min_count=0).as_py():
        text = f"a record of {CLUSTER_METADATA} does not begin with the frame version {_FRAME}: the file is damaged"
        raise CorruptRecordError(f"{text}, or a newer Kafka wrote it; copy it again, or upgrade distlog", file=file)
    relevant = values.filter(pc.is_in(pc.binary_slice(values, 0, 2), value_set=pa.array(_RELEVANT_PREFIXES)))
    if (pc.max(pc.binary_length(relevant)).as_py() or 0) > _MAX_RECORD_BYTES:
        raise CorruptRecordError("a record of metadata is too large", file=file, most=_MAX_RECORD_BYTES)
    yield from relevant.to_pylist()


#: A snapshot of the metadata (KIP-630), named by its end offset and leader epoch. Its last record is a footer.
_SNAPSHOT = re.compile(r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint")
_SNAPSHOT_FOOTER = 4
#: The format of all batches of metadata, and its position in a batch.
_MAGIC, _MAGIC_POSITION = 2, 16
#: The bytes that `_has_later_batch` searches at once, and the most bytes of possible batches that it checks.
_SEARCH_BYTES, _MAX_CHECKED_BYTES = 4 << 20, 64 << 20


def newest_metadata(replicas: Iterable[ClusterMetadata]) -> list[ClusterMetadata]:
    """Return the most complete metadata per cluster, with the notes on all of its replicas."""
    clusters = dict[str | None, list[ClusterMetadata]]()
    for replica in replicas:
        clusters.setdefault(replica.cluster_id, []).append(replica)
    return [
        replace(max(copies, key=attrgetter("progress")), notes=tuple(note for copy in copies for note in copy.notes))
        for copies in clusters.values()
    ]


def imported_settings(
    clusters: Sequence[ClusterMetadata], topic: str, topic_ids: Collection[uuid.UUID], overrides: Mapping[str, object]
) -> ImportedSettings:
    """Return the settings of a topic by its cluster's metadata; `overrides` take precedence."""
    notes = [note for cluster in clusters for note in cluster.notes]
    by_cluster = ((cluster, cluster.settings(topic, topic_ids)) for cluster in clusters)
    candidates = [(cluster, values) for cluster, values in by_cluster if values is not None]
    if len(clusters) > 1 and not topic_ids:
        text = "there is metadata of several clusters, and the topic has no id that selects one"
        notes.append(f"{text}: its settings are not known")
    elif any(values != candidates[0][1] for _, values in candidates):
        notes.append("several clusters have this topic, with different settings: its settings are not known")
    elif candidates:
        cluster, values = candidates[0]
        return ImportedSettings.of(values, overrides, cluster.notes)
    elif any(cluster.is_known for cluster in clusters):
        notes.append("the cluster's metadata does not have this topic: its settings are not known")
    return ImportedSettings.of({}, overrides, notes)


def read_cluster_metadata(folder: PartitionFolder, cluster_id: str | None, *, is_clean: bool) -> ClusterMetadata:
    """Read the metadata in the folder. Damage leaves the settings unknown, except a torn write after a crash."""
    notes = list[str]()
    try:
        names = [name for name in folder.names if name.endswith((".log", ".checkpoint"))]
        folder.check_files(names)
        size = sum(map(folder.size, names))
        if size > _MAX_BYTES:
            raise CorruptRecordError("the files of metadata are too large", bytes=size, most=_MAX_BYTES)
        image, epoch = _read_snapshot(folder, notes)
        epoch = max(epoch, _apply_log(folder, image, notes, is_clean=is_clean))
        # a snapshot that ends later, even an incomplete one, shows that records are missing
        offset, _, file = next(iter(_list_snapshots(folder)), (0, -1, ""))
        if offset > image.end_offset:
            raise _gap_error(folder.path(file), image.end_offset)
        for name, settings_of_topic in image.settings.items():
            if sum(map(len, itertools.chain(*settings_of_topic.items()))) > _MAX_TOPIC_BYTES:
                text = "the settings of a topic are too large"
                raise CorruptRecordError(text, topic=short_text(name), most=_MAX_TOPIC_BYTES)
    except Exception as error:
        # the topics are imported even if these files are damaged
        reason = error if isinstance(error, DistlogError) else f"{type(error).__name__}: {error}"
        text = (
            f"settings are not taken from {CLUSTER_METADATA}, which is damaged: {reason}; set them by `distlog alter`"
        )
        return ClusterMetadata(cluster_id, notes=(*notes, text))
    topics = dict[str, dict[uuid.UUID, Mapping[str, str]]]()
    for topic_id, name in image.names.items():
        topics.setdefault(name, {})[topic_id] = image.settings.get(name, {})
    return ClusterMetadata(cluster_id, topics, (epoch, image.end_offset), tuple(notes))


def _list_snapshots(folder: PartitionFolder) -> list[tuple[int, int, str]]:
    """Return the offset, leader epoch and name of snapshots, complete or not, the newest first."""
    matches = (match for name in folder.names if (match := _SNAPSHOT.fullmatch(name)))
    return sorted(((int(m["offset"]), int(m["epoch"]), m[0]) for m in matches), reverse=True)


def _read_snapshot(folder: PartitionFolder, notes: list[str]) -> tuple[_Image, int]:
    """Return the newest complete snapshot, and its leader epoch; an empty image if there is none."""
    for offset, epoch, name in _list_snapshots(folder):
        image, last_control_type = _Image(), -1
        try:
            walk = folder.walk(name, checked=True)
            for batches in walk:
                image.add_batches(batches, walk.file)
                last_control_type = control_type(batches.data, batches.rows[-1])
            if walk.damage is not None or last_control_type != _SNAPSHOT_FOOTER or offset > MAX_LONG:
                raise walk.damage or CorruptRecordError("the snapshot is incomplete", file=walk.file)
        except CorruptRecordError as error:
            notes.append(f"{CLUSTER_METADATA}: an older snapshot is used: {error}")
        else:
            image.end_offset = offset
            return image, epoch
    return _Image(), -1


def _apply_log(folder: PartitionFolder, image: _Image, notes: list[str], *, is_clean: bool) -> int:
    """Apply the log's records past the image's end; returns the leader epoch of the last batch, -1 without one."""
    segments, epoch = folder.loaded.segments, -1
    if not segments:
        # a broker always has a log, which may be empty after its snapshot
        raise CorruptRecordError("the folder has no log file", file=folder.path(""))
    for base, next_base in zip(segments, [*list(segments)[1:], None], strict=True):
        if next_base is not None and next_base <= image.end_offset:
            continue
        name = segments[base][".log"]
        if base > image.end_offset:
            raise _gap_error(folder.path(name), image.end_offset)
        walk = folder.walk(name, checked=True)
        for batches in walk:
            image.add_batches(batches, walk.file)
            epoch = int(batches.rows["leader_epoch"][-1])
        if walk.damage is None:
            continue
        if is_clean or next_base is not None or _has_later_batch(folder.log(name), walk.position):
            raise walk.damage
        notes.append(f"{CLUSTER_METADATA}: cut from position {walk.position}: {walk.damage.message}")
    return epoch


def _gap_error(file: str, from_offset: int) -> CorruptRecordError:
    return CorruptRecordError("records are missing before this file", file=file, from_offset=from_offset)


def _has_later_batch(log: SourceLog, position: int) -> bool:
    """Return whether a complete batch may follow the damage at `position`, which then is not a torn write."""
    later_bytes = log.read(position + 1, log.size)
    data, checked_bytes = byte_array(later_bytes), 0
    for start in range(0, data.size, _SEARCH_BYTES):
        magics = data[start + _MAGIC_POSITION : start + _MAGIC_POSITION + _SEARCH_BYTES]
        for candidate in (start + np.flatnonzero(magics == _MAGIC)).tolist():  # where a batch may begin
            size = size_of_first(later_bytes[candidate : candidate + LOG_OVERHEAD])
            if not HEADER_SIZE <= size <= data.size - candidate:
                continue
            checked_bytes += size
            # if there is too much to check, assume a batch: an error is better than a cut of later records
            if checked_bytes > _MAX_CHECKED_BYTES or _is_batch(later_bytes[candidate : candidate + size]):
                return True
    return False


def _is_batch(data: memoryview) -> bool:
    with suppress(CorruptRecordError):
        rows = read_headers(data)
        check_crcs(data, rows)
        return len(rows) > 0
    return False


#: The default of an import, since a topic must not lose records because its settings are unknown.
_KEEP_ALL = {"retention.ms": "-1"}
_POLICY = "cleanup.policy"
#: Settings that are skipped if `cleanup.policy` is invalid: with its default, they would delete records.
_DELETING = ("retention.bytes", "retention.ms")
#: Settings that only suit the topics of a broker, and why they are not imported.
_UNSUITABLE = {
    "flush.messages": "acknowledged records could be lost, since there are no replicas",
    "file.delete.delay.ms": "readers of an older version need removed files for longer",
}


@dataclass(frozen=True, slots=True)
class ImportedSettings:
    """The settings of an imported topic; `values` has the broker's valid ones, `notes` why others are skipped."""

    config: TopicConfig
    values: Mapping[str, str]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, broker: Mapping[str, str], overrides: Mapping[str, object], notes: Sequence[str] = ()
    ) -> ImportedSettings:
        """Merge the `broker`'s valid settings with `overrides`; without retention if the policy is invalid."""
        names = {setting.name for setting in settings()}
        valid_settings, skips = dict[str, str](), dict[str, str]()
        # the policy sorts before the settings that depend on it
        for name, value in sorted(broker.items()):
            if name in overrides:
                continue
            if name not in names:
                skips[name] = "distlog does not have it"
            elif name in _UNSUITABLE:
                skips[name] = f"{_UNSUITABLE[name]}; set it explicitly if that is intended"
            elif name in _DELETING and _POLICY in skips:
                skips[name] = "without the topic's cleanup.policy it could delete kept records"
            else:
                # Kafka ignores spaces and repetitions in a list
                items = dict.fromkeys(item.strip() for item in value.split(","))
                text = ",".join(items) if name == _POLICY else value
                try:
                    config = TopicConfig.parse({**_KEEP_ALL, **valid_settings, name: text})
                    # in distlog's form: Kafka's text may have spaces
                    valid_settings[name] = config.overrides()[name]
                except InvalidConfigError as error:
                    skips[name] = error.message
        config = TopicConfig.parse({**_KEEP_ALL, **valid_settings, **overrides})
        left_out = [f"left out {short_text(name)}={short_text(broker[name])}: {text}" for name, text in skips.items()]
        return cls(config, valid_settings, (*notes, *left_out))
