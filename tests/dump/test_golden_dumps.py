"""Dumps of real brokers' files equal the dumps of Kafka's tool line by line; the JSON has the same values."""

from __future__ import annotations

import base64
import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import golden
import pytest
from command_line import CommandLine
from dumps import dumped

ALL = {"deep_iteration": True, "print_data_log": True}
EXPECTED = {path.name[:-7]: path for path in golden.DATA.glob("kafka-*/dump.*.txt.gz")}
PARTITIONS = golden.partitions()


def file_of(name: str) -> str:
    partition, _, file = name.removeprefix("dump.").partition(".")
    stage = "logs" if "kafka-2.8" in EXPECTED[name].parts else "first"
    return f"{stage}/{partition}/{file}"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_dump_equals_the_dump_of_kafkas_tool(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXPECTED[name].parent)
    dump = dumped(file_of(name), **ALL)
    assert dump.out == gzip.decompress(EXPECTED[name].read_bytes())
    assert dump.failures == 0


def test_the_command_prints_it(monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> None:
    name = "dump.codec-lz4-0.00000000000000000250.log.txt".removesuffix(".txt")
    monkeypatch.chdir(EXPECTED[name].parent)
    outcome = cli.bare("dump", "--deep-iteration", "--print-data-log", file_of(name))
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.encode() == gzip.decompress(EXPECTED[name].read_bytes())
    # as kafka-dump-log accepts files
    same = cli.bare("dump", "--deep-iteration", "--print-data-log", "--files", f"{file_of(name)},{file_of(name)}")
    assert (same.status, same.err, same.out) == (0, "", 2 * outcome.out)


def test_batches_alone_are_the_lines_without_records() -> None:
    (name, *_) = [name for name in EXPECTED if name.startswith("dump.append-time-0") and name.endswith(".log")]
    file = EXPECTED[name].parent / file_of(name)
    every = gzip.decompress(EXPECTED[name].read_bytes()).decode().split("\n")
    batches = [line for line in every if line.startswith("baseOffset: ")]
    assert dumped(file).lines[2:] == batches
    records = [line.partition(" key: ")[0].partition(" payload: ")[0] for line in every if line.startswith("| ")]
    assert [line for line in dumped(file, deep_iteration=True).lines if line.startswith("|")] == records


def text_or_base64(value: Any) -> bytes | None:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else None if value is None else value.encode()


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name.startswith(("first.", "cleaned.", "logs."))])
def test_the_records_as_json_are_those_of_a_consumer(name: str) -> None:
    partition = PARTITIONS[name]
    objects = [entry for log in partition.logs for entry in dumped(log, as_json=True, **ALL).objects]
    records = [entry for entry in objects if entry["type"] == "record" and "coordinatorEpoch" not in entry]
    first = partition.records()[0]["offset"]
    records_dumped = [
        (entry["offset"], entry["timestamp"], text_or_base64(entry.get("key")), text_or_base64(entry.get("payload")))
        for entry in records
        if entry["offset"] >= first
    ]
    assert records_dumped == [
        (entry["offset"], entry["timestamp"], entry["key"], entry["value"]) for entry in partition.records()
    ]
    names = [entry.get("headerKeys", []) for entry in records if entry["offset"] >= first]
    assert names == [[header["key"] for header in entry["headers"]] for entry in partition.records()]


def test_json_has_the_fields_of_the_text_by_their_names() -> None:
    folder = PARTITIONS["first.txn-0"].folder
    batch = dumped(folder / "00000000000000000114.log", as_json=True).objects[2]
    assert batch == {
        "type": "batch",
        "baseOffset": 114,
        "lastOffset": 115,
        "count": 2,
        "baseSequence": 27,
        "lastSequence": 28,
        "producerId": 9,
        "producerEpoch": 0,
        "partitionLeaderEpoch": 0,
        "isTransactional": True,
        "isControl": False,
        "deleteHorizonMs": None,
        "position": 0,
        "timestampType": "CreateTime",
        "maxTimestamp": 1795000004600,
        "size": 437,
        "magic": 2,
        "compresscodec": "none",
        "crc": 2766337269,
        "isvalid": True,
    }
    (marker,) = [
        entry
        for entry in dumped(folder / "00000000000000000114.log", as_json=True, **ALL).objects
        if entry.get("offset") == 116
    ]
    assert (marker["endTxnMarker"], marker["coordinatorEpoch"]) == ("ABORT", 0)
    producers = dumped(folder / "00000000000000000713.snapshot", as_json=True).objects[1:]
    assert [entry["currentTxnFirstOffset"] for entry in producers] == [712, None, None]


def test_leader_epochs_are_printed(tmp_path: Path) -> None:
    file = tmp_path / "leader-epoch-checkpoint"
    file.write_text("0\n2\n0 0\n3 124\n")
    assert dumped(file).lines == [f"Dumping {file}", "epoch: 0 startOffset: 0", "epoch: 3 startOffset: 124"]
    assert json.loads(dumped(file, as_json=True).lines[2]) == {"type": "leaderEpoch", "epoch": 3, "startOffset": 124}


def test_offset_gaps_of_a_compacted_log_are_reported() -> None:
    logs = PARTITIONS["cleaned.compact-none-0"].logs
    dumps = [dumped(log, deep_iteration=True) for log in logs]
    offsets = [[int(line.split()[2]) for line in offset.lines if line.startswith("|")] for offset in dumps]
    gaps = [[(a, b) for a, b in pairwise(offset) if b != a + 1] for offset in offsets]
    assert any(gaps)
    for log, offset, pairs in zip(logs, dumps, gaps, strict=True):
        title = [f"Non-consecutive offsets in {log}"] if pairs else []
        assert offset.err.splitlines() == title + [f"  {a} is followed by {b}" for a, b in pairs]
    assert any("deleteHorizonMs: OptionalLong[" in line for offset in dumps for line in offset.lines)


def test_a_limit_of_bytes_reads_only_the_first_bytes() -> None:
    log = PARTITIONS["first.codec-lz4-0"].logs[0]
    lines = dumped(log).lines
    second = int(lines[3].partition("position: ")[2].split()[0])
    assert dumped(log, max_bytes=second).lines == lines[:3]
    assert dumped(log, max_bytes=second + 1).lines == lines[:3]


def test_the_name_of_a_copy_on_object_storage_is_not_an_offset(tmp_path: Path) -> None:
    (log, *_) = sorted(PARTITIONS["first.codec-lz4-0"].folder.glob("*.log"))
    copy = tmp_path / f"{'9' * 20}.log"
    copy.write_bytes(log.read_bytes())
    assert "Log starting offset: 0" in dumped(copy).lines


def test_a_sanity_check_and_an_empty_index_are_one_line_each(tmp_path: Path) -> None:
    folder = PARTITIONS["first.codec-lz4-0"].folder
    (index, *_) = sorted(folder.glob("*.index"))
    for file in (index, index.with_suffix(".timeindex")):
        assert dumped(file, index_sanity_check=True).lines == [f"Dumping {file}", f"{file} passed sanity check."]
    (tmp_path / index.name).write_bytes(b"")
    assert dumped(tmp_path / index.name).lines[1] == f"{tmp_path / index.name} is empty."
    assert dumped(index, verify_index_only=True).lines == [f"Dumping {index}"]


def test_the_zeros_that_a_crash_left_at_the_end_of_an_index_are_not_shown() -> None:
    folder = PARTITIONS["crashed.crashed-0"].folder
    for suffix in (".index", ".timeindex"):
        (file,) = [path for path in folder.glob(f"*{suffix}") if path.stat().st_size > 60_000]
        dump = dumped(file)
        assert (dump.err, dump.failures) == ("", 0)
        assert 2 < len(dump.lines) < 200
