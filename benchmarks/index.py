"""Index lookups: the mapped big-endian file against arrays in memory, Python's `bisect` and numpy's `searchsorted`.

    python benchmarks/index.py

A row's `ratio` is how many times faster distlog is than its peer.
"""

from __future__ import annotations

import array
import bisect
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlog.core.format.indexes import OFFSET_ENTRY, OffsetIndex

ENTRIES = 1_310_720  # a full index of the default segment.index.bytes
ROUNDS = 15


def run(entries: int = ENTRIES, lookups: int = 20_000) -> list[dict[str, Any]]:
    """Look up random offsets, one by one, in an index of `entries`; one dict per case."""
    offsets = np.arange(1, entries + 1) * 40
    positions = np.arange(1, entries + 1) * 1000
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "00000000000000000000.index")
        stored = np.empty(entries, OFFSET_ENTRY)
        stored["relative_offset"], stored["position"] = offsets, positions
        stored.tofile(path)
        index = OffsetIndex(path, 0)
        return [*_lookups(index, offsets, positions, lookups), *_files(index, positions)]


def _lookups(
    index: OffsetIndex, offsets: np.ndarray[Any, Any], positions: np.ndarray[Any, Any], lookups: int
) -> list[dict[str, Any]]:
    random = np.random.default_rng(7)
    end = int(offsets[-1])
    keys, file_positions = array.array("q", offsets.tolist()), array.array("q", positions.tolist())
    rows = []
    for where, low in (("anywhere", 0), ("in the warm section", end - 1000 * 40)):
        targets = random.integers(low, end, lookups)
        calls = _Calls(targets, index, keys, file_positions)
        rows.append(_row(f"one offset, {where}", "us", 1e6 / lookups, calls.distlog, calls.peer, "bisect, in memory"))
    return rows


@dataclass(frozen=True, slots=True)
class _Calls:
    targets: np.ndarray[Any, Any]
    index: OffsetIndex
    keys: array.array[int]
    file_positions: array.array[int]

    def distlog(self) -> None:
        for target in self.targets.tolist():
            self.index.lookup(target)

    def peer(self) -> None:
        for target in self.targets.tolist():
            self.file_positions[bisect.bisect_right(self.keys, target) - 1]


def _files(index: OffsetIndex, positions: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    def open_and_look() -> None:
        OffsetIndex(index.path, 0).lookup(12_345_678)

    def load_and_look() -> None:
        loaded = np.fromfile(index.path, ">i4").reshape(-1, 2).astype(np.int64)
        np.searchsorted(loaded[:, 0], 12_345_678, "right")

    def columns() -> list[np.ndarray[Any, Any]]:
        stored = np.fromfile(index.path, OFFSET_ENTRY)
        return [stored[name].astype(np.int64) for name in ("relative_offset", "position")]

    log_bytes = int(positions[-1]) + 1
    return [
        _row("open and look up once", "us", 1e6, open_and_look, load_and_look, "numpy.fromfile, then searchsorted"),
        _row(
            "check the whole file",
            "ms",
            1e3,
            lambda: index.sanity_check(log_bytes),
            lambda: [(np.diff(column) > 0).all() and column[-1] < log_bytes for column in columns()],
            "numpy.diff of each column",
        ),
    ]


def _row(
    case: str, unit: str, scale: float, ours: Callable[[], Any], theirs: Callable[[], Any], name: str
) -> dict[str, Any]:
    distlog, peer = _seconds(ours) * scale, _seconds(theirs) * scale
    return {
        "benchmark": "index",
        "case": case,
        "distlog": round(distlog, 3),
        "peer": round(peer, 3),
        "peer_name": name,
        "unit": unit,
        "ratio": round(peer / distlog, 2),
    }


def _seconds(function: Callable[[], Any]) -> float:
    # The best of some rounds; the first one compiles and warms up.
    function()
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        function()
        rounds.append(time.perf_counter() - start)
    return min(rounds)


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row))
