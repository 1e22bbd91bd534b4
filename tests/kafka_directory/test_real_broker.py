"""A real Kafka broker opens an export: it serves every record, and its cleaner keeps the same records as ours."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from random import Random

import pytest
from adopted import rows
from golden import GoldenPartition, partitions
from kafka_broker import PATIENCE_SECONDS, Broker, dump, needs_kafka

import distlog
from distlog import StorageError, Topic

pytestmark = needs_kafka

NOW = 1_700_000_000_000
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "604800000"}
FOREVER = {"retention.ms": "-1"}
INDEXES = (".index", ".timeindex", ".txnindex")
GOLDEN = {name: partition for name, partition in partitions().items() if name.startswith(("first.", "logs."))}


def topic_of(partition: GoldenPartition) -> str:
    return partition.folder.name.rpartition("-")[0]


def partition_of(partition: GoldenPartition) -> int:
    return int(partition.folder.name.rpartition("-")[2])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Broker:
    real_broker = Broker(tmp_path_factory.mktemp("broker"))
    golden = {topic_of(golden_log): 3 if topic_of(golden_log) == "multi" else 1 for golden_log in GOLDEN.values()}
    with real_broker.running():
        real_broker.create({"orders": 2, "appended": 1, "headless": 1, **golden}, FOREVER)
        real_broker.create({"keyed": 1}, COMPACTED)
    return real_broker


def orders(folder: Path) -> Topic:
    topic = distlog.create(str(folder / "orders"), 2, {**FOREVER, "index.interval.bytes": 500, "batch.bytes": 400})
    append_orders(topic, 0)
    append_orders(topic, 1)
    return topic


def append_orders(topic: Topic, run: int) -> None:
    topic.append(
        [
            {"key": b"k%d" % row, "value": b"order %d of run %d" % (row, run), "timestamp": NOW + 1000 * run + row}
            for row in range(500)
        ]
    )


def appended(folder: Path) -> Topic:
    topic = distlog.create(str(folder / "appended"), 1, {**FOREVER, "message.timestamp.type": "LogAppendTime"})
    for run in range(3):
        topic.append([{"value": b"%d of %d" % (row, run), "timestamp": 5} for row in range(100)])
    return topic


def keyed(folder: Path) -> Topic:
    topic = distlog.create(str(folder / "keyed"), 1, COMPACTED)
    for run in range(4):
        values = [None if row % 11 == run else b"value %d of run %d" % (row, run) for row in range(100)]
        topic.append(
            [
                {"key": b"k%d" % (row * (run + 1) % 130), "value": value, "timestamp": NOW + 1000 * run + row}
                for row, value in enumerate(values)
            ]
        )
    topic.append([{"key": b"last", "value": b"of all", "timestamp": NOW + 9000}])
    return topic


def test_adoption_finds_the_settings_of_the_broker(broker: Broker, tmp_path: Path) -> None:
    report = distlog.adopt(broker.data, str(tmp_path / "topics"), topics=["orders", "keyed"], dry_run=True)
    settings = {row["topic"]: row["settings"] for row in report.to_dict()["topics"]}
    assert settings == {"orders": FOREVER, "keyed": COMPACTED}


def test_a_broker_serves_and_cleans_an_export(broker: Broker, tmp_path: Path) -> None:
    plain, timed, compacted = orders(tmp_path), appended(tmp_path), keyed(tmp_path)
    adopted = {
        name: distlog.adopt(golden_log.folder, str(tmp_path / name / topic_of(golden_log))).topic
        for name, golden_log in GOLDEN.items()
    }

    # 1. the export replaces the empty logs of the broker, and is extended later
    for topic in (plain, timed, compacted):
        topic.export(broker.data)
    for name, topic in adopted.items():
        topic.export(broker.data, partitions=[partition_of(GOLDEN[name])])
    append_orders(plain, 2)
    assert [row["segments_written"] for row in plain.export(broker.data).to_dict()["partitions"]] == [1, 1]

    # 2. Kafka's dump tool finds no fault in our files
    check_dump([folder for name in ("orders", "appended", "keyed") for folder in broker.data.glob(f"{name}-*")])

    with broker.running():
        # 3. every record, from the start, from an offset, and from a time
        for number, end in plain.end_offsets().items():
            assert broker.ends("orders", number) == (0, end)
            assert broker.consume("orders", number) == rows(plain.scan(partitions=[number]).to_table())
            assert broker.consume("orders", number, 700) == rows(plain.scan([number], start=700).to_table())
            offsets = plain.offsets_for_times(NOW + 1250)[number]
            assert offsets
            assert broker.offset_for_time("orders", number, NOW + 1250) == offsets[0]
        assert broker.consume("appended") == rows(timed.scan().to_table())

        # 4. records of other brokers, all and committed
        for name, golden_log in GOLDEN.items():
            start = adopted[name].start_offsets()[partition_of(golden_log)]
            assert broker.consume(topic_of(golden_log), partition_of(golden_log), start) == golden_log.records(), name
        assert broker.consume("txn", committed=True) == GOLDEN["first.txn-0"].records(committed=True)
        assert broker.ends("deleted-records")[0] == 137

        # 5. the cleaner keeps the same records as ours
        wait_for_cleaner(broker, "keyed 0 400")
        compacted.compact()
        old_rows = rows(compacted.scan().to_table())
        assert 100 < len(old_rows) < 401
        assert broker.consume("keyed") == old_rows

    # 6. files that the broker left unchanged can be exported again, changed ones cannot
    assert sum(row["segments_written"] for row in plain.export(broker.data).to_dict()["partitions"]) == 0
    with pytest.raises(StorageError, match="a broker has written to the folder since the last export"):
        compacted.export(broker.data)


def check_dump(folders: list[Path]) -> None:
    files = [
        file
        for folder in sorted(folders)
        for file in sorted(folder.iterdir())
        if file.suffix in (".log", ".snapshot", *INDEXES)
    ]
    deep = dump(files, "--deep-iteration")
    assert deep.count("Dumping") == len(files) > 20
    for complaint in ("isvalid: false", "Mismatches", "mismatch", "out of order", "not found", "invalid bytes"):
        assert complaint not in deep
    sane = dump(files, "--index-sanity-check")
    assert sane.count("passed sanity check") + sane.count("is empty") == sum(file.suffix in INDEXES for file in files)


def test_a_search_by_time_goes_past_the_empty_file_before_a_head_that_compaction_took(
    broker: Broker, tmp_path: Path
) -> None:
    big = {**COMPACTED, "segment.bytes": "1048576"}
    topic, random = distlog.create(str(tmp_path / "headless"), 1, big), Random(1)
    for run in range(2):
        topic.append(
            [{"key": b"%d" % row, "value": random.randbytes(12_000), "timestamp": NOW + row} for row in range(100)]
        )
        topic.append([{"key": b"last", "value": b"of run %d" % run, "timestamp": NOW + 1000 * (run + 1)}])
    topic.compact()
    begin = topic.scan().to_table()["offset"][0].as_py()
    topic.export(broker.data)
    assert min((broker.data / "headless-0").glob("*.log")).stat().st_size == 0 < begin
    with broker.running():
        for time_ms in (0, NOW, NOW + 50, NOW + 99, NOW + 2000):
            offsets = topic.offsets_for_times(time_ms)[0]
            assert offsets
            assert broker.offset_for_time("headless", 0, time_ms) == offsets[0] >= begin


def test_a_running_broker_is_detected(broker: Broker, tmp_path: Path) -> None:
    topic = orders(tmp_path)
    with broker.running():
        with pytest.raises(StorageError, match="a broker is running"):
            topic.export(broker.data)
        with pytest.raises(StorageError, match="a broker is running"):
            distlog.adopt(broker.data)


def test_a_broker_does_not_start_on_a_directly_adopted_topic(tmp_path: Path) -> None:
    stopped = Broker(tmp_path)
    with stopped.running():
        stopped.create({"orders": 1})
    assert distlog.adopt(stopped.data).ok
    with pytest.raises(AssertionError, match="the broker has ended"), stopped.running():
        stopped.ends("orders")
    # deleting the topic's folder reverts the adoption
    shutil.rmtree(stopped.data / "orders")
    with stopped.running():
        assert stopped.ends("orders") == (0, 0)


def wait_for_cleaner(broker: Broker, line: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    checkpoint = broker.data / "cleaner-offset-checkpoint"
    while not checkpoint.exists() or line not in checkpoint.read_text(encoding="utf-8"):
        assert time.monotonic() < deadline, broker.log()[-3000:]
        time.sleep(0.2)
