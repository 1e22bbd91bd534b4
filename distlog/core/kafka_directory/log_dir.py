"""A broker's log directory: its partitions, and what its checkpoint files say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

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
from distlog.core.storage.storage import Storage

_STATES = {"delete": "was being deleted", "future": "was a copy on its way to another disk", "stray": "was stray"}


@dataclass(frozen=True, slots=True)
class LogDir:
    """What a log directory says of its partitions. `clean` means that the broker was shut down in order.

    `left_out` says of folders that hold a log why they are not taken.
    """

    storage: Storage
    clean: bool
    partitions: tuple[PartitionName, ...]
    left_out: Mapping[str, str]
    recovery_points: Mapping[PartitionName, int]
    log_start_offsets: Mapping[PartitionName, int]
    first_dirty_offsets: Mapping[PartitionName, int]

    def folder(self, name: PartitionName) -> PartitionFolder:
        """The folder of a partition."""
        return PartitionFolder(self.storage.child(f"{name.topic}-{name.partition}"), name)


def read_log_dir(directory: str | os.PathLike[str]) -> tuple[LogDir, PartitionName | None]:
    """The log directory at `directory`, or around it: then the second item is the partition that it is.

    Raises InvalidTopicError if this is neither, CorruptMetadataError for a checkpoint file that is not whole.
    """
    path = os.path.realpath(Storage(directory).local_path(""))
    state = folder_state(os.path.basename(path))
    if state is not None:
        raise InvalidTopicError(f"this partition {_STATES[state]}: adopt another folder", directory=path)
    if not os.path.isdir(path):
        raise InvalidTopicError("there is no such directory to adopt", directory=path)
    name = parse_partition_folder(os.path.basename(path))
    if name is not None and any(entry.endswith(".log") for entry in os.listdir(path)):
        return _read(Storage(os.path.dirname(path))), name
    found = _read(Storage(path))
    if not found.partitions:
        text = "this is neither a broker's log directory nor a partition's folder: it holds no <topic>-<partition>"
        raise InvalidTopicError(text, directory=path)
    return found, None


def _read(storage: Storage) -> LogDir:
    folders = sorted(storage.list_folders())
    names = [name for folder in folders if (name := parse_partition_folder(folder)) and _is_log(storage, folder)]
    left_out = {folder: _STATES[state] for folder in folders if (state := folder_state(folder))}
    metadata = [name for name in names if name.topic == CLUSTER_METADATA]
    left_out |= {f"{topic}-{partition}": "holds the cluster's own metadata" for topic, partition in metadata}
    return LogDir(
        storage,
        any(file.name == CLEAN_SHUTDOWN_FILE for file in storage.list()),
        tuple(sorted(name for name in names if name not in metadata)),
        left_out,
        _offsets(storage, RECOVERY_POINTS),
        _offsets(storage, LOG_START_OFFSETS),
        _offsets(storage, FIRST_DIRTY_OFFSETS),
    )


def _is_log(storage: Storage, folder: str) -> bool:
    return any(".log" in file.name for file in storage.list(folder))


def _offsets(storage: Storage, name: str) -> Mapping[PartitionName, int]:
    with suppress(FileNotFoundError):
        return read_offsets(storage.read(name), file=storage.local_path(name))
    return {}
