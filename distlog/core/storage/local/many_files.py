"""Many small files read in one call: none of its threads waits for the interpreter lock meanwhile."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from distlog.core.buffers import byte_array
from distlog.core.kernels.file_read import read_files


def fill_whole(
    memory: npt.NDArray[np.uint8], ranges: Sequence[tuple[str, int, int]], sizes: Sequence[int], flags: int
) -> int:
    """Read `sizes` bytes of each (path, start, end) into `memory`, which has room, one behind the other.

    Returns how many ranges were read. It stops at the first file that cannot be opened with `flags`, or is too short;
    it does not say why.
    """
    names = byte_array(os.fsencode("\0".join([path for path, _, _ in ranges]) + "\0"))
    ends = np.flatnonzero(names == 0)
    if len(ends) > len(ranges):
        # the system would take a name with a zero byte for a shorter one
        return 0
    name_at = np.append(0, ends[:-1] + 1)
    starts = np.array([start for _, start, _ in ranges], np.int64)
    return int(read_files(names, name_at, starts, np.array(sizes, np.int64), memory, flags))
