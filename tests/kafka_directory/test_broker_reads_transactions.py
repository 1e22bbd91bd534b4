"""Kafka's tools read the transactions of direct appends: markers, producers, the transaction index."""

from __future__ import annotations

import re
from pathlib import Path

from kafka_broker import Broker, dump, needs_kafka
from partition_logs import Process, append, new_topic
from transacting import Sender

pytestmark = needs_kafka


def test_kafka_dump_log_reads_markers_and_aborted_transactions(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events")
    process = Process(folder)
    payments, refunds = Sender(Process(folder), "payments"), Sender(Process(folder), "refunds")
    payments.begin().send(0, b"a", b"b")
    refunds.begin().send(0, b"c")
    payments.commit()
    append(process[0], b"d")
    refunds.abort()
    process[0].roll()
    process.topic().export(tmp_path / "kafka")
    log = tmp_path / "kafka" / "events-0" / f"{0:020d}.log"
    printed = dump([log, log.with_suffix(".txnindex")], "--deep-iteration")
    markers = re.findall(r"offset: (\d+) .*endTxnMarker: (\w+) coordinatorEpoch: (-?\d+)", printed)
    assert markers == [("3", "COMMIT", "0"), ("5", "ABORT", "0")]
    assert len(re.findall(r"isTransactional: true isControl: false", printed)) == 2
    assert "isvalid: false" not in printed
    (aborted,) = re.findall(r"version: 0 producerId: \d+ firstOffset: (\d+) lastOffset: (\d+) .*: (\d+)", printed)
    assert aborted == ("2", "5", "6")


def test_a_consumer_of_committed_records_stops_where_an_exported_transaction_is_open(tmp_path: Path) -> None:
    broker, process = Broker(tmp_path), Process(new_topic(tmp_path / "events"))
    with broker.running():
        broker.create({"events": 1}, {"retention.ms": "-1"})
    append(process[0], b"before")
    sender = Sender(Process(tmp_path / "events"), "payments")
    sender.begin().send(0, b"open")
    append(process[0], b"behind")
    for is_open in (True, False):
        report = process.topic().export(broker.data)
        assert bool(report.notes) == is_open
        with broker.running():
            shown = [row["value"] for row in broker.consume("events", committed=True)]
            assert shown == ([b"before"] if is_open else [b"before", b"behind"])
            assert [row["value"] for row in broker.consume("events")] == [b"before", b"open", b"behind"]
        if is_open:
            sender.abort()
