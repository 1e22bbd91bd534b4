"""Writes one segment as a broker's files: at its own offsets, and with the times that the commit gave."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core import paths
from distlog.core.batches.base_offsets import header_offsets, write_base_offsets
from distlog.core.buffers import new_pages
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.errors import CorruptIndexError
from distlog.core.indexes.transaction_index import ENTRY
from distlog.core.kafka_directory.directory_names import file_name
from distlog.core.log.segment_recovery import new_epochs
from distlog.core.reading.chunk import Chunk
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.reading.whole_log import whole_log
from distlog.core.segments.index_facts import checksum_error
from distlog.core.segments.log_description import LogDescription
from distlog.core.storage.local.durable_files import failing_as
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import new_id
from distlog.core.transactions.producer_states import ProducerStates

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")
#: A broker that finds no file of these takes it for the loss of one, and reads the whole log.
_ALWAYS = (".log", ".index", ".timeindex")


class WrittenSegment(NamedTuple):
    """What the batches of a segment say: the offset behind the last one, and where leader epochs begin."""

    end_offset: int
    epochs: tuple[tuple[int, int], ...]


def export_segment(
    reader: SegmentReader, segment: SegmentInfo, folder: Storage, producers: ProducerStates, interval_bytes: int
) -> WrittenSegment:
    """Write the segment's files into `folder`, and replace those of its base offset; `producers` see its batches.

    Every checksum is compared. Raises CorruptRecordError, and CorruptIndexError for a damaged transaction index.
    """
    log = LogDescription(segment.base_offset, interval_bytes=interval_bytes)
    epochs = list[tuple[int, int]]()
    temporary = paths.temporary_file(new_id())
    with folder.open_write(temporary) as writer:
        for chunk in whole_log(reader, segment):
            data, rows = _moved(chunk.timed(), segment.shift, writer.written)
            writer.write_behind(data)
            log.add(data, rows)
            producers.see(data, rows)
            epochs += new_epochs(rows, epochs[-1][0] if epochs else -1)
    files = _indexes(reader, segment, log.finish())
    folder.put_many({file_name(segment.base_offset, suffix): data for suffix, data in files.items()})
    _rename(folder, temporary, file_name(segment.base_offset, ".log"))
    if ".txnindex" not in files:
        folder.delete([file_name(segment.base_offset, ".txnindex")])
    _set_times(folder, segment.base_offset, segment.created_ms)
    return WrittenSegment(log.next_offset, tuple(epochs))


def write_empty(folder: Storage, base_offset: int) -> None:
    """Write the files of a segment without a batch."""
    folder.put_many({file_name(base_offset, suffix): b"" for suffix in _ALWAYS})


def delete_segment(folder: Storage, base_offset: int) -> None:
    """Delete the files of a segment, if there are any."""
    folder.delete([file_name(base_offset, suffix) for suffix in (*SUFFIXES, ".snapshot")])


def _moved(chunk: Chunk, shift: int, position: int) -> tuple[memoryview, npt.NDArray[Any]]:
    """The bytes and rows of the chunk, whose offsets are higher by `shift`, to be written at `position`."""
    if not shift:
        return chunk.data, chunk.batches
    data, rows = new_pages(len(chunk.data), position), chunk.batches.copy()
    data[:] = chunk.data
    rows["base_offset"] += shift
    write_base_offsets(data, rows["position"], header_offsets(chunk.batches, rows["base_offset"].astype(np.int64)))
    return data.data, rows


def _indexes(reader: SegmentReader, segment: SegmentInfo, made: dict[str, bytes]) -> dict[str, bytes]:
    """The index files: those of the segment if they serve, else those that were `made` from its log."""
    files = dict(made)
    if not segment.is_active and segment.append_time_ms < 0:
        for suffix in made:
            stored = _stored(reader, segment, suffix)
            files[suffix] = made[suffix] if isinstance(stored, CorruptIndexError) else stored or made[suffix]
    transactions = _stored(reader, segment, ".txnindex")
    if isinstance(transactions, CorruptIndexError):
        raise transactions
    if transactions:
        entries = np.frombuffer(transactions, ENTRY).copy()
        for name in ("first_offset", "last_offset", "last_stable_offset"):
            entries[name] += segment.shift
        files[".txnindex"] = entries.tobytes()
    return files


def _stored(reader: SegmentReader, segment: SegmentInfo, suffix: str) -> bytes | CorruptIndexError:
    """The content of an index file, or what is wrong with it."""
    part = reader.part(segment, suffix)
    try:
        data = reader.storage.read(*part.whole) if part.size else b""
    except FileNotFoundError:
        return CorruptIndexError("the index file is gone: rebuild the indexes", file=part.name)
    if len(data) != part.size:
        return CorruptIndexError("the index file is too short: rebuild the indexes", file=part.name)
    return checksum_error(segment, suffix, part, crc32c(data)) or data


def _rename(folder: Storage, before: str, after: str) -> None:
    path = folder.local_path(after)
    with failing_as("replace", path):
        os.replace(folder.local_path(before), path)


def _set_times(folder: Storage, base_offset: int, time_ms: int) -> None:
    """Retention of a broker counts from the file's time if records have no time."""
    for suffix in _ALWAYS:
        path = folder.local_path(file_name(base_offset, suffix))
        with failing_as("set the time of", path):
            os.utime(path, (time_ms / 1000, time_ms / 1000))
