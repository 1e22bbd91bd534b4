"""What compaction makes of timestamps: headers, metadata and answers name times that records have."""

from __future__ import annotations

from compacting import NOW, CompactedTopic
from compacting import log as log
from raw_batches import batch, record

from distlog.core.reading.time_lookup import MAX_TIMESTAMP
from distlog.core.times import to_ms


def times(log: CompactedTopic) -> tuple[list[int], list[int]]:
    """The largest timestamp that each batch's header names, and those of the records that readers get."""
    return log.batches()["max_timestamp"].tolist(), [to_ms(row["timestamp"]) for row in log.rows()]


def newest(log: CompactedTopic) -> tuple[int, int] | None:
    found: tuple[int, int] | None = log.topic().offsets_for_times(MAX_TIMESTAMP)[0]
    return found


def plain(base: int, *keys: bytes, at: int = NOW, **options: int) -> bytes:
    """A batch with a record per key, all of one time."""
    rows = [record(delta, 0, key) for delta, key in enumerate(keys)]
    return batch(rows, base_offset=base, base_timestamp=at, max_timestamp=at, **options)


def test_a_batch_with_a_horizon_that_loses_its_newest_record_has_the_time_of_the_newest_left(
    log: CompactedTopic,
) -> None:
    rows = [record(0, 0, b"a", None), record(1, 70, b"b"), record(2, 90, b"c")]
    log.add(batch(rows, base_timestamp=NOW, max_timestamp=NOW + 90) + plain(3, b"d"))
    log.compact()
    assert (times(log)[0], newest(log)) == ([NOW + 90, NOW], (2, NOW + 90))
    log.add(plain(4, b"c", at=1))
    log.compact()
    assert times(log) == ([NOW + 70, NOW, 1], [NOW, NOW + 70, NOW, 1])
    assert (log.segments()[0].max_timestamp, newest(log)) == (NOW + 70, (1, NOW + 70))
    assert log.topic().verify().ok


def test_a_header_with_a_time_that_no_record_has_is_mended(log: CompactedTopic) -> None:
    """Compaction once left such headers."""
    log.add(batch([record(0, 5, b"a"), record(1, 0, b"b")], base_timestamp=NOW, max_timestamp=NOW + 90))
    log.add(plain(2, b"c"))
    log.compact()
    assert times(log) == ([NOW + 5, NOW], [NOW + 5, NOW, NOW])


def test_an_emptied_batch_keeps_its_time_but_no_lookup_names_it(log: CompactedTopic) -> None:
    log.add(plain(0, b"a", b"b", at=NOW + 50, producer=(7, 0, 0)))
    log.add(plain(2, b"c") + plain(3, b"a", b"b", at=1))
    log.compact()
    assert times(log) == ([NOW + 50, NOW, 1], [NOW, 1, 1])
    assert (log.segments()[0].max_timestamp, newest(log)) == (NOW + 50, (2, NOW))
    assert log.topic().verify().ok


def test_where_only_emptied_batches_are_left_there_is_no_largest_timestamp(log: CompactedTopic) -> None:
    log.add(batch([record(0, 0, None)], base_timestamp=NOW, max_timestamp=NOW))
    log.compact()
    assert (times(log), newest(log)) == (([NOW], []), None)
