"""The files of segments in a broker's log directory: they are named by base offsets, and written many at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.kafka_directory.directory_names import file_name
from distlog.core.storage.backend import byte_view
from distlog.core.storage.local.durable_files import failing_as
from distlog.core.storage.storage import Storage
from distlog.core.storage.task import Task, begin

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")
#: A broker that finds no file of these takes it for the loss of one, and reads the whole log.
_ALWAYS = (".log", ".index", ".timeindex")
#: So many bytes, or so many files, are held at most before they are written.
_HELD_BYTES, _HELD_FILES = 16 << 20, 64


class ExportedFiles:
    """The files that are to be written into a partition's `folder`: small ones are held until they are many.

    In a `with` block: while the next ones are made, a thread writes those that are many. Measured with 490 segments
    of 1 MB, this gives 320 MB/s, as `cp` and a sync of the same files do; without the thread it was two thirds of
    that. Behind the block all are written; after an error none is being written any more.
    """

    def __init__(self, folder: Storage) -> None:
        self.folder = folder
        self._files: dict[str, Buffer] = {}
        self._times: dict[int, int] = {}
        self._held = 0
        self._writing: Task[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._settle()
                _write(self.folder, *self._take())
        finally:
            if self._writing is not None:
                # who comes next may write the same files
                with suppress(Exception):
                    self._writing.wait()

    def add(self, segment: SegmentInfo, files: Mapping[str, Buffer]) -> None:
        """Write a segment's files, by suffix, now or later; those that it has no more are deleted then."""
        self._files |= {file_name(segment.base_offset, suffix): data for suffix, data in files.items()}
        self._times[segment.base_offset] = segment.created_ms
        self._held += sum(byte_view(data).nbytes for data in files.values())
        if self._held >= _HELD_BYTES or len(self._files) >= _HELD_FILES:
            self._settle()
            self._writing = begin(partial(_write, self.folder, *self._take()))

    def _settle(self) -> None:
        """Wait for what is being written. Raises its StorageError."""
        if self._writing is not None:
            self._writing.wait()

    def _take(self) -> tuple[dict[str, Buffer], dict[int, int]]:
        """The files that are held, and the times of their segments; they are held no more."""
        taken = self._files, self._times
        self._files, self._times, self._held = {}, {}, 0
        return taken


def _write(folder: Storage, files: Mapping[str, Buffer], times: Mapping[int, int]) -> None:
    """Write the files of segments, which have these times by their base offsets."""
    folder.put_many(files)
    transactions = [file_name(base_offset, ".txnindex") for base_offset in times]
    folder.delete([name for name in transactions if name not in files])
    for base_offset, time_ms in times.items():
        _set_times(folder, base_offset, time_ms)


def write_empty(folder: Storage, base_offset: int) -> None:
    """Write the files of a segment without a batch."""
    folder.put_many({file_name(base_offset, suffix): b"" for suffix in _ALWAYS})


def delete_segment(folder: Storage, base_offset: int) -> None:
    """Delete the files of a segment, if there are any."""
    folder.delete([file_name(base_offset, suffix) for suffix in (*SUFFIXES, ".snapshot")])


def _set_times(folder: Storage, base_offset: int, time_ms: int) -> None:
    """Retention of a broker counts from the file's time if records have no time."""
    for suffix in _ALWAYS:
        path = folder.local_path(file_name(base_offset, suffix))
        with failing_as("set the time of", path):
            os.utime(path, (time_ms / 1000, time_ms / 1000))
