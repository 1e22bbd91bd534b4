"""An uncommitted index is ignored and the log is scanned; an uncommitted transaction index fails."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import golden
import pyarrow as pa
import pytest
from adopted import adopt_golden, forget_fields, rows
from compacting import CompactedTopic
from index_copies import copies, index_cache, reopened
from logs import changed

import distlog
from distlog import CorruptIndexError, Topic
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.format.indexes import OffsetIndex
from distlog.core.read import lookup
from distlog.core.segments import segment_reader
from distlog.core.segments.segment_parts import INDEX_FIELDS, SegmentIndexes, index_fields_of

NOW = 1_700_000_000_000
#: Times that repeat and step back, as with several producers: every third record has an entry, and the next one
#: is the latest for two records.
TIMES = [NOW + row // 3 * 50 + (20 if row % 3 == 1 else 0) for row in range(200)]
TRANSACTIONS = golden.partitions()["first.txn-0"]


@pytest.fixture(autouse=True)
def by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "INDEX_WORTH_BYTES", 0)
    monkeypatch.setattr(lookup, "INDEX_WORTH_BYTES", 500)


def timed(url: str) -> Topic:
    config = {"batch.bytes": 100, "index.interval.bytes": 300, "retention.ms": -1}
    topic = distlog.create(url, config=config)
    topic.append(pa.table({"value": [b"%080d" % row for row in range(len(TIMES))], "timestamp": TIMES}))
    return topic


def segment_of(topic: Topic) -> SegmentInfo:
    return topic.snapshot.partitions[0].segments[0]


def first_at_or_after(time: int) -> dict[int, tuple[int, int] | None]:
    return {0: next(((row, row_and_time) for row, row_and_time in enumerate(TIMES) if row_and_time >= time), None)}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_each_index_file_has_its_checksum_in_the_metadata(tmp_path: Path) -> None:
    topic = timed(str(tmp_path / "t"))
    segment = segment_of(topic)
    for suffix in (".index", ".timeindex"):
        checksums = index_fields_of({suffix: topic.storage.read(topic.reader.name(segment, suffix))})
        fields = INDEX_FIELDS[suffix]
        assert checksums == {name: getattr(segment, name) for name in (fields.size, fields.checksum)}
    assert segment.txn_index_crc32c == 0


@pytest.mark.long
@pytest.mark.parametrize("where", ["local", "remote"])
def test_no_bit_of_a_time_index_moves_a_time(tmp_path: Path, where: str) -> None:
    topic = timed(str(tmp_path / "t") if where == "local" else f"memory://{tmp_path.name}/t")
    name = topic.reader.name(segment_of(topic), ".timeindex")
    right = topic.storage.read(name)
    for position in [*range(0, len(right), 31), *range(11, 120, 12)]:
        entry = position // 12 * 12
        for bit in range(3):
            topic.storage.put(name, changed(right, position, 1 << bit))
            again = reopened(topic, tmp_path / f"cache-{position}")
            time = int.from_bytes(right[entry : entry + 8], "big") + 1
            assert again.offsets_for_times(time) == first_at_or_after(time)


def test_a_bad_time_index_is_warned_of_by_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topic = timed(str(tmp_path / "t"))
    name = topic.reader.name(segment_of(topic), ".timeindex")
    topic.storage.put(name, changed(topic.storage.read(name), 11, 1))
    assert topic.offsets_for_times(NOW + 100) == first_at_or_after(NOW + 100)
    (warning,) = warnings(caplog)
    assert (
        f"checksum of the index file differs from its segment's metadata: rebuild the index (file={name} partition=0)"
        in warning
    )


@pytest.mark.long
@pytest.mark.parametrize("where", ["local", "remote"])
def test_no_bit_of_a_transaction_index_shows_or_hides_a_record(tmp_path: Path, where: str) -> None:
    topic = adopt_golden(str(tmp_path / "t") if where == "local" else f"memory://{tmp_path.name}/t", TRANSACTIONS)
    assert rows(topic.scan(isolation="read_committed").to_table()) == TRANSACTIONS.records(committed=True)
    name = topic.reader.name(segment_of(topic), ".txnindex")
    right = topic.storage.read(name)
    for position in range(len(right)):
        topic.storage.put(name, changed(right, position, 1 << position % 8))
        again = reopened(topic, tmp_path / f"cache-{position}")
        with pytest.raises(CorruptIndexError, match=r"rebuild the index \(file=.*\.txnindex partition=0\)"):
            again.scan(isolation="read_committed")
    topic.storage.put(name, right)
    again = reopened(topic, tmp_path / "cache")
    assert rows(again.scan(isolation="read_committed").to_table()) == TRANSACTIONS.records(committed=True)


def test_compaction_refuses_a_bad_transaction_index(tmp_path: Path) -> None:
    log = CompactedTopic(str(tmp_path / "log"))
    log.adopt(golden.partitions()["first.compact-txn-0"].folder)
    log.append((b"another", b"1"))
    topic, old_segments = log.topic(), log.segments()
    broken = next(segment for segment in old_segments if segment.txn_index_bytes)
    name = topic.reader.name(broken, ".txnindex")
    topic.storage.put(name, changed(topic.storage.read(name), 9, 1))
    report = log.compact()
    assert report is not None
    assert name in (report.error or "")
    assert log.segments() == old_segments


def test_a_bad_copy_of_an_index_is_fetched_again_without_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = adopt_golden(f"memory://{tmp_path.name}/t", TRANSACTIONS)
    cache = tmp_path / "cache"

    def read() -> list[dict[str, Any]]:
        again = reopened(topic, cache)
        assert again.offsets_for_times(0)[0] is not None
        return rows(again.scan(start=20, isolation="read_committed").to_table())

    expected = read()
    right = {copy: copy.read_bytes() for copy in copies(cache)}
    assert len(right) >= 2
    for copy, data in right.items():
        copy.write_bytes(changed(data, len(data) // 2, 1))
    assert read() == expected
    assert {copy: copy.read_bytes() for copy in copies(cache)} == right
    assert warnings(caplog) == []


def test_a_rebuilt_index_of_the_same_size_is_another_copy(tmp_path: Path) -> None:
    topic = timed(f"memory://{tmp_path.name}/t")
    cache = tmp_path / "cache"
    reopened(topic, cache).offsets_for_times(NOW + 100)
    old = set(copies(cache))
    name = topic.reader.name(segment_of(topic), ".timeindex")
    data = topic.storage.read(name)
    topic.storage.put(name, changed(data, 11, 1))
    checksums = index_fields_of({".timeindex": changed(data, 11, 1)})
    indexes = SegmentIndexes(topic.storage, topic.name, index_cache(cache))
    index = indexes.times(dataclasses.replace(segment_of(topic), **checksums))
    assert index is not None
    assert old
    assert Path(index.path) not in old


def test_the_checksum_is_compared_once_per_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = timed(str(tmp_path / "t"))
    compared = []
    checksum = OffsetIndex.checksum

    def counted(index: OffsetIndex) -> int:
        compared.append(index.path)
        return checksum(index)

    monkeypatch.setattr(OffsetIndex, "checksum", counted)
    for offset in (150, 20, 100):
        assert next(topic.records(0, offset, 1)).offset == offset
    assert len(compared) == 1


def test_an_index_without_a_checksum_is_checked_by_its_entries(tmp_path: Path) -> None:
    topic = forget_fields(timed(str(tmp_path / "t")))
    name = topic.reader.name(segment_of(topic), ".index")
    data = topic.storage.read(name)
    topic.storage.put(name, data[8:] + data[:8])
    assert next(topic.records(0, 150, 1)).offset == 150
