"""The report of an export has open transactions, since a broker cannot end transactions of another one."""

from __future__ import annotations

from pathlib import Path

from partition_logs import Process, append, new_topic
from transacting import Sender, values_seen

import distlog


def test_an_open_transaction_is_exported_and_reported(tmp_path: Path) -> None:
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
    assert values_seen(again) == {0: [b"before"]}
    assert values_seen(again, "read_uncommitted") == {0: [b"before", b"open", b"behind"]}

    sender.abort()
    report = process.topic().export(tmp_path / "kafka")
    assert report.notes == ()
    again = distlog.adopt(tmp_path / "kafka", str(tmp_path / "second")).topics["events"]
    assert values_seen(again) == {0: [b"before", b"behind"]}
