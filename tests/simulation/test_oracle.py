"""The oracle's rules: it reads commits and records without the library, and reports what breaks a promise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import distlog
from distlog.core.commits import actions
from distlog.core.write import append as append_commit
from simulation.commit_reader import UnreadableError, read_commit
from simulation.oracle import log_file
from simulation.record_log import Marker, RecordLog, Rewrite, Row, StoredRow, read_segment
from simulation.topic_state import TopicState, differences


def state_of(url: Path) -> TopicState:
    state = TopicState()
    for file in sorted((url / "_commits").glob("*.json")):
        state = state.after(read_commit(file.read_bytes()))
    return state


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> distlog.Topic:
    monkeypatch.setattr(actions, "TABLE_ROWS", 2)
    monkeypatch.setattr(append_commit, "TABLE_ROWS", 2)
    return distlog.create(f"memory://{tmp_path.name}/clicks", partitions=3)


def copied(topic: distlog.Topic, folder: Path) -> Path:
    """Copy the commits of a topic in memory into a folder."""
    for name in [f"_commits/{entry}" for entry in range(topic.version + 1)]:
        file = f"_commits/{int(name.rpartition('/')[2]):020d}.json"
        (folder / "_commits").mkdir(exist_ok=True)
        (folder / file).write_bytes(topic.storage.read(file))
    return folder


def test_commits_with_tables_lead_to_the_state_of_the_library(clicks: distlog.Topic, tmp_path: Path) -> None:
    for number in range(3):
        rows = [{"key": b"%d" % key, "value": b"%d" % number} for key in range(12)]
        clicks.append(rows, app_id="job", batch_id=number)
    clicks.compact()
    clicks.delete_records({0: 1})
    state = state_of(copied(clicks, tmp_path))
    assert b"add_table" in (tmp_path / "_commits" / f"{1:020d}.json").read_bytes()
    assert list(differences(clicks.refresh().snapshot, state)) == []


def test_the_records_of_a_segment_are_read_with_their_times_and_headers(
    clicks: distlog.Topic, tmp_path: Path
) -> None:
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    rows = [{"key": b"k", "value": None, "timestamp": 1_700_000_000_000, "headers": headers, "partition": 0}]
    clicks.append(rows)
    (segment,) = state_of(copied(clicks, tmp_path)).partitions[0].segments
    data = clicks.storage.read(log_file("clicks", segment))
    start = max(segment["log_position"], 0)
    rows, _ = read_segment(data[start : start + segment["log_bytes"]], segment)
    assert [stored.row for stored in rows] == [Row(1_700_000_000_000, b"k", None, (("h", b"1"), ("h", None)))]
    damaged = data[: start + 70] + bytes([data[start + 70] ^ 1]) + data[start + 71 :]
    with pytest.raises(UnreadableError, match="damaged"):
        read_segment(damaged[start : start + segment["log_bytes"]], segment)


def test_a_commit_that_does_not_follow_is_refused(clicks: distlog.Topic, tmp_path: Path) -> None:
    clicks.append([{"value": b"1"}])
    state = state_of(copied(clicks, tmp_path))
    commit = read_commit((tmp_path / "_commits" / f"{1:020d}.json").read_bytes())
    with pytest.raises(ValueError, match="does not follow"):
        state.after(commit)


def log_of(*rows: tuple[bytes | None, bytes | None]) -> tuple[RecordLog, list[StoredRow]]:
    """A log with a record each second, from second 0 on."""
    log = RecordLog()
    records = [StoredRow(offset, Row(offset * 1000, *row, ()), None, None) for offset, row in enumerate(rows)]
    for stored in records:
        log.add(stored, float(stored.offset))
    return log, records


def rewrite(log: RecordLog, *, clean_end: int = 4, is_compacted: bool = True, lag_ms: int = 0) -> Rewrite:
    return Rewrite(log, 0, clean_end, is_compacted, 100_000, 100.0, lag_ms, 50_000)


ROWS = (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", None)


@pytest.mark.parametrize(
    ("offsets", "wrong"),
    [
        ([1, 2, 3], []),
        ([1, 2], []),
        ([2, 3], ["the record at offset 1 was removed: it is the newest one of key b'b' before 4"]),
        ([0, 1, 3], ["the record at offset 2 was removed: it is the newest one of key b'a' before 4"]),
    ],
)
def test_compaction_removes_superseded_records_and_old_tombstones(offsets: Sequence[int], wrong: list[str]) -> None:
    log, records = log_of(*ROWS)
    assert list(rewrite(log).wrong(records, [records[offset] for offset in offsets])) == wrong


def test_a_young_tombstone_stays() -> None:
    log, stored = log_of(*ROWS)
    young = Rewrite(log, 0, 4, True, 20_000, 20.0, 0, 50_000)
    (wrong,) = young.wrong(stored, stored[:3])
    assert "is a tombstone, committed 17000 ms ago, not 50000" in wrong


def test_a_young_record_stays_where_compaction_lags() -> None:
    log, stored = log_of(*ROWS)
    (wrong,) = rewrite(log, lag_ms=100_001).wrong(stored, stored[1:])
    assert "min.compaction.lag.ms is 100001" in wrong


def test_no_record_may_be_missing_without_compaction_or_after_the_clean_part() -> None:
    log, stored = log_of(*ROWS)
    assert len(list(rewrite(log, is_compacted=False).wrong(stored, []))) == 4
    assert len(list(rewrite(log, clean_end=0).wrong(stored, []))) == 4


def test_the_clean_part_has_only_the_newest_record_of_a_key() -> None:
    log, stored = log_of(*ROWS, (None, b"5"))
    assert list(rewrite(log, clean_end=5).superseded(stored)) == [
        "key b'a' remains at offset 0, although offset 2 before 5 supersedes it",
        "the record without a key at offset 4 remains before 5",
    ]


def test_records_of_a_transaction_count_by_its_end() -> None:
    log = RecordLog()
    for offset in (0, 1, 3):
        log.add(StoredRow(offset, Row(offset, b"k", b"%d" % offset, ()), 7, None), 0.0)
    log.end(Marker(2, 7, False))
    assert [log.is_committed(offset, 4) for offset in (0, 1, 3)] == [False, False, None]
    assert log.stable_end(4) == 3
    log.end(Marker(4, 7, True))
    assert log.is_committed(3, 5) is True
    assert log.is_committed(3, 4) is None
    assert log.stable_end(5) == 5
    # an aborted record supersedes nothing
    assert list(log.later(b"k", 0, 5)) == [3]
