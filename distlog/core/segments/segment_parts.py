"""The places of the bytes of a segment, and the checks that they are the segment's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from crc32c import crc32c

from distlog.core import paths
from distlog.core.commits.segment_info import OWN_FILE, UNKNOWN, SegmentInfo
from distlog.core.errors import CorruptIndexError, CorruptRecordError
from distlog.core.format.record_batch import CRC_AT, CRC_START
from distlog.core.storage.backend import Part


class IndexFields(NamedTuple):
    """The fields of SegmentInfo with the size, the CRC-32C and the place in a bundle, if any, of one index."""

    size: str
    checksum: str
    position: str | None


#: By the suffix of the file.
INDEX_FIELDS = {
    ".index": IndexFields("offset_index_bytes", "offset_index_crc32c", "offset_index_position"),
    ".timeindex": IndexFields("time_index_bytes", "time_index_crc32c", "time_index_position"),
    ".txnindex": IndexFields("txn_index_bytes", "txn_index_crc32c", None),
}


def index_fields_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the SegmentInfo fields of index files, by suffix; empty bytes mean no file."""
    sizes: dict[str, Any] = {INDEX_FIELDS[suffix].size: len(data) for suffix, data in files.items()}
    return sizes | {INDEX_FIELDS[suffix].checksum: crc32c(data) for suffix, data in files.items()}


def index_size(segment: SegmentInfo, suffix: str) -> int:
    """The size of an index file; 0 means that there is none."""
    size: int = getattr(segment, INDEX_FIELDS[suffix].size)
    return size


def index_checksum(segment: SegmentInfo, suffix: str) -> int:
    """The CRC-32C of an index file; UNKNOWN if its commit does not have it."""
    checksum: int = getattr(segment, INDEX_FIELDS[suffix].checksum)
    return checksum


def remedy(segment: SegmentInfo) -> str:
    """Return the remedy for a bad index file; writers of an active segment rebuild its indexes themselves."""
    return "the next append or roll rebuilds it" if segment.is_active else "rebuild the index"


def checksum_error(segment: SegmentInfo, suffix: str, part: Part, checksum: int) -> CorruptIndexError | None:
    """The error if `part`, an index of the segment, has the wrong CRC-32C `checksum`; None if it is right."""
    expected = index_checksum(segment, suffix)
    if expected in (UNKNOWN, checksum):
        return None
    return CorruptIndexError(
        f"the checksum of the index file differs from its segment's metadata: {remedy(segment)}",
        file=part.name,
        partition=segment.partition,
        **({} if part.is_file else {"position": part.begin}),
    )


def part_of(topic: str, segment: SegmentInfo, suffix: str = ".log") -> Part:
    """The place of a segment's log (an active one may have grown), or of its index, a file once it was rebuilt."""
    if suffix == ".log":
        size, position = segment.log_bytes, segment.log_position
    else:
        size, field = index_size(segment, suffix), INDEX_FIELDS[suffix].position
        position = OWN_FILE if field is None else getattr(segment, field)
    if position != OWN_FILE:
        return Part(paths.bundle_file(segment.stem), position, size, False)
    return Part(paths.segment_file(topic, segment.partition, segment.stem, suffix), 0, size, True)


# Segments of one shape have their batches at the same places and offsets. Only the checksum fields of the first and
# the last batch distinguish their logs; they are in the metadata. A read that begins after the first checks that.

#: The beginning of a log, up to where the checksum of its first batch ends.
HEAD_BYTES = CRC_START
#: How many checked logs are remembered.
REMEMBERED = 4096

_MAGIC_AT, _LEGACY_CRC_AT = 16, 12


class IdentifiedLogs:
    """The logs of a topic that were checked to belong to their segments; for many threads, and picklable."""

    def __init__(self) -> None:
        self._keys_seen: set[tuple[int, str, int]] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return IdentifiedLogs, ()

    def is_identified(self, segment: SegmentInfo) -> bool:
        """True if the log was checked, or the metadata has no checksum of its beginning."""
        return segment.first_batch_crc == UNKNOWN or _key(segment) in self._keys_seen

    def add(self, segment: SegmentInfo) -> None:
        if len(self._keys_seen) >= REMEMBERED:
            self._keys_seen = set()
        self._keys_seen.add(_key(segment))

    def forget(self, segment: SegmentInfo) -> None:
        self._keys_seen.discard(_key(segment))

    def check_head(self, segment: SegmentInfo, log: Part, head: memoryview) -> None:
        """Check the first HEAD_BYTES of the segment's `log`. Raises CorruptRecordError if they are another log's."""
        crc_position = CRC_AT if head[_MAGIC_AT] >= 2 else _LEGACY_CRC_AT
        if int.from_bytes(head[crc_position : crc_position + 4], "big") != segment.first_batch_crc:
            self._keys_seen.discard(_key(segment))
            raise another_log(segment, log.name, log.begin)
        self.add(segment)


def _key(segment: SegmentInfo) -> tuple[int, str, int]:
    return segment.partition, segment.stem, segment.first_batch_crc


def another_log(segment: SegmentInfo, file: str, position: int) -> CorruptRecordError:
    return CorruptRecordError(
        "this is the log of another segment, or it is damaged: verify, then restore it from a copy",
        file=file,
        position=position,
        partition=segment.partition,
    )
