"""Close ranges of one file are fetched in one request: a gap of 64 KiB costs less than a round trip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_GAP_BYTES = 64 * 1024
MAX_MERGED_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class RangeRequest:
    """One request: bytes `start` to `end` of `path`."""

    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MergedRanges:
    """The requests to send, and for each wanted range the request that covers it."""

    ranges: Sequence[tuple[str, int, int]]
    requests: list[RangeRequest]
    covered_by: list[int]

    def cut(self, replies: Sequence[memoryview]) -> list[memoryview]:
        """The bytes of each wanted range, without a copy; `replies` are in the order of `requests`."""
        found = []
        for (_, start, end), number in zip(self.ranges, self.covered_by, strict=True):
            shift = self.requests[number].start
            found.append(replies[number][start - shift : max(end, start) - shift])
        return found


def merge_ranges(ranges: Sequence[tuple[str, int, int]]) -> MergedRanges:
    """Merge (path, start, end) that are at most MAX_GAP_BYTES apart, up to MAX_MERGED_BYTES to keep them parallel."""
    requests: list[RangeRequest] = []
    covered_by = [0] * len(ranges)
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        path, start, end = ranges[number]
        if requests and _fits(requests[-1], path, start, end):
            requests[-1].end = max(requests[-1].end, end)
        else:
            requests.append(RangeRequest(path, start, end))
        covered_by[number] = len(requests) - 1
    return MergedRanges(ranges, requests, covered_by)


def _fits(last: RangeRequest, path: str, start: int, end: int) -> bool:
    close = path == last.path and start - last.end <= MAX_GAP_BYTES
    return close and (end <= last.end or end - last.start <= MAX_MERGED_BYTES)
