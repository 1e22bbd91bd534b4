"""Anomalies: what can be wrong with a topic, in the words of Redpanda's scrubber and of kafka-dump-log."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from distlog.core.errors import DistlogError

Word = Literal[
    # the metadata names a file that is not there
    "missing_segment",
    "missing_index",
    "missing_commit",
    # batches or segments leave out offsets that they should hold, or hold some offsets twice
    "offset_gap",
    "offset_overlap",
    # the offset deltas of a batch's records do not increase, or exceed the batch's last one
    "non_monotonical_delta",
    # the largest timestamp in the header of a batch is not that of its records
    "timestamp_mismatch",
    # the bytes are not those that were written: a bad batch header or checksum, a bad record, or entries that no
    # index can have
    "corrupt_batch",
    "corrupt_record",
    "corrupt_index",
    "corrupt_commit",
    # two things that must agree do not: an index and its log, metadata and files, a checkpoint and the commits
    "index_mismatch",
    "time_index_mismatch",
    "metadata_mismatch",
    "checkpoint_mismatch",
]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong, and where. `position` is a byte of `file`; `offset` is the one that readers see."""

    word: Word
    message: str
    file: str | None = None
    partition: int | None = None
    position: int | None = None
    offset: int | None = None

    @classmethod
    def of(cls, word: Word, error: DistlogError, shift: int = 0) -> Anomaly:
        """The anomaly that `error` describes; `shift` is added to its offset."""
        details = error.details
        offset = details.get("offset")
        return cls(
            word,
            error.message,
            details.get("file"),
            details.get("partition"),
            details.get("position"),
            None if offset is None else offset + shift,
        )

    def to_dict(self) -> dict[str, str | int | None]:
        """Every field by its name."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        places = ((name, getattr(self, name)) for name in ("file", "partition", "position", "offset"))
        facts = " ".join(f"{name}={value}" for name, value in places if value is not None)
        return f"{self.word}: {self.message}" + (f" ({facts})" if facts else "")
