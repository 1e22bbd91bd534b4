"""Where the bytes of a segment are: the one place that tells files of its own from parts of a bundle."""

from __future__ import annotations

from distlog.core import paths
from distlog.core.commits.format.segment_info import OWN_FILE, SegmentInfo
from distlog.core.segments.index_facts import INDEX_FIELDS, index_size
from distlog.core.storage.part import Part


def part_of(topic: str, segment: SegmentInfo, suffix: str = ".log") -> Part:
    """Where the log of a segment is, or its index of that suffix; the log of an active segment may have grown since.

    An index that was rebuilt is a file, even if its log is in a bundle.
    """
    if suffix == ".log":
        size, position = segment.log_bytes, segment.log_position
    else:
        size, position = index_size(segment, suffix), _index_position(segment, suffix)
    if position != OWN_FILE:
        return Part(paths.bundle_file(segment.stem), position, size, False)
    return Part(paths.segment_file(topic, segment.partition, segment.stem, suffix), 0, size, True)


def _index_position(segment: SegmentInfo, suffix: str) -> int:
    field = INDEX_FIELDS[suffix].position
    position: int = OWN_FILE if field is None else getattr(segment, field)
    return position
