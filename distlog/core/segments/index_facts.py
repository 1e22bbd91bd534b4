"""The metadata of a segment's index files: the size and the checksum of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from crc32c import crc32c

from distlog.core.commits.format.segment_info import UNKNOWN, SegmentInfo
from distlog.core.errors import CorruptIndexError
from distlog.core.storage.part import Part


class IndexFields(NamedTuple):
    """The fields of SegmentInfo that hold the size, the CRC-32C and the place in a bundle of one index.

    `position` is None for an index that is in no bundle.
    """

    size: str
    checksum: str
    position: str | None


#: By the suffix of the file.
INDEX_FIELDS = {
    ".index": IndexFields("offset_index_bytes", "offset_index_crc32c", "offset_index_position"),
    ".timeindex": IndexFields("time_index_bytes", "time_index_crc32c", "time_index_position"),
    ".txnindex": IndexFields("txn_index_bytes", "txn_index_crc32c", None),
}


def index_facts(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The SegmentInfo fields of these index files, which are given by suffix; no bytes mean no file."""
    sizes: dict[str, Any] = {INDEX_FIELDS[suffix].size: len(data) for suffix, data in files.items()}
    return sizes | {INDEX_FIELDS[suffix].checksum: crc32c(data) for suffix, data in files.items()}


def index_size(segment: SegmentInfo, suffix: str) -> int:
    """The size of an index file; 0 means that there is none."""
    size: int = getattr(segment, INDEX_FIELDS[suffix].size)
    return size


def index_checksum(segment: SegmentInfo, suffix: str) -> int:
    """The CRC-32C of an index file; UNKNOWN if an older library wrote its segment."""
    checksum: int = getattr(segment, INDEX_FIELDS[suffix].checksum)
    return checksum


def remedy(segment: SegmentInfo) -> str:
    """What to do about a bad index file; nothing rebuilds those of an active segment, which its writers mend."""
    return "the next append or roll makes it anew" if segment.is_active else "rebuild the index"


def checksum_error(segment: SegmentInfo, suffix: str, part: Part, found: int) -> CorruptIndexError | None:
    """The error if `part`, an index of the segment, has the wrong CRC-32C `found`; None if it is right."""
    expected = index_checksum(segment, suffix)
    if expected in (UNKNOWN, found):
        return None
    return CorruptIndexError(
        f"the checksum of the index file differs from its segment's metadata: {remedy(segment)}",
        file=part.name,
        partition=segment.partition,
        **({} if part.is_file else {"position": part.begin}),
    )
