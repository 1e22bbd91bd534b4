"""An export of open transactions says where consumers will stop, since a broker cannot end what it did not begin."""

from __future__ import annotations

from pathlib import Path

from partition_logs import Process, append, new_topic
from topics import Clock
from transacting import TIMEOUT_MS, Sender, seen

import distlog


def test_an_open_transaction_is_exported_as_it_is_and_the_report_names_it(tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "events"))
    append(process[0], b"before")
    sender = Sender(Process(tmp_path / "events"), "payments")
    sender.begin().send(0, b"open")
    append(process[0], b"behind")
    report = process.topic().export(tmp_path / "kafka")
    note = (
        "partition 0: a transaction is open from offset 1 on, where consumers of committed records will stop: "
        "end it, and export again"
    )
    assert (report.notes, report.to_dict()["notes"], str(report).splitlines()[1:]) == ((note,), [note], [note])
    again = distlog.adopt(tmp_path / "kafka", str(tmp_path / "first")).topics["events"]
    assert seen(again) == {0: [b"before"]}
    assert seen(again, "read_uncommitted") == {0: [b"before", b"open", b"behind"]}

    sender.abort()
    report = process.topic().export(tmp_path / "kafka")
    assert report.notes == ()
    again = distlog.adopt(tmp_path / "kafka", str(tmp_path / "second")).topics["events"]
    assert seen(again) == {0: [b"before", b"behind"]}


def test_end_transactions_before_an_export_leaves_none_open_whose_time_is_over(tmp_path: Path) -> None:
    folder, clock = new_topic(tmp_path / "events"), Clock()
    Sender(Process(folder, clock=clock), "payments").begin().send(0, b"open")
    process = Process(folder, clock=clock)
    assert process.topic().end_transactions() == 0
    assert process.topic().export(tmp_path / "kafka").notes != ()
    clock.now_ms += 2 * TIMEOUT_MS
    assert process.topic().end_transactions() == 1
    assert process.topic().export(tmp_path / "kafka").notes == ()
