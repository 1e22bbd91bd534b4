"""The files of a segment that is being appended to: its log and its indexes, written and cut together."""

from __future__ import annotations

import os
from typing import NamedTuple

from distlog.core.config import MAX_INT, TopicConfig
from distlog.core.errors import StorageError
from distlog.core.indexes.offset_index import ENTRY as OFFSET_ENTRY
from distlog.core.indexes.time_index import ENTRY as TIME_ENTRY
from distlog.core.indexes.transaction_index import ENTRY as TXN_ENTRY
from distlog.core.kernels.segment_fold import POSITION
from distlog.core.log.segment.active_file import ActiveFile, FileCalls
from distlog.core.log.segment.active_index import ActiveIndex
from distlog.core.segments.segment_state import Numbers
from distlog.core.segments.state_fold import OFFSET_INDEX, TIME_INDEX, TXN_INDEX
from distlog.core.storage.local.durable_files import failing_as, make_folders, removed_on_error, sync_folder


class SegmentFiles(NamedTuple):
    """The log and the three indexes. A preallocated log has `log_bytes` from the start, else that is 0."""

    stem: str
    log: ActiveFile
    offsets: ActiveIndex
    times: ActiveIndex
    transactions: ActiveIndex
    log_bytes: int

    @classmethod
    def of(
        cls, folder: str, stem: str, config: TopicConfig, calls: FileCalls = os, *, writable: bool = True
    ) -> SegmentFiles:
        """The files of that stem; none is opened yet."""
        path, size = os.path.join(folder, stem), config.segment_index_bytes
        return cls(
            stem,
            ActiveFile(f"{path}.log", calls, writable=writable),
            ActiveIndex(f"{path}.index", OFFSET_ENTRY, size, calls, writable=writable),
            ActiveIndex(f"{path}.timeindex", TIME_ENTRY, size, calls, writable=writable),
            ActiveIndex(f"{path}.txnindex", TXN_ENTRY, 0, calls, writable=writable),
            config.segment_size if config.preallocate else 0,
        )

    @property
    def indexes(self) -> tuple[tuple[int, ActiveIndex], ...]:
        """(the place of its size in the numbers, the index) of each index, in the order of `Folded.entries`."""
        return (OFFSET_INDEX, self.offsets), (TIME_INDEX, self.times), (TXN_INDEX, self.transactions)

    def create(self) -> None:
        """Make the log and the preallocated indexes, and sync their names; others are made with their first entry."""
        with failing_as("create", self.log.path):
            make_folders(os.path.dirname(self.log.path))
        self.log.create()
        with removed_on_error(self.log.path):
            if self.log_bytes:
                self.log.allocate(self.log_bytes)
            self.offsets.create()
            self.times.create()
        self.sync_names()

    def check_size(self) -> None:
        """Raise StorageError for a log that is larger than MAX_INT bytes."""
        if self.log.size() > MAX_INT:
            raise StorageError(f"a log file cannot have more than {MAX_INT} bytes", file=self.log.path)

    def write_entries(self, before: Numbers, entries: tuple[bytes, bytes, bytes]) -> None:
        """Append new entries to the indexes, at the sizes that `before` has."""
        for (place, index), data in zip(self.indexes, entries, strict=True):
            if data:
                index.file.write(data, int(before[place]))

    def has_entries(self, numbers: Numbers) -> bool:
        """Whether each index has a file that begins with the entries that `numbers` count."""
        self.let_go_of_deleted_indexes()
        return all(index.has_entries(*numbers[[place, place + 1]].tolist()) for place, index in self.indexes)

    def seems_to_have_entries(self, numbers: Numbers) -> bool:
        """Whether each index is as long as `numbers` say. Of the entries only those of transactions are read."""
        is_long = all(index.file.size() >= numbers[place] for place, index in self.indexes)
        return is_long and self.transactions.has_entries(*numbers[[TXN_INDEX, TXN_INDEX + 1]].tolist())

    def let_go_of_deleted_indexes(self) -> None:
        """Close indexes whose files somebody deleted, so that what is written next makes new ones."""
        for _, index in self.indexes:
            if index.file.is_open and not os.path.exists(index.file.path):
                index.file.close()

    def write_entries_again(self, numbers: Numbers) -> None:
        """Write the entries that `numbers` count again, as they are."""
        for place, index in self.indexes:
            if numbers[place]:
                index.file.write(index.file.read(0, int(numbers[place])), 0)

    def cut(self, numbers: Numbers) -> None:
        """Cut every file to its size in `numbers`; preallocated space behind that becomes zeros."""
        self.log.cut(int(numbers[POSITION]))
        self.log.cut(int(numbers[POSITION]), self.log_bytes)
        self.clear_behind_entries(numbers)

    def clear_behind_entries(self, numbers: Numbers) -> None:
        """Cut every index to its size in `numbers`; preallocated space behind that becomes zeros."""
        for place, index in self.indexes:
            index.clear(int(numbers[place]))

    def trim(self, numbers: Numbers) -> None:
        """Cut every file to its size in `numbers`, and give back preallocated space."""
        self.log.cut(int(numbers[POSITION]))
        for place, index in self.indexes:
            index.trim(int(numbers[place]))

    def open(self) -> None:
        """Open all files that there are."""
        self.log.open()
        for _, index in self.indexes:
            index.file.open()

    def sync(self) -> None:
        """Sync all files, the log first; returns when all that was written is on the device."""
        self.log.sync()
        self.sync_indexes()

    def sync_indexes(self) -> None:
        """Sync the indexes; returns when all that was written to them is on the device."""
        for _, index in self.indexes:
            index.file.sync()

    def sync_names(self) -> None:
        """Sync the folder; returns when the names of the files are durable."""
        with failing_as("sync", self.log.path):
            sync_folder(os.path.dirname(self.log.path))

    def close(self) -> None:
        """Close the files, which stay as they are."""
        self.log.close()
        for _, index in self.indexes:
            index.file.close()
