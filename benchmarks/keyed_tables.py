"""Input for the benchmarks of compaction: records with repeated keys of 16 bytes, and a folder for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

VALUE_BYTES = 100
_PART = 500_000
_POWERS = 10 ** np.arange(11, -1, -1)


def memory_folder() -> str | None:
    """A folder in memory, if the system has one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def tables(records: int, duplicates: float) -> Iterator[pa.Table]:
    """Rows in random order of keys; each key comes 1 / (1 - duplicates) times, on average or exactly."""
    random = np.random.default_rng(7)
    keys = max(1, round(records * (1 - duplicates)))
    numbers = random.permutation(np.arange(records) % keys)
    for first in range(0, records, _PART):
        part = numbers[first : first + _PART]
        values = random.integers(0, 256, len(part) * VALUE_BYTES, np.uint8)
        yield pa.table(
            {
                "key": _fixed(_keys(part), 16, len(part)),
                "value": _fixed(values, VALUE_BYTES, len(part)),
                "timestamp": pa.array(np.full(len(part), 1_700_000_000_000)),
            }
        )


def _keys(numbers: np.ndarray) -> np.ndarray:
    """Keys like key-000000000042, back to back."""
    keys = np.empty((len(numbers), 16), np.uint8)
    keys[:, :4] = np.frombuffer(b"key-", np.uint8)
    keys[:, 4:] = numbers[:, None] // _POWERS % 10 + ord("0")
    return keys.ravel()


def _fixed(data: np.ndarray, width: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(data)]).cast(pa.binary())
