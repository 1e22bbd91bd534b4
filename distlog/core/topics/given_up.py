"""What an error of a writer says of the records that were to be committed: how many, and of which partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from distlog.core.errors import CommitStateUnknownError, DistlogError
from distlog.core.topics.partitioner import Partitioner
from distlog.core.topics.rows import Row

_NAMED_PARTITIONS = 20


def tell_given_up(error: BaseException, rows: Sequence[Row], partitions: int) -> None:
    """Add to `error` how many `rows` of which of the topic's `partitions` it is about.

    They are lost, or after CommitStateUnknownError perhaps. Ours tell it in `details`, others in a note.
    """
    what = "records_in_doubt" if isinstance(error, CommitStateUnknownError) else "records_given_up"
    facts: dict[str, object] = {what: len(rows)}
    with suppress(MemoryError):
        facts["of_partitions"] = _described(_counted(rows, partitions))
    if isinstance(error, DistlogError):
        error.details.update(facts)
    elif hasattr(error, "add_note"):
        error.add_note(" ".join(f"{name}={value}" for name, value in facts.items()))


def _counted(rows: Sequence[Row], partitions: int) -> Counter[int | None]:
    """How many rows each partition would have got; None stands for that of records without a key, not chosen yet."""
    counts: Counter[int | None] = Counter(row.partition for row in rows if row.partition is not None)
    keys = [row.key for row in rows if row.partition is None and row.key is not None]
    counts.update(_of_keys(keys, partitions))
    left = len(rows) - sum(counts.values())
    if left:
        counts[0 if partitions == 1 else None] += left
    return counts


def _of_keys(keys: list[bytes], partitions: int) -> dict[int, int]:
    column = pa.array(keys, pa.large_binary())
    batch = pa.record_batch({"key": column, "value": pa.nulls(len(keys), pa.binary())})
    return {partition: len(rows) for partition, rows in Partitioner(partitions, 0).split(batch)}


def _described(counts: Counter[int | None]) -> str:
    known = sorted(partition for partition in counts if partition is not None)
    parts = [f"{partition}: {counts[partition]}" for partition in known[:_NAMED_PARTITIONS]]
    if more := known[_NAMED_PARTITIONS:]:
        parts.append(f"{len(more)} more: {sum(counts[partition] for partition in more)}")
    if counts[None]:
        parts.append(f"not chosen yet: {counts[None]}")
    return "{" + ", ".join(parts) + "}"
