"""Topics made of log files that are given: what a real broker wrote, or bytes that a test put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any

from commits import put_commit
from described_segment import describe_segment
from golden import GoldenPartition

import distlog
from distlog import Topic
from distlog.core import paths
from distlog.core.arrays import MAX_INT
from distlog.core.commits.actions import Action, Add, Remove, SetLogStartOffset
from distlog.core.commits.segment_table import UNDETERMINED_OFFSET, UNKNOWN, SegmentInfo
from distlog.core.format.record_batch import read_headers
from distlog.core.kafka.partition_folder import CLEAN_SHUTDOWN_FILE
from distlog.core.segments.producer_states import OpenTransactions
from distlog.core.segments.segment_parts import INDEX_FIELDS, index_fields_of
from distlog.core.segments.segment_state import LogDescription

Rows = list[dict[str, Any]]
Files = Mapping[str, bytes]


def describe(
    files: Files, base_offset: int, next_offset: int, transactions: OpenTransactions | None = None, **changes: Any
) -> SegmentInfo:
    """Describe a segment whose files, by suffix, hold absolute offsets.

    `transactions` has walked all earlier segments; without it the stable offset is unknown.
    """
    log = files[".log"]
    segment, _ = describe_segment(
        log, base_offset, partition=0, stem=f"{base_offset:020d}", created_ms=0, interval_bytes=MAX_INT
    )
    fields: dict[str, Any] = {
        "next_offset": next_offset,
        **index_fields_of({suffix: files.get(suffix, b"") for suffix in INDEX_FIELDS}),
    }
    if transactions is not None:
        transactions.observe(log, read_headers(log))
        fields["first_unstable_offset"] = transactions.first_offset
    return dataclasses.replace(segment, **{**fields, **changes})


def with_indexes(log: bytes, base_offset: int, interval_bytes: int = 0) -> dict[str, bytes]:
    description = LogDescription(base_offset, interval_bytes=interval_bytes)
    description.add(log, read_headers(log))
    return {".log": log, **description.finish()}


def put(topic: Topic, segment: SegmentInfo, files: Files) -> None:
    """Write (or overwrite) the files of `segment`; an empty index is not written."""
    for suffix, data in files.items():
        if data or suffix == ".log":
            topic.storage.put(paths.segment_file(topic.name, segment.partition, segment.stem, suffix), data)


def commit(topic: Topic, segments: Sequence[SegmentInfo], log_start_offset: int | None = None) -> Topic:
    """Add `segments` at the end of the partition; the first of all may begin above 0."""
    is_above = segments[0].base_offset > topic.end_offsets()[0]
    moved = [SetLogStartOffset(0, segments[0].base_offset)] if is_above else []
    later = [SetLogStartOffset(0, log_start_offset)] if log_start_offset else []
    _, snapshot = put_commit(topic.log, topic.snapshot, "import", lambda _: [*moved, *map(Add, segments), *later])
    topic.advance(snapshot)
    return topic


def adopt(
    url: str,
    segments: Sequence[tuple[int, Files]],
    next_offset: int,
    *,
    log_start_offset: int | None = None,
    **options: Any,
) -> Topic:
    """A topic at `url` whose partition 0 is `segments`, each a base offset and its files by suffix."""
    topic = distlog.create(url, **options)
    ends = [base_offset for base_offset, _ in segments[1:]]
    infos = []
    transactions = OpenTransactions()
    for (base_offset, files), end in zip_longest(segments, ends, fillvalue=next_offset):
        infos.append(describe(files, base_offset, end, transactions))
        put(topic, infos[-1], files)
    return commit(topic, infos, log_start_offset)


def adopt_golden(url: str, partition: GoldenPartition, **options: Any) -> Topic:
    """A topic whose partition 0 is a copy of the files of a partition that a broker wrote."""
    name, _, number = partition.folder.name.rpartition("-")
    if number == "0":
        return distlog.adopt(partition.folder, url, **options).topic
    with TemporaryDirectory() as log_dir:
        (Path(log_dir) / CLEAN_SHUTDOWN_FILE).touch()
        return distlog.adopt(copytree(partition.folder, f"{log_dir}/{name}-0"), url, **options).topic


def forget_fields(topic: Topic) -> Topic:
    """The topic as an older library would have described it: without fields that identify its files."""
    names = [fields.checksum for fields in INDEX_FIELDS.values()]
    unknown: dict[str, Any] = {
        **dict.fromkeys([*names, "first_batch_crc", "last_batch_crc", "min_timestamp"], UNKNOWN)
    }
    unknown["first_unstable_offset"] = UNDETERMINED_OFFSET
    segments = [segment for state in topic.snapshot.partitions for segment in state.segments]
    removed: list[Action] = [Remove(segment.partition, segment.stem) for segment in segments]
    added = [Add(dataclasses.replace(segment, **unknown)) for segment in segments]
    _, snapshot = put_commit(topic.log, topic.snapshot, "rebuild", lambda _: [*removed, *added])
    topic.advance(snapshot)
    return topic


def rows(records: Any) -> Rows:
    """A table or batch of all columns in the shape of `GoldenPartition.records`."""
    index = records.schema.get_field_index("timestamp")
    table = records.set_column(index, "timestamp", records["timestamp"].cast("int64"))
    return table.drop_columns(["partition"]).to_pylist()


def offsets(records: Any) -> list[int]:
    return records["offset"].to_pylist()
