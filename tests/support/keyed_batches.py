"""Batches of records with keys."""

from __future__ import annotations

from compacting import NOW, CompactedTopic
from raw_batches import batch, record


def keyed(base: int, *keys: int | None, **options: int) -> bytes:
    """A batch with a record per key, from offset `base` on; its value says the offset."""
    rows = [
        record(delta, 0, None if key is None else b"%d" % key, b"at %d" % (base + delta))
        for delta, key in enumerate(keys)
    ]
    return batch(rows, base_offset=base, base_timestamp=NOW, max_timestamp=NOW, **options)


def last_offsets(log: CompactedTopic) -> list[int]:
    batches = log.batches()
    return (batches["base_offset"] + batches["last_offset_delta"]).tolist()
