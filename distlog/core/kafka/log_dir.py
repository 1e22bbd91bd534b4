"""A broker's log directory: its partitions, and what its checkpoint files say."""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from distlog.core import paths
from distlog.core.errors import CorruptRecordError, DistlogError, InvalidTopicError
from distlog.core.format.record_batch import CONTROL
from distlog.core.format.record_decoder import decode
from distlog.core.integers import MAX_INT
from distlog.core.kafka.cluster_metadata import ClusterMetadata, read_cluster_metadata
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
    folder_state,
    log_walk,
    parse_file,
    parse_partition_folder,
    read_offsets,
)
from distlog.core.kafka.transactions import TRANSACTIONS_TOPIC, TransactionState, apply_state
from distlog.core.paths import LEADER_EPOCHS
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import FileInfo, Storage


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory's partitions and their checkpoints. `clean` means a clean shutdown of the broker."""

    storage: Storage
    links: Set[PartitionName]
    files: Mapping[PartitionName, Sequence[FileInfo]]
    clean: bool
    partitions: tuple[PartitionName, ...]
    left_out: Mapping[str, str]
    recovery_points: Mapping[PartitionName, int]
    log_start_offsets: Mapping[PartitionName, int]
    first_dirty_offsets: Mapping[PartitionName, int]
    high_watermarks: Mapping[PartitionName, int]
    left_states: LeftStates
    metadata: ClusterMetadata | None

    def folder(self, name: PartitionName) -> PartitionFolder:
        """The folder of a partition. Raises StorageError for a link in its place."""
        if name in self.links:
            self.storage.refuse_links()
        return PartitionFolder(self.storage.child(_folder_of(name)), name, self.files[name])


_log = logging.getLogger("distlog")
_COLUMNS = ("key", "value")


@dataclass(frozen=True, slots=True)
class LeftStates:
    """The newest state per transactional id in the partitions of `__transaction_state` of a log directory."""

    by_id: Mapping[str, TransactionState] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, producer_id: int, epoch: int, partition: tuple[str, int]) -> TransactionState | None:
        """Return the state of the producer's open transaction in a partition; None if unknown."""
        for state in self.by_id.values():
            # a decision may have the next epoch, which fences
            if state.producer.id == producer_id and state.producer.epoch >= epoch and partition in state.partitions:
                return state
        return None


def joined_states(of_directories: Sequence[LeftStates]) -> LeftStates:
    """Merge the states of several log directories; the newest state of an id applies."""
    states = dict[str, TransactionState]()
    for state in [state for directory in of_directories for state in directory.by_id.values()]:
        newest = states.get(state.transactional_id)
        if newest is None or (newest.updated_ms, newest.status.value) < (state.updated_ms, state.status.value):
            states[state.transactional_id] = state
    return LeftStates(states, tuple(dict.fromkeys(note for directory in of_directories for note in directory.notes)))


def left_states(folders: Iterable[PartitionFolder]) -> LeftStates:
    """Read the states in `__transaction_state`; a partition that cannot be read is noted."""
    states, notes = dict[str, TransactionState](), list[str]()
    for folder in folders:
        name = f"{folder.name.topic}-{folder.name.partition}"
        try:
            if damage := _read_states(folder, states):
                notes.append(f"{name}: transactions that were decided later are not known: {damage}")
        except DistlogError as error:
            notes.append(f"{name}: which transactions were decided is not known: {error}")
    return LeftStates(states, tuple(notes))


def _read_states(folder: PartitionFolder, states: dict[str, TransactionState]) -> CorruptRecordError | None:
    for names in folder.loaded.segments.values():
        walk = log_walk(folder.log(names[".log"]), checked=True, file=folder.path(names[".log"]))
        for batches in walk:
            rows = batches.rows[(batches.rows["attributes"] & CONTROL == 0) & (batches.rows["record_count"] > 0)]
            for record in decode(batches.data, rows, columns=_COLUMNS).to_pylist():
                try:
                    apply_state(states, record["key"], record["value"])
                except CorruptRecordError as error:  # noqa: PERF203 - a bad record must not hide the next
                    _log.warning("%s: %s", folder.path(names[".log"]), error)
        if walk.damage is not None:
            return walk.damage
    return None


#: A broker's `meta.properties` has some hundred bytes.
_MOST_PROPERTIES_BYTES = 64 << 10
_STATES = {"delete": "was being deleted", "future": "was a copy on its way to another disk", "stray": "was stray"}


def read_log_dir(
    directory: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> tuple[LogDir, PartitionName | None]:
    """Read the log directory at `directory`, or around it; then the second item is the partition at `directory`."""
    storage = Storage(directory, options)
    if storage.is_local:
        storage = Storage(os.path.realpath(storage.local_path(""))).without_links()
    parent, _, folder = storage.url.rstrip("/").rpartition("/")
    state = folder_state(folder)
    if state is not None:
        raise InvalidTopicError(f"this partition {_STATES[state]}: adopt another folder", directory=storage.url)
    if storage.is_local and not os.path.isdir(storage.url):
        raise InvalidTopicError("the directory to adopt does not exist", directory=storage.url)
    name = parse_partition_folder(folder)
    if name is not None and _is_partition(storage.list()):
        around = Storage(parent or "/", options).without_links()
        siblings = around.list_folders()
        refuse_topic(around, siblings)
        return _read(around, [folder], siblings), name
    folders = sorted(storage.list_folders())
    refuse_topic(storage, folders)
    log_dir = _read(storage, folders, folders, storage.links())
    if not log_dir.partitions and log_dir.metadata is None:
        text = "not a broker's log directory or a partition's folder: it has no folder <topic>-<partition>"
        raise InvalidTopicError(text, directory=storage.url)
    return log_dir, None


def refuse_topic(directory: Storage, folders: Container[str]) -> None:
    """Raise InvalidTopicError if a directory with these folders is a topic, which names them as a broker does."""
    if paths.COMMITS_DIR in folders:
        text = "this is the folder of a topic, not a broker's log directory: use the log directory"
        raise InvalidTopicError(text, directory=directory.url)


def _read(storage: Storage, folders: Sequence[str], siblings: Iterable[str], links: Iterable[str] = ()) -> LogDir:
    """Read the log directory with `folders`; `siblings` are only used for transactions and settings."""
    names_around = [name for folder in siblings if (name := parse_partition_folder(folder))]
    sizes = {file.name: file.size for file in storage.list()}
    names = sizes.keys()
    starts = _offsets(storage, LOG_START_OFFSETS, names)
    files = _partition_files(storage, folders, starts)
    linked = {name for link in links if (name := parse_partition_folder(link))}
    left_out = {folder: _STATES[state] for folder in folders if (state := folder_state(folder))}
    metadata = [name for name in files if name.topic == CLUSTER_METADATA]
    left_out |= {_folder_of(name): "holds the cluster's own metadata" for name in metadata}
    is_clean = CLEAN_SHUTDOWN_FILE in names
    return LogDir(
        storage,
        frozenset(linked),
        files,
        is_clean,
        tuple(sorted((files.keys() | linked) - {*metadata})),
        left_out,
        recovery_points=_offsets(storage, RECOVERY_POINTS, names),
        log_start_offsets=starts,
        first_dirty_offsets=_offsets(storage, FIRST_DIRTY_OFFSETS, names),
        high_watermarks=_offsets(storage, HIGH_WATERMARKS, names),
        left_states=left_states(_folders(storage, files, names_around, TRANSACTIONS_TOPIC)),
        metadata=next(
            (
                read_cluster_metadata(folder, _cluster_id(storage, sizes), is_clean=is_clean)
                for folder in _folders(storage, files, names_around, CLUSTER_METADATA)
            ),
            None,
        ),
    )


def _cluster_id(storage: Storage, sizes: Mapping[str, int]) -> str | None:
    """Return the id of the broker's cluster in `meta.properties`; None if it cannot be read."""
    is_small = sizes.get(META_PROPERTIES, MAX_INT) <= _MOST_PROPERTIES_BYTES
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
    """Return the folders of a topic, also if only a partition of another topic is imported."""
    selected = sorted(name for name in names if name.topic == topic)
    missing = [_folder_of(name) for name in selected if name not in listed]
    files = {**listed, **_partition_files(storage, missing, ())}
    return [PartitionFolder(storage.child(_folder_of(name)), name, files[name]) for name in selected if name in files]


def _partition_files(
    storage: Storage, folders: Iterable[str], starts: Container[PartitionName]
) -> dict[PartitionName, list[FileInfo]]:
    """List the files in the partitions' folders; a partition without a log may have a log start offset."""
    names = [name for folder in folders if (name := parse_partition_folder(folder))]
    listed = in_parallel(lambda name: storage.child(_folder_of(name)).list(), names)
    return {name: files for name, files in zip(names, listed, strict=True) if name in starts or _is_partition(files)}


def _is_partition(files: Iterable[FileInfo]) -> bool:
    """Return whether a broker wrote these files: a log, or files next to it, for which it makes an empty log."""
    names = [file.name for file in files]
    return any(".log" in name or name in (PARTITION_METADATA, LEADER_EPOCHS) or parse_file(name) for name in names)


def _folder_of(name: PartitionName) -> str:
    return f"{name.topic}-{name.partition}"


def _offsets(storage: Storage, name: str, names: Container[str]) -> Mapping[PartitionName, int]:
    return read_offsets(storage.read(name), file=f"{storage.url}/{name}") if name in names else {}
