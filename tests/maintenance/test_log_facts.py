"""What a log says of itself, beside what its segment's metadata says."""

from __future__ import annotations

from adopted import describe
from raw_batches import batch, record

from distlog.core.batches.record_batch import read_headers
from distlog.core.maintenance.verify_segment import LogFacts


def test_batches_that_no_segment_can_hold_are_told_once_and_counted() -> None:
    first, far = batch([record()]), batch([record()], base_offset=1 << 31)
    facts = LogFacts(describe({".log": first}, 0, (1 << 31) + 1))
    for data in (first + far, first):
        facts.add_batches(memoryview(data), read_headers(data))
    assert facts.batches == 3
    (message,) = facts.contradictions()
    assert "cannot be those of one segment" in message
    assert "2147483648" in message
