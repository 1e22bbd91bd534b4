"""What transactions leave in place is what Kafka's own tool reads: markers, producers, the transaction index."""

from __future__ import annotations

import re
from pathlib import Path

from kafka_broker import dump, needs_kafka
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
    found = re.findall(r"offset: (\d+) .*endTxnMarker: (\w+) coordinatorEpoch: (-?\d+)", printed)
    assert found == [("3", "COMMIT", "0"), ("5", "ABORT", "0")]
    assert len(re.findall(r"isTransactional: true isControl: false", printed)) == 2
    assert "isvalid: false" not in printed
    (aborted,) = re.findall(r"version: 0 producerId: \d+ firstOffset: (\d+) lastOffset: (\d+) .*: (\d+)", printed)
    assert aborted == ("2", "5", "6")
