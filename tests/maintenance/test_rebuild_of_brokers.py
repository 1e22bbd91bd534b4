"""Rebuilds of what real brokers wrote: their indexes, byte for byte."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from adopted import adopt_golden, rows
from rebuilding import (
    BROKER_INTERVAL,
    GOLDEN,
    SUFFIXES,
    contents,
    found,
    name_of,
    rebuilt,
    segments_of,
    with_index,
)

from distlog import Topic
from distlog.core.commits.actions import Add, Remove


@pytest.fixture(params=[name for name in GOLDEN if not name.startswith("crashed")])
def adopted(request: pytest.FixtureRequest, tmp_path: Path) -> Topic:
    config = {"index.interval.bytes": BROKER_INTERVAL, "retention.ms": -1}
    return adopt_golden(str(tmp_path / "log"), GOLDEN[request.param], config=config)


def test_indexes_that_a_broker_wrote_are_right(adopted: Topic) -> None:
    report = rebuilt(adopted)
    wrong = {
        name for each in report.segments for name, state in each.found.items() if state not in ("fine", "missing")
    }
    assert (wrong, report.ok) == (set(), True)


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("first.")])
def test_rebuilt_indexes_are_the_brokers_byte_for_byte(name: str, tmp_path: Path) -> None:
    """Where every append was one batch, as in all partitions of this stage."""
    config = {"index.interval.bytes": BROKER_INTERVAL, "retention.ms": -1}
    topic = adopt_golden(str(tmp_path / "log"), GOLDEN[name], config=config)
    before = contents(topic)
    topic.storage.delete(list(before))
    report = rebuilt(topic)
    assert set(found(report)) == {"missing missing"}
    assert contents(topic) == before


def test_the_indexes_of_a_killed_broker_are_trimmed(tmp_path: Path) -> None:
    partition = GOLDEN["crashed.crashed-0"]
    topic = adopt_golden(str(tmp_path / "log"), partition, config={"index.interval.bytes": BROKER_INTERVAL})
    segment = segments_of(topic)[-1]
    for suffix in SUFFIXES:
        topic.storage.put(topic.reader.name(segment, suffix), partition.logs[-1].with_suffix(suffix).read_bytes())
    assert found(rebuilt(topic)) == ["fine fine", "corrupted corrupted"]
    assert 0 < segment.offset_index_bytes < 1000
    assert found(rebuilt(topic)) == ["fine fine"] * 2
    trimmed = topic.storage.read(topic.reader.name(segment, ".index"))
    assert partition.logs[-1].with_suffix(".index").read_bytes().startswith(trimmed)


@pytest.mark.parametrize("kind", ["missing", "truncated", "corrupted", "stale"])
def test_a_transaction_index_is_made_anew_byte_for_byte(tmp_path: Path, kind: str) -> None:
    topic = adopt_golden(str(tmp_path / "log"), GOLDEN["first.txn-0"])
    assert rebuilt(topic).ok
    name = name_of(topic, ".txnindex")
    right = topic.storage.read(name)
    data = bytearray(right)
    if kind == "missing":
        topic.storage.delete([name])
    elif kind == "truncated":
        topic.storage.put(name, data[:-1])
    else:
        # the first offset of a transaction beyond its last one; the producer of another
        data[10 if kind == "corrupted" else 9] += 1
        topic.storage.put(name, data)
    report = rebuilt(topic)
    assert report.segments[0].found[".txnindex"] == kind
    assert report.ok
    assert [each.written for each in report.rebuilt] == [{".txnindex": len(right)}]
    assert topic.storage.read(name) == right
    assert topic.verify().ok


def test_a_transaction_index_that_no_commit_knows_of_is_found_missing_and_made(tmp_path: Path) -> None:
    topic = adopt_golden(str(tmp_path / "log"), GOLDEN["first.txn-0"])
    right = [topic.storage.read(topic.reader.name(segment, ".txnindex")) for segment in with_index(topic)]
    changed = [dataclasses.replace(each, txn_index_bytes=0, txn_index_crc32c=0) for each in segments_of(topic)]
    removed = [Remove(each.partition, each.stem) for each in changed]
    topic.advance(topic.log.commit(topic.snapshot, "rebuild", lambda _: [*removed, *map(Add, changed)])[1])
    committed = topic.scan(isolation="read_committed")
    assert committed.to_table().num_rows > len(GOLDEN["first.txn-0"].records(committed=True))
    assert {anomaly.word for anomaly in topic.verify().anomalies} == {"index_mismatch"}
    assert rebuilt(topic).ok
    assert [topic.storage.read(topic.reader.name(segment, ".txnindex")) for segment in with_index(topic)] == right
    assert rows(topic.scan(isolation="read_committed").to_table()) == GOLDEN["first.txn-0"].records(committed=True)
    assert topic.verify().ok
