"""The file and position that the bytes of batches came from, for error messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlog.core.errors import CorruptRecordError


@dataclass(frozen=True, slots=True)
class Source:
    """The file of a buffer of batches, and the position in that file of the buffer's first byte.

    Both may be given per batch, for a buffer that combines several files.
    """

    file: str | Sequence[str] = ""
    file_position: int | np.ndarray = 0

    def of_rows(self, rows: np.ndarray) -> Source:
        """The source of the batches `rows`, which are numbered from 0 again."""
        file = self.file if isinstance(self.file, str) else [self.file[row] for row in rows]
        return Source(file, of_rows(self.file_position, rows))

    def corrupt(self, message: str, row: int, batch: Any, **details: Any) -> CorruptRecordError:
        """The error for batch number `row`; `batch` is its BATCH row."""
        file = self.file if isinstance(self.file, str) else self.file[row]
        position = int(of_rows(self.file_position, row)) + int(batch["position"])
        offset = int(batch["base_offset"])
        return CorruptRecordError(message, file=file or None, position=position, offset=offset, **details)


def of_rows(value: Any, rows: Any) -> Any:
    """`value`, either one for all batches or an array of one per batch, for the batches `rows`."""
    return value[rows] if isinstance(value, np.ndarray) else value
