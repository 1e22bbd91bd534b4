"""One partition's folder in a broker's log directory, as it is read for adoption."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from functools import cached_property

from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptionError, StorageError
from distlog.core.kafka_directory.checkpoint_files import Epochs, joined_epochs, read_epochs, read_topic_id
from distlog.core.kafka_directory.directory_names import PARTITION_METADATA, PartitionName, parse_file
from distlog.core.kafka_directory.loaded_files import LoadedFiles, loaded_files
from distlog.core.kafka_directory.log_walk import LogWalk
from distlog.core.paths import LEADER_EPOCHS
from distlog.core.storage.storage import Storage
from distlog.core.transactions.producer_snapshot import read_producer_snapshot
from distlog.core.transactions.producer_states import ProducerStates


class PartitionFolder:
    """The files of partition `name` in `storage`, a local folder. Nothing is changed."""

    def __init__(self, storage: Storage, name: PartitionName) -> None:
        self._storage, self.name = storage, name

    @cached_property
    def loaded(self) -> LoadedFiles:
        """The files that count. Raises StorageError for a pipe or a device of such a name, which could block."""
        names = [file.name for file in self._storage.list()]
        for name in filter(parse_file, names):
            if not os.path.isfile(self.path(name)):
                raise StorageError("this is not a file: take it away, and adopt again", file=self.path(name))
        return loaded_files(names, self._next_offset)

    def path(self, name: str) -> str:
        """The path of a file."""
        return self._storage.local_path(name)

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        return self._storage.read(name)

    def map(self, name: str) -> memoryview:
        """The content of a log."""
        return self._storage.map(name)

    def _next_offset(self, name: str) -> int:
        """The offset behind the last batch of a log; its base offset if it has none."""
        walk = LogWalk(self.map(name), checked=False, file=self.path(name))
        end = int(name[:20])
        for found in walk:
            end = int(found.rows["base_offset"][-1] + found.rows["last_offset_delta"][-1]) + 1
        return end

    def topic_id(self) -> uuid.UUID | None:
        """The topic's id, if a `partition.metadata` has it."""
        try:
            return read_topic_id(self.read(PARTITION_METADATA), file=self.path(PARTITION_METADATA))
        except FileNotFoundError:
            return None

    def leader_epochs(self, log_start_offset: int, log_end_offset: int) -> Epochs:
        """The leader epochs between these offsets, by the checkpoint; none without the file."""
        try:
            found = read_epochs(self.read(LEADER_EPOCHS), file=self.path(LEADER_EPOCHS))
        except FileNotFoundError:
            return []
        return joined_epochs([[each for each in found if each[1] < log_end_offset]], log_start_offset)

    def producers(self, end_offset: int = MAX_LONG) -> ProducerStates:
        """The producers by the newest whole snapshot that is not behind `end_offset`; none without one."""
        for offset, name in sorted(self.loaded.snapshots.items(), reverse=True):
            if offset <= end_offset:
                with suppress(CorruptionError):
                    entries = read_producer_snapshot(self.read(name), file=self.path(name))
                    return ProducerStates.of_snapshot(entries, offset)
        return ProducerStates()
