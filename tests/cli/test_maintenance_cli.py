"""The maintenance commands, and the methods of a topic that they call."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from addresses import Address
from command_line import CommandLine, Outcome
from store_clock import TimedStorage
from topics import Clock, contents, files, named_files, topic_on, values

import distlog
from distlog.cli import maintenance_commands
from distlog.core.display import Progress
from distlog.core.errors import ReadOnlyTopicError
from distlog.core.maintain.verify import rebuild_indexes, verify
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


def test_a_repair_reports_once_what_it_cuts_and_why(cli: CommandLine) -> None:
    with distlog.create(cli.url).writer() as writer:
        writer.append(b"v")
    (log,) = Path(cli.url).glob("*-0/*.log")
    log.write_bytes(log.read_bytes()[:-1])
    would, repaired = cli("repair", "--dry-run"), cli("repair")
    for outcome, begin in ((would, "would cut 1 partition"), (repaired, "cut 1 partition")):
        text, titles, row = outcome.out.splitlines()
        cut = dict(zip(titles.split("\t"), row.split("\t"), strict=True))
        assert (outcome.status, text.startswith(begin)) == (0, True)
        assert (cut["start_offset"], cut["end_offset"], cut["file"]) == ("0", "1", str(log))
        assert "lacks records that were acknowledged" in cut["reason"]
    assert cli("repair").out == "nothing to repair: every active segment takes appends\n"


def topic_of_small_segments(storage: Storage, clock: Clock, **config: object) -> Topic:
    """Partition 0 in four segments of a record, partition 1 in one."""
    storage = TimedStorage(storage, clock)
    topic = topic_on(storage, 2, {name.replace("_", "."): value for name, value in config.items()}, clock)
    for number in range(4):
        topic.append(values([number]), partition=0)
    topic.append(values([4]), partition=1)
    return topic


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_each_operation_on_every_kind_of_storage(storage_url: Address, clock: Clock) -> None:
    storage = Storage(*storage_url)
    topic = topic_of_small_segments(storage, clock, retention_ms=10_000, file_delete_delay_ms=1000)
    merged = topic.compact()
    assert str(merged).startswith("merged 4 segments into 1, ")
    assert merged.to_table().to_pylist() == [
        {"partition": 0, "segments_before": 4, "segments_after": 1, "bytes": merged.to_dict()["bytes"], "records": 4}
    ]
    assert (merged.version, topic.version) == (6, 6)
    assert contents(topic) == {0: [b"v0", b"v1", b"v2", b"v3"], 1: [b"v4"]}
    assert topic.delete_records({0: 3, 1: -1}).log_start_offsets == {0: 3, 1: 1} == topic.start_offsets()
    assert contents(topic) == {0: [b"v3"], 1: []}
    clock.now_ms += 10_004
    report = topic.retention()
    assert [(row["partition"], row["below_log_start"], row["too_old"]) for row in report.to_table().to_pylist()] == [
        (0, 0, 1),
        (1, 1, 0),
    ]
    assert contents(topic) == {0: [], 1: []}
    clock.now_ms += 1001
    deleted = topic.vacuum()
    assert {file.name for file in deleted.files} == set(deleted.to_table()["name"].to_pylist())
    assert (deleted.gc_floor, topic.version) == (8, 9)
    assert files(storage) == set()


def test_dry_runs_change_nothing(tmp_path: Path, clock: Clock) -> None:
    storage = Storage(tmp_path / "log")
    topic = topic_of_small_segments(storage, clock, retention_ms=10, file_delete_delay_ms=0)
    topic.compact()
    version, old_files = topic.version, files(storage)
    clock.now_ms += 1000
    for _ in range(2):
        assert topic.retention(dry_run=True).to_dict()["segments"] == 2
        assert topic.vacuum(dry_run=True).to_dict()["files"] == len(old_files - named_files(topic)) > 0
    assert str(topic.retention(dry_run=True)).startswith("would delete 2 segments")
    assert (topic.refresh().version, files(storage)) == (version, old_files)
    topic.append(values([5]), partition=0)
    assert topic.compact(dry_run=True).to_dict()["segments_before"] == 0, "one small segment is not worth a copy"
    assert topic.refresh().version == version + 1


def test_a_report_of_nothing_has_an_empty_table(tmp_path: Path, clock: Clock) -> None:
    topic = topic_on(Storage(tmp_path / "log"), 1, {}, clock)
    for report in (topic.retention(), topic.compact(), topic.vacuum(), topic.delete_records({})):
        table = report.to_table()
        assert (table.num_rows, isinstance(table, pa.Table), len(table.schema) > 1) == (0, True, True)
    assert topic.version == 0


def test_a_topic_at_an_older_version_is_not_maintained(tmp_path: Path) -> None:
    url = str(tmp_path / "log")
    distlog.create(url).append([{"value": "v"}])
    old = distlog.open(url, version=0)
    for operation in (old.retention, old.compact, old.vacuum, lambda: old.delete_records({0: 0})):
        with pytest.raises(ReadOnlyTopicError, match="read-only"):
            operation()


def old_segments(cli: CommandLine) -> None:
    cli.ok("create", "--config", "file.delete.delay.ms=0")
    for number in range(3):
        cli.ok("append", "--format", "records", stdin=b'{"value": "v%d", "timestamp": %d}' % (number, number))


def test_compact_then_retention_then_vacuum(cli: CommandLine) -> None:
    old_segments(cli)
    said, titles, row = cli.ok("compact").rows
    assert said[0].startswith("merged 3 segments into 1, ")
    assert dict(zip(titles, row, strict=True))["segments_before"] == "3"
    assert cli.ok("compact", "--json").json["segments_before"] == 0
    would = cli.ok("retention", "--dry-run", "--json").json
    document = cli.ok("retention", "--json").json
    assert (would["segments"], document["segments"], document["records"], document["partitions"][0]["too_old"]) == (
        1,
        1,
        3,
        1,
    )
    assert (would["dry_run"], document["dry_run"]) == (True, False)
    assert cli.ok("retention").rows == [["deleted 0 segments, 0 bytes, 0 records"]]
    assert cli.ok("describe", "--json").json["partitions"][0]["segments"] == 0
    would = cli.ok("vacuum", "--dry-run", "--json").json
    assert cli.ok("vacuum", "--json").json == {**would, "dry_run": False, "gc_floor": would["gc_floor"]}
    assert would["files"] >= 2
    assert not [*Path(cli.url, "clicks-0").glob("*.log")]


def test_compact_keeps_the_last_record_of_each_key(cli: CommandLine) -> None:
    cli.ok("create", "--config", "cleanup.policy=compact")
    for number in range(3):
        cli.ok("append", "--key-separator", ":", stdin=b"a:%d\nb:%d\n" % (number, number))
    would = cli.ok("compact", "--dry-run", "--json").json
    assert (would["dry_run"], would["records_before"], would["records_after"]) == (True, 6, 6)
    assert cli.ok("describe", "--json").json["version"] == 3
    said, titles, row = cli.ok("compact").rows
    assert said[0].startswith("compacted 1 partition: segments 3 to 1, bytes ")
    assert said[0].endswith(", records 6 to 2")
    shown = dict(zip(titles, row, strict=True))
    assert (shown["partition"], shown["records_before"], shown["records_after"]) == ("0", "6", "2")
    rows = cli.ok("read", "--columns", "offset,key,value").rows
    assert rows[1:] == [["4", "a", "2"], ["5", "b", "2"]]
    assert cli.ok("compact").rows == [["compacted 0 partitions: segments 0 to 0, bytes 0 to 0, records 0 to 0"]]


def test_indexes_are_verified_and_rebuilt(filled: CommandLine) -> None:
    assert filled.ok("verify").out.startswith("verified 1 segment, ")
    (index,) = Path(filled.url, "clicks-0").glob("*.timeindex")
    old_content = index.read_bytes()
    index.unlink()
    anomalies = filled("verify", "--json")
    assert (anomalies.status, anomalies.json["ok"]) == (1, False)
    assert [anomaly["word"] for anomaly in anomalies.json["anomalies"]] == ["missing_index"]
    assert filled("verify").rows[2][-1].count("missing_index") == 1
    assert filled.ok("rebuild-index", "--dry-run", "--json").json["segments_rebuilt"] == 1
    assert not index.exists()
    assert filled.ok("rebuild-index", "--json").json["segments_rebuilt"] == 1
    assert index.read_bytes() == old_content
    assert filled.ok("verify", "--json").json["ok"]
    assert filled.ok("rebuild-index", "--force", "--json").json["segments_rebuilt"] == 0


def test_damage_outside_segments_is_shown(filled: CommandLine) -> None:
    for number in range(2):
        filled.ok("append", stdin=b"v%d" % number)
    commit = Path(filled.url, "_commits", f"{2:020}.json")
    good = commit.read_bytes()
    topic = distlog.open(filled.url)
    commit.write_bytes(good[: len(good) // 2])
    report = topic.verify()
    assert (report.ok, {anomaly.word for anomaly in report.topic_anomalies}) == (False, {"corrupt_commit"})


def test_a_damaged_log_cannot_be_rebuilt(filled: CommandLine) -> None:
    (log,) = Path(filled.url, "clicks-0").glob("*.log")
    log.write_bytes(log.read_bytes()[:-1] + b"x")
    assert (filled("rebuild-index", "--json").status, filled("rebuild-index").status) == (1, 1)
    anomalies = filled("verify", "--json")
    assert (anomalies.status, {anomaly["file"] for anomaly in anomalies.json["anomalies"]}) == (
        1,
        {f"clicks-0/{log.name}"},
    )


def test_vacuum_works_on_a_dropped_topic(cli: CommandLine) -> None:
    old_segments(cli)
    distlog.open(cli.url).drop()
    assert cli("retention").status == 1
    assert cli.ok("vacuum", "--json").json["files"] >= 2


@pytest.mark.parametrize(
    "arguments", [["--partition", "0", "--before", "2"], ["--before", "0:2"], ["--before", "0:2", "--partition", "1"]]
)
def test_delete_records_deletes_up_to_an_offset(filled: CommandLine, arguments: list[str]) -> None:
    assert filled.ok("delete-records", *arguments, "--json").json == {
        "version": 2,
        "partitions": [{"partition": 0, "log_start_offset": 2}],
    }
    assert filled.ok("offsets").rows[1] == ["0", "2", "5"]


def test_delete_records_of_several_partitions_up_to_the_end(cli: CommandLine) -> None:
    cli.ok("create", "--partitions", "2")
    cli.ok("append", "--partition", "1", stdin=b"v0\nv1\n")
    shown = cli.ok("delete-records", "--before", "1:-1", "--before", "0:0").rows
    assert shown == [
        ["partition 0 starts at 0, partition 1 starts at 2"],
        ["partition", "log_start_offset"],
        ["0", "0"],
        ["1", "2"],
    ]


def failed(outcome: Outcome, status: int) -> str:
    assert outcome.status == status
    assert not outcome.out or outcome.json["error"] == outcome.err.removeprefix("distlog: ").strip()
    return outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--before"),
        (["--before", "5"], "write PARTITION:OFFSET"),
        (["--before", "0:1", "--before", "0:2"], "partition 0 is set twice"),
        (["--before", "0:x"], "is not an offset"),
        (["--before", "-2"], "is not an offset"),
        (["--before", "0:\u0663"], "is not an offset"),
    ],
)
def test_a_wrong_command_line_of_delete_records(filled: CommandLine, arguments: list[str], words: str) -> None:
    assert words in failed(filled("delete-records", *arguments), 2)


def test_offsets_that_do_not_exist_cannot_be_deleted(filled: CommandLine) -> None:
    assert "log_end_offset=5" in failed(filled("delete-records", "--before", "0:6"), 1)
    assert "partition=1" in failed(filled("delete-records", "--before", "1:0"), 1)


def test_a_missing_topic_is_a_failure(cli: CommandLine) -> None:
    for command in (["retention"], ["compact"], ["vacuum"], ["delete-records", "--before", "0:1"]):
        assert failed(cli(*command, "--json"), 1).count("\n") == 1


@pytest.mark.parametrize("command", ["verify", "rebuild-index"])
def test_progress_is_shown_on_a_terminal_only(
    filled: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    assert filled.ok(command, "--json").json["ok"]
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True)
    monkeypatch.setattr(maintenance_commands, "Progress", partial(Progress, interval_s=0))
    shown = filled(command, "--json")
    assert shown.json["ok"]
    assert re.match(r"\r(verifying|rebuilding)  5 rows  .*100%", shown.err)
    assert shown.err.endswith("\r\x1b[K")


@pytest.mark.parametrize("work", [verify, rebuild_indexes])
def test_each_finished_segment_is_reported(storage_url: Address, clock: Clock, work: Any) -> None:
    topic = topic_of_small_segments(Storage(*storage_url), clock)
    progress: list[tuple[int, int]] = []
    work(topic.handle, topic.snapshot, on_progress=lambda *arguments: progress.append(arguments))
    sizes = topic.segments()["log_bytes"].to_pylist()
    assert progress == [(1, size) for size in sizes]
