"""One partition's folder in a broker's log directory, as it is read for adoption."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property

from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptionError, StorageError
from distlog.core.kafka_directory.checkpoint_files import Epochs, joined_epochs, read_epochs, read_topic_id
from distlog.core.kafka_directory.directory_names import PARTITION_METADATA, PartitionName, parse_file
from distlog.core.kafka_directory.loaded_files import LoadedFiles, loaded_files
from distlog.core.kafka_directory.log_walk import LogWalk
from distlog.core.kafka_directory.source_log import SourceLog, open_headers, open_log
from distlog.core.paths import LEADER_EPOCHS
from distlog.core.storage.storage import FileInfo, Storage
from distlog.core.transactions.producer_snapshot import read_producer_snapshot
from distlog.core.transactions.producer_states import ProducerStates


class PartitionFolder:
    """The files of partition `name` in `storage`, as they were listed in `files`. Nothing is changed."""

    def __init__(self, storage: Storage, name: PartitionName, files: Iterable[FileInfo]) -> None:
        self._storage, self.name = storage, name
        self._files = {file.name: file for file in files}

    @cached_property
    def loaded(self) -> LoadedFiles:
        """The files that count. Raises StorageError for a pipe or a device of such a name, which could block."""
        for name in filter(parse_file, self._files if self._storage.is_local else ()):
            if not os.path.isfile(self.path(name)):
                raise StorageError("this is not a file: take it away, and adopt again", file=self.path(name))
        return loaded_files(self._files, self._next_offset)

    def path(self, name: str) -> str:
        """The path or URL of a file."""
        return self._storage.local_path(name) if self._storage.is_local else f"{self._storage.url}/{name}"

    def read(self, name: str) -> bytes:
        """The content of a small file. Raises FileNotFoundError, also for a file that was not listed."""
        if name not in self._files:
            raise FileNotFoundError(self.path(name))
        return self._storage.read(name)

    def log(self, name: str) -> SourceLog:
        """The content of a large file."""
        return open_log(self._storage, name, self.size(name))

    def headers(self, name: str, offset_index: bytes) -> SourceLog:
        """The content of a log, of which only headers will be looked at; `offset_index` may be anything."""
        return open_headers(self._storage, name, self.size(name), offset_index)

    def size(self, name: str) -> int:
        """The size of a file."""
        return self._files[name].size

    def modified_ms(self, name: str) -> int:
        """When a file was last written. Raises StorageError if the storage does not say."""
        found = self._files[name].modified_ms
        if found == MAX_LONG:
            text = "the storage does not say when files were written, and retention may need it: copy them to a disk"
            raise StorageError(text, file=self.path(name))
        return found

    def _next_offset(self, name: str) -> int:
        """The offset behind the last batch of a log; its base offset if it has none."""
        walk = LogWalk(self.log(name), checked=False, file=self.path(name))
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
