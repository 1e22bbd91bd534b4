"""docs/formats.md, and the tables of formats in the README, cannot drift: they say what the code writes."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from dataclasses import MISSING
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
from docs_pages import read, section, table

import distlog
from distlog.core import paths
from distlog.core.batches import record_batch
from distlog.core.buffers import PAGE_BYTES
from distlog.core.commits.checkpoints import checkpoint_format
from distlog.core.commits.commit_log import CHECKPOINT_BYTES, CHECKPOINT_COMMITS
from distlog.core.commits.format import action_columns, bundle_parts, features, fields
from distlog.core.commits.format.action_json import write_items
from distlog.core.commits.format.actions import Action, Add, Manifest, UnknownAction
from distlog.core.commits.format.commit import Commit
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.groups.group_state import Member
from distlog.core.indexes.offset_index import ENTRY as OFFSET_ENTRY
from distlog.core.indexes.time_index import ENTRY as TIME_ENTRY
from distlog.core.indexes.transaction_index import ENTRY as TRANSACTION_ENTRY
from distlog.core.log.partition.state_record import NO_POINT, RECORD_BYTES, StateRecord, Status, head
from distlog.core.segments.bundles import LARGEST_BUNDLE, LARGEST_PART
from distlog.core.segments.segment_file import HELD_BYTES
from distlog.core.segments.segment_state import NAMES, STATE_BYTES, SegmentState
from distlog.core.storage.local import shared_page
from distlog.core.storage.objects.upload import SINGLE_PUT_BYTES
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES
from distlog.core.transactions.producer_snapshot import ENTRY as PRODUCER_ENTRY

PAGE, README = read("docs/formats.md"), read("README.md")
MEBIBYTE = 1 << 20
BOTH = pytest.mark.parametrize("text", [PAGE, README], ids=["page", "readme"])
NUMPY = {">i8": "int64", ">i4": "int32", ">i2": "int16"}


def names(rows: Iterable[list[str]], column: int = 0) -> list[str]:
    """What stands as code in a column."""
    return [name for row in rows for name in re.findall(r"`([a-z0-9_-]+)`", row[column])]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> distlog.Topic:
    """A topic with a bundle, an application's batch, a group, and an active segment."""
    topic = distlog.create(f"{tmp_path_factory.mktemp('formats')}/clicks", partitions=2)
    topic.append([{"value": "v", "partition": number} for number in (0, 1)], app_id="load", batch_id=1)
    with topic.writer() as writer:
        writer.append(b"in place", partition=0)
    with topic.follow(group="billing", timeout=0) as follower:
        next(iter(follower))
        follower.commit()
    return topic.refresh()


@BOTH
def test_the_batch_header_is_as_the_table_says(text: str) -> None:
    types = {"q": "int64", "i": "int32", "b": "int8", "I": "uint32", "h": "int16"}
    sizes = {"int64": 8, "int32": 4, "int8": 1, "uint32": 4, "int16": 2}
    rows = table(text, "### Record batch (format 2)")
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


@BOTH
def test_the_index_entries_are_as_the_table_says(text: str) -> None:
    sizes = {row[0]: int(row[1]) for row in table(text, "### Indexes")}
    entries = {".index": OFFSET_ENTRY, ".timeindex": TIME_ENTRY, ".txnindex": TRANSACTION_ENTRY}
    assert sizes == {f"`{suffix}`": entry.itemsize for suffix, entry in entries.items()}


def test_the_entries_of_a_producer_snapshot_are_as_the_table_says() -> None:
    rows = [(row[0].strip("`"), row[1]) for row in table(PAGE, "### Producer snapshots")]
    entry: np.dtype[Any] = PRODUCER_ENTRY
    assert rows == [(name, NUMPY[kind]) for name, kind in entry.descr]


def test_the_places_and_limits_of_bundles_are_as_the_tables_say() -> None:
    assert names(table(PAGE, "## Bundles")) == [field for field, _ in bundle_parts.PARTS]
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
    assert f"more than {MAX_CONDITIONAL_BYTES // MEBIBYTE} MiB" in section(PAGE, "## Commits")


def test_the_actions_are_those_of_the_table() -> None:
    rows = {names([row])[0]: names([row], 1) for row in table(PAGE, "### Actions")}
    kinds = set(get_args(Action)) - {UnknownAction, Add}
    known = {next(iter(next(write_items([kind(*[None] * len(fields.checks(kind)))])))): kind for kind in kinds}
    assert rows.pop("add") == []
    assert rows == {name: list(fields.checks(kind)) for name, kind in known.items()}
    assert rows["manifest"] == list(fields.checks(Manifest))


def test_the_columns_of_differences_are_those_of_the_table(topic: distlog.Topic) -> None:
    steps, *relative = table(PAGE, "### Actions", 1)
    assert set(names([steps])) == action_columns.STEPS
    assert {names([row])[0]: names([row], 1)[0] for row in relative} == action_columns.RELATIVE
    assert f"more than {action_columns.MOST_ACTIONS:,} actions" in PAGE
    (body,) = json.loads(topic.storage.read(paths.commit_file(1)))["actions"][0].values()
    assert body["partition"] == [0, 1]
    assert body["stems"] == [topic.snapshot.partitions[0].segments[0].stem]


def test_a_segment_has_the_members_and_defaults_of_the_table(topic: distlog.Topic) -> None:
    specs = [SegmentInfo.__dataclass_fields__[name] for name in fields.checks(SegmentInfo)]
    expected = [[spec.name, "" if spec.default is MISSING else str(spec.default).lower()] for spec in specs]
    assert [[row[0].strip("`"), row[1]] for row in table(PAGE, "### A segment")] == expected
    (added,) = write_items([Add(topic.snapshot.partitions[0].segments[0])])
    assert list(added["add"]) == names(table(PAGE, "### A segment"))


def test_the_features_are_those_of_the_table() -> None:
    assert names(table(PAGE, "### Features")) == sorted(features.KNOWN)


def test_a_checkpoint_has_the_columns_and_members_of_the_tables(topic: distlog.Topic) -> None:
    file = pq.read_table(io.BytesIO(checkpoint_format.encode(topic.snapshot)))
    columns = table(PAGE, "## Checkpoints")
    assert names(columns) == file.schema.names
    assert [spec.name for spec in file.schema.field("segment").type] == [*fields.checks(SegmentInfo), "unknown"]
    assert names(columns[1:], 1) == [spec.name for spec in file.schema.field("transaction").type]
    state = json.loads(file.schema.metadata[b"distlog"])
    rows = {names([row])[0]: names([row], 1) for row in table(PAGE, "## Checkpoints", 1)}
    assert list(rows) == list(state)
    assert rows["partitions"] == list(state["partitions"][0])
    assert rows["active"] == list(state["active"][0])
    assert f"each {CHECKPOINT_COMMITS} commits or {CHECKPOINT_BYTES // MEBIBYTE} MiB" in " ".join(PAGE.split())


def test_the_page_of_a_lock_is_as_the_tables_say(topic: distlog.Topic) -> None:
    rows = table(PAGE, "## The state page")
    assert [int(row[0]) for row in rows[2:4]] == [1024, 2048]
    assert {int(row[1]) for row in rows[2:4]} == {shared_page.SLOT_BYTES}
    assert int(rows[-1][0]) + int(rows[-1][1]) <= shared_page.PAGE_BYTES == PAGE_BYTES
    assert int(rows[-1][1]) == 8 * shared_page.COUNTERS
    assert int(rows[-1][0]) == int(rows[-2][0]) + int(rows[-2][1])
    page = Path(topic.storage.local_path(f"{paths.partition_dir(topic.name, 0)}/{paths.LOCK_FILE}")).read_bytes()
    assert page.startswith(re.findall(r"`(\w+)`", rows[0][2])[0].encode())
    assert page[int(rows[4][0]) :][: int(rows[4][1])] == shared_page.boot_id()
    record = StateRecord.unpack(shared_page.read_newest(lambda: page))
    assert record is not None
    assert record.topic_id == topic.snapshot.topic_id


def test_the_value_of_a_lock_is_as_the_tables_say() -> None:
    rows = table(PAGE, "## The state page", 1)
    places = [(int(row[0]), int(row[1])) for row in rows]
    assert places == [(sum(size for _, size in places[:number]), size) for number, (_, size) in enumerate(places)]
    assert sum(places[-1]) == RECORD_BYTES
    assert [size for _, size in places[-2:]] == [STATE_BYTES, len(NO_POINT)]
    packed = head("00000000-0000-0000-0000-000000000001", Status.ACTIVE)
    assert rows[0][2] == f"version, {packed[0]}"
    assert re.findall(r"(\d) (\w+)", rows[1][2]) == [(str(int(one)), one.name.lower()) for one in Status]
    assert packed[places[3][0] :][: places[3][1]] == bytes(15) + b"\x01"
    assert len(SegmentState.new(f"v{0:020}-{'0' * 32}", 0, 0).pack()) == 56 + 8 * len(NAMES)
    listed = section(PAGE, "## The state page").split("in this order:", 1)[1].split("`.flush`")[0]
    assert re.findall(r"`(\w+)`", listed) == list(NAMES)


def test_a_group_has_the_members_of_the_table(topic: distlog.Topic) -> None:
    folder = paths.group_folder(topic.snapshot.topic_id, "billing")
    newest = max(file.name for file in topic.storage.list(folder))
    rows = {names([row])[0]: names([row], 1) for row in table(PAGE, "## Groups of followers")}
    assert list(rows) == list(json.loads(topic.storage.read(newest)))
    assert rows["members"] == list(fields.checks(Member))
