"""A dump of damaged files reports what is wrong and where, and continues as far as possible."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import golden
import pytest
from addresses import Address
from command_line import CommandLine
from dumps import Dumped, dumped
from logs import each_byte_changed

import distlog
from distlog.core.storage.storage import Storage

DEEP = {"print_data_log": True}
TXN = golden.partitions()["first.txn-0"].folder
LZ4 = golden.partitions()["first.codec-lz4-0"].folder
LOG = TXN / "00000000000000000114.log"
#: The first three batches of LOG: two records, an end marker, one record.
SMALL = LOG.read_bytes()[:596]
SECOND, THIRD = 437, 515


def test_a_bundle_is_refused_with_advice(tmp_path: Path, cli: CommandLine) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), 2)
    topic.append([{"value": b"v", "partition": number} for number in (0, 1)])
    (bundle,) = (tmp_path / "clicks").glob("_bundles/*")
    outcome = cli.bare("dump", str(bundle))
    assert (outcome.status, outcome.out) == (1, f"Dumping {bundle}\n")
    assert "`distlog export` writes their files" in outcome.err


def of(tmp_path: Path, data: bytes, **options: object) -> Dumped:
    file = tmp_path / LOG.name
    file.write_bytes(data)
    return dumped(file, **(options or DEEP))


def put(position: int, data: bytes) -> bytes:
    return SMALL[:position] + data + SMALL[position + len(data) :]


def test_a_wrong_checksum_is_shown_and_the_records_too(tmp_path: Path) -> None:
    dump = of(tmp_path, put(SECOND + 17, b"\0\0\0\1"))
    sound_dump = of(tmp_path, SMALL)
    assert [line for line in dump.lines if "isvalid: false" in line] == [dump.lines[5]]
    assert dump.lines[6:] == sound_dump.lines[6:]
    assert dump.failures == 0


@pytest.mark.parametrize(
    ("position", "data", "complaint"),
    [
        (57, b"\xff\xff\xff\xff", "negative number of records"),
        (57, b"\0\0\0\x07", "a record's length does not fit"),
        (22, b"\x15", "codec"),
        (22, b"\x12", "malformed"),
        (22, b"\x13", "lz4"),
        (61, b"\x7f", "a record's length"),
    ],
)
def test_an_undecodable_batch_is_named_and_the_next_one_is_shown(
    tmp_path: Path, position: int, data: bytes, complaint: str
) -> None:
    dump = of(tmp_path, put(position, data))
    assert complaint in dump.err
    assert f"file={tmp_path / LOG.name} position=0 offset=114" in dump.err
    assert dump.failures == 1
    assert dump.lines[-2:] == of(tmp_path, SMALL).lines[-2:]


@pytest.mark.parametrize("length", [5, -1, -(2**31), 13, 30])
def test_bytes_after_an_impossible_size_are_only_counted(tmp_path: Path, length: int) -> None:
    dump = of(tmp_path, put(SECOND + 8, struct.pack(">i", length)))
    assert f"a batch claims {length} bytes" in dump.err
    assert f"position={SECOND}" in dump.err
    assert dump.lines[-1] == f"Found {len(SMALL) - SECOND} invalid bytes at the end of {LOG.name}"
    assert dump.failures == 1


def test_a_torn_last_batch_is_counted(tmp_path: Path) -> None:
    dump = of(tmp_path, SMALL[: THIRD + 40])
    assert dump.lines[-1] == f"Found 40 invalid bytes at the end of {LOG.name}"
    assert (dump.err, dump.failures) == ("", 0)
    assert "invalid bytes" not in of(tmp_path, SMALL[: THIRD + 40], max_bytes=THIRD + 40).lines[-1]


def test_each_changed_byte_gives_a_dump(tmp_path: Path) -> None:
    sound_lines = of(tmp_path, SMALL).lines
    for position, data in list(each_byte_changed(SMALL))[::7]:
        lines = of(tmp_path, data).lines
        assert lines[1] == "Log starting offset: 114"
        first = 5 if position >= THIRD else 2
        assert lines[:first] == sound_lines[:first]


def test_wrong_entries_of_an_offset_index_are_listed(tmp_path: Path) -> None:
    copied(tmp_path)
    index = tmp_path / "00000000000000000250.index"
    data = bytearray(index.read_bytes())
    struct.pack_into(">i", data, 16, struct.unpack_from(">i", data, 16)[0] + 1)
    struct.pack_into(">i", data, len(data) - 4, 2**31 - 1)
    index.write_bytes(data)
    dump = dumped(index)
    assert dump.err.splitlines() == [
        f"Mismatches in :{index}",
        "  Index offset: 290, log offset: 289",
        f"The log has no whole batch at these indexed positions, in :{index}",
        "  Index offset: 465, position: 2147483647",
    ]
    assert dumped(index, as_json=True).objects[-2] == {"type": "indexMismatch", "indexOffset": 290, "logOffset": 289}


def test_wrong_entries_of_a_time_index_are_listed(tmp_path: Path) -> None:
    copied(tmp_path)
    index = tmp_path / "00000000000000000250.timeindex"
    data = bytearray(index.read_bytes())
    struct.pack_into(">q", data, 24, struct.unpack_from(">q", data, 24)[0] + 1)
    struct.pack_into(">i", data, 56, struct.unpack_from(">i", data, 56)[0] + 1)
    struct.pack_into(">q", data, 72, 5)
    struct.pack_into(">i", data, len(data) - 4, 5000)
    index.write_bytes(data)
    assert dumped(index, verify_index_only=True).err.splitlines() == [
        f"Found timestamp mismatch in :{index}",
        "  Index timestamp: 1795000011620, log timestamp: 1795000011619",
        "  Index timestamp: 5, log timestamp: 1795000013543",
        f"Found out of order timestamp in :{index}",
        "  Index timestamp: 5, Previously indexed timestamp: 1795000013210",
        "The following indexed offsets are not found in the log.",
        "Indexed offset: 316, found log offset: 323",
        "Indexed offset: 5250, found log offset: -1",
    ]


def copied(folder: Path) -> None:
    for path in LZ4.glob("00000000000000000250.*"):
        shutil.copyfile(path, folder / path.name)


@pytest.mark.parametrize(
    ("name", "data", "complaint"),
    [
        ("00000000000000000000.index", b"\0" * 9, "multiple of 8"),
        ("00000000000000000000.index", b"\xff" * 8, "below the base offset"),
        ("00000000000000000000.timeindex", b"\0" * 11, "multiple of 12"),
        ("00000000000000000000.timeindex", b"\0" * 7 + b"\5" + b"\0" * 16, "older than the first"),
    ],
)
def test_an_index_that_is_not_sane_is_named(tmp_path: Path, name: str, data: bytes, complaint: str) -> None:
    (tmp_path / name).write_bytes(data)
    dump = dumped(tmp_path / name, index_sanity_check=True)
    assert complaint in dump.err
    assert (len(dump.lines), dump.failures) == (1, 1)


@pytest.mark.parametrize(
    ("name", "data", "complaint"),
    [
        ("00000000000000000000.snapshot", b"", "cut off"),
        ("00000000000000000000.snapshot", b"\0\1" + b"\0" * 8, "corrupt"),
        ("00000000000000000000.txnindex", b"\1" + b"\0" * 33, "unknown version"),
        ("leader-epoch-checkpoint", b"1\n0\n", "this file of a broker is malformed"),
        ("leader-epoch-checkpoint", b"0\n2\n1 1\n", "this file of a broker is malformed"),
        ("leader-epoch-checkpoint", b"\xff", "this file of a broker is malformed"),
        ("00000000000000000000.index", b"\0" * 8, "such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_the_next_one_is_shown(
    tmp_path: Path, name: str, data: bytes, complaint: str
) -> None:
    (tmp_path / name).write_bytes(data)
    dump = dumped(tmp_path / name, TXN / "00000000000000000114.txnindex")
    assert complaint in dump.err
    assert dump.failures == 1
    assert dump.lines[-1].startswith("version: 0 producerId: 9")


def test_unknown_and_missing_files_are_named_and_fail(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "x.txt").write_bytes(b"x")
    outcome = cli.bare("dump", str(tmp_path / "x.txt"))
    assert (outcome.status, outcome.err) == (0, f"Ignoring unknown file {tmp_path / 'x.txt'}\n")
    outcome = cli.bare("dump", str(tmp_path / "0.log"), str(LOG))
    assert outcome.status == 1
    assert "0.log" in outcome.err
    assert "baseOffset: 114" in outcome.out


def test_a_dump_without_files_fails_with_advice(cli: CommandLine) -> None:
    outcome = cli.bare("dump")
    assert (outcome.status, outcome.out) == (2, "")
    assert "missing argument FILE" in outcome.err


@pytest.mark.s3
def test_files_at_a_url_are_dumped_as_local_ones(s3_url: Address, cli: CommandLine) -> None:
    Storage(*s3_url).put(LOG.name, LOG.read_bytes())
    options = [f"--storage={name}={value}" for name, value in s3_url.options.items()]
    outcome = cli.bare("dump", "--print-data-log", f"{s3_url.url}/{LOG.name}", *options)
    assert outcome.err == ""
    assert outcome.out.splitlines()[1:] == dumped(LOG, **DEEP).lines[1:]
