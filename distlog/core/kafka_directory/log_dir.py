"""A broker's log directory: its partitions, and what its checkpoint files say."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distlog.core import paths
from distlog.core.errors import InvalidTopicError
from distlog.core.kafka_directory.checkpoint_files import (
    FIRST_DIRTY_OFFSETS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_offsets,
)
from distlog.core.kafka_directory.directory_names import (
    CLEAN_SHUTDOWN_FILE,
    CLUSTER_METADATA,
    PartitionName,
    folder_state,
    parse_partition_folder,
)
from distlog.core.kafka_directory.partition_folder import PartitionFolder
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import FileInfo, Storage

_STATES = {"delete": "was being deleted", "future": "was a copy on its way to another disk", "stray": "was stray"}


@dataclass(frozen=True, slots=True)
class LogDir:
    """What a log directory says of its partitions. `clean` means that the broker was shut down in order.

    `left_out` says of folders that hold a log why they are not taken.
    """

    storage: Storage
    files: Mapping[PartitionName, Sequence[FileInfo]]
    clean: bool
    partitions: tuple[PartitionName, ...]
    left_out: Mapping[str, str]
    recovery_points: Mapping[PartitionName, int]
    log_start_offsets: Mapping[PartitionName, int]
    first_dirty_offsets: Mapping[PartitionName, int]

    def folder(self, name: PartitionName) -> PartitionFolder:
        """The folder of a partition."""
        return PartitionFolder(self.storage.child(_folder_of(name)), name, self.files[name])


def read_log_dir(
    directory: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> tuple[LogDir, PartitionName | None]:
    """The log directory at `directory`, or around it: then the second item is the partition that it is.

    `options` are those of the client of a URL. Raises InvalidTopicError if this is neither, CorruptMetadataError for
    a checkpoint file that is not whole.
    """
    storage = Storage(directory, options)
    if storage.is_local:
        storage = Storage(os.path.realpath(storage.local_path("")))
    parent, _, folder = storage.url.rstrip("/").rpartition("/")
    state = folder_state(folder)
    if state is not None:
        raise InvalidTopicError(f"this partition {_STATES[state]}: adopt another folder", directory=storage.url)
    if storage.is_local and not os.path.isdir(storage.url):
        raise InvalidTopicError("there is no such directory to adopt", directory=storage.url)
    name = parse_partition_folder(folder)
    if name is not None and any(file.name.endswith(".log") for file in storage.list()):
        around = Storage(parent or "/", options)
        refuse_topic(around, around.list_folders())
        return _read(around, [folder]), name
    folders = sorted(storage.list_folders())
    refuse_topic(storage, folders)
    found = _read(storage, folders)
    if not found.partitions:
        text = "this is neither a broker's log directory nor a partition's folder: it holds no <topic>-<partition>"
        raise InvalidTopicError(text, directory=storage.url)
    return found, None


def refuse_topic(directory: Storage, folders: Container[str]) -> None:
    """Raise InvalidTopicError if a directory with these folders is a topic, which names them as a broker does."""
    if paths.COMMITS_DIR in folders:
        text = "this is the folder of a topic, not a broker's log directory: give the log directory"
        raise InvalidTopicError(text, directory=directory.url)


def _read(storage: Storage, folders: Sequence[str]) -> LogDir:
    """The log directory, as if it had these folders alone."""
    files = _partition_files(storage, folders)
    left_out = {folder: _STATES[state] for folder in folders if (state := folder_state(folder))}
    metadata = [name for name in files if name.topic == CLUSTER_METADATA]
    left_out |= {_folder_of(name): "holds the cluster's own metadata" for name in metadata}
    names = {file.name for file in storage.list()}
    return LogDir(
        storage,
        files,
        CLEAN_SHUTDOWN_FILE in names,
        tuple(sorted(files.keys() - metadata)),
        left_out,
        *(_offsets(storage, name, names) for name in (RECOVERY_POINTS, LOG_START_OFFSETS, FIRST_DIRTY_OFFSETS)),
    )


def _partition_files(storage: Storage, folders: Iterable[str]) -> dict[PartitionName, list[FileInfo]]:
    """The files in each partition's folder that holds a log."""
    names = [name for folder in folders if (name := parse_partition_folder(folder))]
    listed = in_parallel(lambda name: storage.child(_folder_of(name)).list(), names)
    return {
        name: files for name, files in zip(names, listed, strict=True) if any(".log" in file.name for file in files)
    }


def _folder_of(name: PartitionName) -> str:
    return f"{name.topic}-{name.partition}"


def _offsets(storage: Storage, name: str, names: Container[str]) -> Mapping[PartitionName, int]:
    return read_offsets(storage.read(name), file=f"{storage.url}/{name}") if name in names else {}
