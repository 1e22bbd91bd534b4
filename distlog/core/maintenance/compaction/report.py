"""The report of a compaction: what it did in each partition, and which partitions it could not clean."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from distlog.core.display.shown import Shown
from distlog.core.display.units import counted
from distlog.core.errors import CorruptionError, SnapshotTooOldError, UnsupportedVersionError

Result = TypeVar("Result")

#: Errors that come from a partition's own files, so they say nothing about other partitions.
OF_ITS_FILES = (CorruptionError, SnapshotTooOldError, UnsupportedVersionError)
_COUNTED = ("segments", "bytes", "records")


@dataclass(frozen=True, slots=True)
class Uncleanable:
    """A partition that cannot be cleaned, and why. It stays as it is, and the others are cleaned without it."""

    partition: int
    reason: str


def unless_uncleanable(partition: int, work: Callable[[], Result]) -> Result | Uncleanable:
    """The result of `work`, or what is wrong with the partition's files. Raises all other errors."""
    try:
        return work()
    except OF_ITS_FILES as error:
        return Uncleanable(partition, str(error))


class _OfPartition(Protocol):
    @property
    def partition(self) -> int: ...


Item = TypeVar("Item", bound=_OfPartition)


def done_or_reason(work: Callable[[Item], Result], item: Item) -> Result | Uncleanable:
    """The result of `work(item)`, or what is wrong with the files of the item's partition. Raises all other errors.

    The reason is a value so that it can come back from a task. An exception would end the job for every partition.
    """
    return unless_uncleanable(item.partition, lambda: work(item))


@dataclass(frozen=True, slots=True)
class PartitionCompaction:
    """One partition below `end_offset`, before and after the compaction; a dry run has the same numbers twice.

    `unkeyed_records` is the number of records dropped because they have no key. `skipped_groups` is the number of
    groups of segments that another process changed meanwhile; the next compaction takes them. `error` says why the
    partition could not be cleaned, or not to the end.
    """

    partition: int
    end_offset: int
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    rounds: int
    unkeyed_records: int
    skipped_groups: int
    error: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CompactionReport(Shown):
    """What compaction did in each partition, or would look at with `dry_run`."""

    partitions: tuple[PartitionCompaction, ...]
    dry_run: bool

    @property
    def ok(self) -> bool:
        """Whether every partition that was due is clean now."""
        return not self._failed()

    def __str__(self) -> str:
        sums, failed = self._sums(), self._failed()
        verb = "would compact" if self.dry_run else "compacted"
        done = len(self.partitions) - len(failed)
        changes = (f"{name} {sums[f'{name}_before']:,} to {sums[f'{name}_after']:,}" for name in _COUNTED)
        text = f"{verb} {counted(done, 'partition')}: {', '.join(changes)}"
        return "; ".join([text, *(f"cannot clean partition {one.partition}: {one.error}" for one in failed)])

    def to_table(self) -> pa.Table:
        """A row per partition that was due."""
        names = [field.name for field in dataclasses.fields(PartitionCompaction)]
        schema = pa.schema([(name, pa.string() if name == "error" else pa.int64()) for name in names])
        return pa.Table.from_pylist(self._rows(), schema)

    def to_dict(self) -> dict[str, Any]:
        """The totals, and the rows of the table."""
        return {"ok": self.ok, "dry_run": self.dry_run, **self._sums(), "partitions": self._rows()}

    def _failed(self) -> list[PartitionCompaction]:
        return [one for one in self.partitions if one.error is not None]

    def _rows(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(one) for one in self.partitions]

    def _sums(self) -> dict[str, int]:
        names = (f"{name}_{when}" for name in _COUNTED for when in ("before", "after"))
        return {name: sum(getattr(one, name) for one in self.partitions) for name in names}
