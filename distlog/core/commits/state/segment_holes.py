"""The offsets that a commit leaves free among a partition's segments, and whether what it adds fits there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from distlog.core.commits.format.segment_info import SegmentInfo

Longs = npt.NDArray[np.int64]


def holes(
    starts: Longs, ends: Longs, gone: npt.NDArray[np.bool_], front: tuple[int, int] | None
) -> tuple[Longs, Longs]:
    """The start and end offsets of each run of adjacent segments that is `gone`.

    `starts` and `ends` are those of the segments. `front` are offsets ahead of the first segment that are free too,
    as far as no segment has them.
    """
    if front is not None:
        end = min([front[1], *starts[:1].tolist()])
        starts, ends = np.concatenate([[front[0]], starts]), np.concatenate([[end], ends])
        gone = np.concatenate([[True], gone])
    edges = np.flatnonzero(np.diff(np.concatenate([[False], gone, [False]]).astype(np.int8)))
    return starts[edges[0::2]], ends[edges[1::2] - 1]


def check_fit(segments: Sequence[SegmentInfo], starts: Longs, ends: Longs) -> None:
    """Raise ValueError unless each of `segments`, by base offset, lies in one of the holes, behind the one before."""
    end = 0
    for segment in segments:
        hole = int(np.searchsorted(starts, segment.base_offset, side="right")) - 1
        if hole < 0 or segment.next_offset > ends[hole] or segment.base_offset < end:
            raise ValueError(f"segment {segment.stem} fits in no hole that this commit leaves")
        end = segment.next_offset
