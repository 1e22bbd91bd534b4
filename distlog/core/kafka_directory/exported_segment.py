"""Writes one segment as a broker's files: at its own offsets, and with the times that the commit gave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core import paths
from distlog.core.batches.base_offsets import header_offsets, write_base_offsets
from distlog.core.buffers import new_pages
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.errors import CorruptIndexError
from distlog.core.indexes.transaction_index import ENTRY
from distlog.core.kafka_directory.directory_names import file_name
from distlog.core.kafka_directory.exported_files import ExportedFiles
from distlog.core.log.segment.segment_recovery import new_epochs
from distlog.core.reading.chunks.chunk import Chunk
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.whole_log import whole_log
from distlog.core.segments.index_facts import checksum_error
from distlog.core.segments.log_description import LogDescription
from distlog.core.storage.local.durable_files import failing_as
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import new_id
from distlog.core.transactions.producer_states import ProducerStates

if TYPE_CHECKING:
    from typing_extensions import Buffer


#: Logs up to this size are written together with other files.
_SMALL_BYTES = 4 << 20


class WrittenSegment(NamedTuple):
    """What the batches of a segment say: the offset behind the last one, and where leader epochs begin."""

    end_offset: int
    epochs: tuple[tuple[int, int], ...]


def export_segment(
    reader: SegmentReader, segment: SegmentInfo, files: ExportedFiles, producers: ProducerStates, interval_bytes: int
) -> WrittenSegment:
    """Write the segment's files, instead of those of its base offset; `producers` see its batches.

    Every checksum is compared. Raises CorruptRecordError, and CorruptIndexError for a damaged transaction index.
    """
    log = LogDescription(segment.base_offset, interval_bytes=interval_bytes)
    epochs = list[tuple[int, int]]()

    def pieces() -> Iterator[memoryview]:
        position = 0
        for chunk in whole_log(reader, segment):
            data, rows = _moved(chunk.timed(), segment.shift, position)
            position += len(data)
            yield data
            log.add(data, rows)
            producers.see(data, rows)
            epochs.extend(new_epochs(rows, epochs[-1][0] if epochs else -1))

    found: dict[str, Buffer] = {}
    if segment.log_bytes <= _SMALL_BYTES:
        held = list(pieces())
        found[".log"] = held[0] if len(held) == 1 else b"".join(held)
    else:
        _write_log(files.folder, segment.base_offset, pieces())
    files.add(segment, found | _indexes(reader, segment, log.finish()))
    return WrittenSegment(log.next_offset, tuple(epochs))


def _write_log(folder: Storage, base_offset: int, pieces: Iterator[memoryview]) -> None:
    temporary = paths.temporary_file(new_id())
    with folder.open_write(temporary) as writer:
        for data in pieces:
            writer.write_behind(data)
    _rename(folder, temporary, file_name(base_offset, ".log"))


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
