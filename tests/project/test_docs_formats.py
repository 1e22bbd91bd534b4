"""docs/formats.md cannot drift: its tables match the code."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Iterable
from dataclasses import MISSING
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from docs_pages import read, section, table

import distlog
from distlog.core import paths
from distlog.core.arrays import MAX_LONG, PAGE_BYTES
from distlog.core.commits import actions, checkpoint, deduplication, fields
from distlog.core.commits.actions import (
    MAX_PARTITIONS,
    MAX_PRODUCER_BATCHES,
    PRODUCER_APP,
    PRODUCER_COLUMNS_AS_STEPS,
    RESERVED_APPS,
    Action,
    Add,
    AddTable,
    Commit,
    ProducerBatches,
    RemoveTable,
    Requires,
    write_actions,
    write_table,
)
from distlog.core.commits.checkpoint import CHECKPOINT_BYTES, CHECKPOINT_COMMITS
from distlog.core.commits.deduplication import KEPT_MS, KEPT_ORDERED_BATCHES, MAX_PAUSE_MS, ProducerBatch
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.format import record_batch
from distlog.core.format.indexes import OFFSET_ENTRY, TIME_ENTRY, TRANSACTION_ENTRY
from distlog.core.log.partition_files import NO_POINT, RECORD_BYTES, PageStatus, StateRecord, packed_header
from distlog.core.read.consumer_group import RETAINED_VERSIONS, Member
from distlog.core.segments.producer_states import ENTRY as PRODUCER_ENTRY
from distlog.core.segments.producer_states import write_producer_snapshot
from distlog.core.segments.segment_state import NAMES, STATE_BYTES, SegmentState
from distlog.core.segments.segment_writer import HELD_BYTES, LARGEST_BUNDLE, LARGEST_PART
from distlog.core.storage import locks_and_pages
from distlog.core.storage.object_store import SINGLE_PUT_BYTES
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES

PAGE = read("docs/formats.md")
MEBIBYTE = 1 << 20
NUMPY = {">i8": "int64", ">i4": "int32", ">i2": "int16"}


def names(rows: Iterable[list[str]], column: int = 0) -> list[str]:
    """Return the code spans in a column."""
    return [name for row in rows for name in re.findall(r"`([a-z0-9_-]+)`", row[column])]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> distlog.Topic:
    topic = distlog.create(f"{tmp_path_factory.mktemp('formats')}/clicks", partitions=2)
    topic.append([{"value": "v", "partition": number} for number in (0, 1)], app_id="load", batch_id=1)
    with topic.writer() as writer:
        writer.append(b"in place", partition=0)
    with topic.consume(group="billing", timeout=0) as consumer:
        next(iter(consumer))
        consumer.commit()
    return topic.refresh()


def test_the_batch_header_is_as_the_table_says() -> None:
    types = {"q": "int64", "i": "int32", "b": "int8", "I": "uint32", "h": "int16"}
    sizes = {"int64": 8, "int32": 4, "int8": 1, "uint32": 4, "int16": 2}
    rows = table(PAGE, "### Record batch (format 2)")
    assert [row[1] for row in rows[:-1]] == [types[code] for code in record_batch.HEADER.format[1:]]
    position = 0
    for start, kind, _ in rows[:-1]:
        assert int(start) == position
        position += sizes[kind]
    assert int(rows[-1][0]) == position == record_batch.HEADER_SIZE


def test_the_attribute_bits_are_as_the_table_says() -> None:
    assert [int(row[0], 16) for row in table(PAGE, "### Record batch (format 2)", 1)] == [
        record_batch.CODEC_MASK,
        record_batch.APPEND_TIME,
        record_batch.TRANSACTIONAL,
        record_batch.CONTROL,
        record_batch.DELETE_HORIZON,
    ]


def test_the_index_entries_are_as_the_table_says() -> None:
    sizes = {row[0]: int(row[1]) for row in table(PAGE, "### Indexes")}
    entries = {".index": OFFSET_ENTRY, ".timeindex": TIME_ENTRY, ".txnindex": TRANSACTION_ENTRY}
    assert sizes == {f"`{suffix}`": entry.itemsize for suffix, entry in entries.items()}


def test_the_entries_of_a_producer_snapshot_are_as_the_table_says() -> None:
    rows = [(row[0].strip("`"), row[1]) for row in table(PAGE, "### Producer snapshots")]
    entry: np.dtype[Any] = PRODUCER_ENTRY
    assert rows == [(name, NUMPY[kind]) for name, kind in entry.descr]


def test_the_positions_and_limits_of_bundles_match_the_tables() -> None:
    assert names(table(PAGE, "## Bundles")) == [field for field, _ in actions.PARTS]
    limits = [LARGEST_PART // MEBIBYTE, LARGEST_BUNDLE // MEBIBYTE]
    assert [row[1] for row in table(PAGE, "## Bundles", 1)] == [*(f"{limit} MiB" for limit in limits), ""]
    assert f"above {HELD_BYTES // MEBIBYTE} MiB" in table(PAGE, "## Bundles", 1)[1][0]
    assert f"A bundle above {SINGLE_PUT_BYTES // MEBIBYTE} MiB is a multipart upload" in PAGE
    assert f"a multiple of {PAGE_BYTES} bytes" in PAGE


def test_a_commit_has_the_members_of_the_table(topic: distlog.Topic) -> None:
    rows = table(PAGE, "## Commits")
    assert sorted(names(rows)[1:-1]) == sorted(fields.checks(Commit))
    always = {name for row in rows for name in names([row]) if "left out" not in row[1]}
    stored = [json.loads(topic.storage.read(paths.commit_file(version))) for version in range(topic.version + 1)]
    assert all(always <= commit.keys() <= set(names(rows)) for commit in stored)
    assert f"at most\n{MAX_CONDITIONAL_BYTES // MEBIBYTE} MiB" in section(PAGE, "## Commits")


def test_the_actions_are_those_of_the_table() -> None:
    rows = {names([row])[0]: names([row], 1) for row in table(PAGE, "### Actions")}
    kinds = set(get_args(Action)) - {Add, AddTable, RemoveTable, ProducerBatches}
    kinds_by_name = {next(iter(write_actions([kind(*[None] * len(fields.checks(kind)))])[0])): kind for kind in kinds}
    assert rows.pop("add") == rows.pop("producers") == []
    removed = RemoveTable(pa.RecordBatch.from_pydict({"partition": pa.array([0]), "stem": ["0" * 20]}))
    assert rows.pop("add_table") == rows.pop("remove_table") == list(write_table(removed)["remove_table"])
    assert rows == {name: list(fields.checks(kind)) for name, kind in kinds_by_name.items()}


def test_the_applications_of_distlog_are_those_of_the_table() -> None:
    assert re.findall(r"\| `([a-z]+:)` and", section(PAGE, "### Reserved application ids")) == [*RESERVED_APPS]


def test_a_producer_has_the_numbers_and_the_id_that_the_page_says(tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/clicks")
    with topic.producer("billing-7"), topic.producer("billing-7") as producer:
        producer.append(b"v", partition=0)
        producer.flush()
        with producer.begin():
            producer.append(b"v", partition=0)
    newest = topic.refresh().snapshot.transactions.newest(f"{PRODUCER_APP}billing-7")
    assert newest == (1 << 32) + 1
    text = f"{topic.snapshot.topic_id}/0/billing-7"
    producer_ids = {row["producer_id"] for row in topic.producers().to_pylist()}
    assert int.from_bytes(sha256(text.encode()).digest()[:8], "big") & MAX_LONG in producer_ids
    assert "`generation * 2^32`" in PAGE


def test_the_columns_of_differences_of_a_table_are_those_of_the_page() -> None:
    steps, *rows = table(PAGE, "### Actions", 1)
    assert set(names([steps])) == actions.COLUMNS_AS_STEPS
    relative = {names([row])[0]: names([row], 1)[0] for row in rows if "the difference to `" in row[1]}
    assert relative == actions.RELATIVE_COLUMNS
    assert {names([row])[0] for row in rows if "where the" in row[1]} == {*actions.ADJACENT_PARTS}
    assert names(rows[-2:]) == ["crc32c", "time_index_crc32c"]
    text = section(PAGE, "### Actions")
    assert f"From {actions.TABLE_ROWS} on" in text
    assert f"up to {actions.MAX_TABLE_ROWS:,} rows" in text
    assert f"up to {actions.MAX_COMMIT_ROWS:,}." in text


def test_a_segment_has_the_members_and_defaults_of_the_table(topic: distlog.Topic) -> None:
    specs = [SegmentInfo.__dataclass_fields__[name] for name in fields.checks(SegmentInfo)]
    expected = [[spec.name, "" if spec.default is MISSING else str(spec.default).lower()] for spec in specs]
    assert [[row[0].strip("`"), row[1]] for row in table(PAGE, "### A segment")] == expected


def test_the_producer_entries_of_a_commit_match_the_table() -> None:
    rows, text = table(PAGE, "### Producers"), " ".join(section(PAGE, "### Producers").split())
    assert names(rows) == ["partition", *deduplication.BOUNDS]
    assert {name for row in rows for name in names([row]) if "differences" in row[2]} == {*PRODUCER_COLUMNS_AS_STEPS}
    batch = ProducerBatch(7, 0, 4, 9, 2, 1_000, deduplication.DATA, deduplication.NONE)
    (document,) = write_actions([ProducerBatches({0: (batch,)})])
    assert document["producers"].keys() == {name for row in rows for name in names([row]) if not row[1]}
    kinds = {int(number): name for number, name in re.findall(r"(\d): (?:a |an )?([a-z ]+)", rows[-2][2])}
    assert [kinds[kind] for kind in (deduplication.DATA, deduplication.TRANSACTIONAL_DATA)] == [
        "data outside of transactions",
        "data of a transaction",
    ]
    assert kinds[deduplication.ABORT_MARKER] == "abort marker"
    assert kinds[deduplication.COMMIT_MARKER] == "commit marker"
    assert f"the last {deduplication.KEPT_BATCHES} batches" in text
    assert f"at most {MAX_PRODUCER_BATCHES:,} batches" in text
    assert (deduplication.EXPIRATION_MS, deduplication.MAX_PRODUCER_PAUSE_MS) == (86_400_000, 3_600_000)


def test_a_checkpoint_has_the_columns_and_members_of_the_tables(topic: distlog.Topic) -> None:
    numbers = dict.fromkeys(("log_floor", "former_retention_ms", "former_retention_version", "replaced_ms"), 1)
    ids, requires = (topic.snapshot.topic_id,), Requires(writer=("a-feature",))
    snapshot = dataclasses.replace(topic.snapshot, **numbers, former_ids=ids, requires=requires)
    data = pa.input_stream(io.BytesIO(checkpoint.encode(snapshot)), compression="zstd").read()
    state = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    columns = table(PAGE, "## Checkpoints")
    assert names(columns) == list(state["columns"])
    assert names(columns[2:], 1) == deduplication.PRODUCER_SCHEMA.names
    assert list(state["columns"]["segments"]) == list(fields.checks(SegmentInfo))
    assert names(columns[1:2], 1) == list(state["columns"]["transactions"])
    rows = {names([row])[0]: names([row], 1) for row in table(PAGE, "## Checkpoints", 1)}
    assert list(rows) == list(state)
    assert rows["partitions"] == list(state["partitions"][0])
    assert rows["active"] == list(state["active"][0])
    assert f"{checkpoint.BYTES_PER_BYTE} times its size and {checkpoint.MIN_SIZE_LIMIT // MEBIBYTE} MiB" in PAGE
    assert f"each {CHECKPOINT_COMMITS} commits or {CHECKPOINT_BYTES // MEBIBYTE} MiB" in " ".join(PAGE.split())


def test_the_page_of_a_lock_is_as_the_tables_say(topic: distlog.Topic) -> None:
    rows = table(PAGE, "## The state page")
    assert [int(row[0]) for row in rows[2:4]] == [1024, 2048]
    assert {int(row[1]) for row in rows[2:4]} == {locks_and_pages.SLOT_BYTES}
    assert int(rows[-1][0]) + int(rows[-1][1]) <= locks_and_pages.PAGE_BYTES == PAGE_BYTES
    assert int(rows[-1][1]) == 8 * locks_and_pages.COUNTER_COUNT
    assert int(rows[-1][0]) == int(rows[-2][0]) + int(rows[-2][1])
    page = Path(topic.storage.local_path(f"{paths.partition_dir(topic.name, 0)}/{paths.LOCK_FILE}")).read_bytes()
    assert page.startswith(re.findall(r"`(\w+)`", rows[0][2])[0].encode())
    assert page[int(rows[4][0]) :][: int(rows[4][1])] == locks_and_pages.boot_id()
    record = StateRecord.unpack(locks_and_pages.read_newest(lambda: page))
    assert record is not None
    assert record.topic_id == topic.snapshot.topic_id


def test_the_value_of_a_lock_is_as_the_tables_say() -> None:
    rows = table(PAGE, "## The state page", 1)
    ranges = [(int(row[0]), int(row[1])) for row in rows]
    assert ranges == [(sum(size for _, size in ranges[:number]), size) for number, (_, size) in enumerate(ranges)]
    assert sum(ranges[-1]) == RECORD_BYTES
    assert [size for _, size in ranges[-2:]] == [STATE_BYTES, len(NO_POINT)]
    packed = packed_header("00000000-0000-0000-0000-000000000001", PageStatus.ACTIVE)
    assert rows[0][2] == f"version, {packed[0]}"
    assert re.findall(r"(\d) (\w+)", rows[1][2]) == [(str(int(page)), page.name.lower()) for page in PageStatus]
    assert packed[ranges[3][0] :][: ranges[3][1]] == bytes(15) + b"\x01"
    assert len(SegmentState.new(f"v{0:020}-{'0' * 32}", 0, 0).pack()) == 56 + 8 * len(NAMES)
    listed = section(PAGE, "## The state page").split("in this order:", 1)[1].split("`.flush`")[0]
    assert re.findall(r"`(\w+)`", listed) == list(NAMES)


def test_a_group_has_the_members_of_the_table(topic: distlog.Topic) -> None:
    folder = paths.group_folder(topic.snapshot.topic_id, "billing")
    newest = max(file.name for file in topic.storage.list(folder))
    rows = {names([row])[0]: names([row], 1) for row in table(PAGE, "## Consumer groups")}
    assert list(rows) == list(json.loads(topic.storage.read(newest)))
    assert rows["members"] == list(fields.checks(Member))


def test_the_put_of_a_group_follows_the_page() -> None:
    text = section(PAGE, "## Consumer groups")
    assert f"no version that is {RETAINED_VERSIONS - 1} or more" in " ".join(text.split())
    assert f"a version exists that is {RETAINED_VERSIONS} or more above it" in " ".join(text.split())
    assert f"when there are {RETAINED_VERSIONS} or more" in " ".join(text.split())
    assert paths.group_folder("id", ".a b/\u00e9").removeprefix("_groups/id/") == "~2ea~20b~2f~c3~a9"


def test_the_remembered_batches_match_the_page() -> None:
    text = " ".join(section(PAGE, "### The fold").split())
    assert KEPT_ORDERED_BATCHES == 10
    assert "last ten numbers" in text
    assert f"the batches of the last {KEPT_MS // MAX_PAUSE_MS} days" in text
    assert "counts as one day at most" in text
    assert f"is at most {MAX_PARTITIONS:,}" in text


def test_checksums_cover_what_the_table_says(topic: distlog.Topic) -> None:
    assert crc32c(b"123456789") == int(re.findall(r"`123456789` is (\d+)", PAGE)[0])
    newest = max(file.name for file in topic.storage.list(paths.group_folder(topic.snapshot.topic_id, "billing")))
    for name in (paths.commit_file(0), paths.commit_file(topic.version), newest):
        body, _, remainder = topic.storage.read(name).rpartition(b',"crc32c":')
        assert remainder == b"%d}\n" % crc32c(body)
    segment = topic.snapshot.partitions[1].segments[0]
    bundle = topic.storage.read(paths.bundle_file(segment.stem))
    log = bundle[segment.log_position :][: segment.log_bytes]
    index = bundle[segment.time_index_position :][: segment.time_index_bytes]
    assert (crc32c(log), crc32c(index)) == (segment.crc32c, segment.time_index_crc32c)
    (header,) = record_batch.HEADER.iter_unpack(log[: record_batch.HEADER_SIZE])
    assert header[4] == crc32c(log[21:])
    snapshot = write_producer_snapshot(np.zeros(2, PRODUCER_ENTRY))
    assert int.from_bytes(snapshot[2:6], "big") == crc32c(snapshot[6:])
    folder = Path(topic.storage.local_path(paths.partition_dir(topic.name, 0)))
    page = (folder / paths.LOCK_FILE).read_bytes()
    value = locks_and_pages.read_newest(lambda: page)
    assert value is not None
    (slot, *_) = (page[number:] for number in (1024, 2048) if page[number + 16 :].startswith(value))
    assert int.from_bytes(slot[12:16], "little") == crc32c(value, crc32c(slot[:12]))
