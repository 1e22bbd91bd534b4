"""Export: a topic as the log directory of a Kafka broker, which the broker opens as its own.

Exporting again adds what is new. The broker must not run meanwhile, nor write between two exports. A topic's settings
are not in a log directory: make the topic in Kafka first, with its settings, and stop the broker; the export then
keeps the topic id that Kafka gave it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distlog.core import paths
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.display.shown import Shown
from distlog.core.display.units import counted
from distlog.core.kafka_directory.broker_lock import without_broker
from distlog.core.kafka_directory.checkpoint_files import (
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_offsets,
    write_offsets,
)
from distlog.core.kafka_directory.directory_names import PartitionName
from distlog.core.kafka_directory.export_folder import refuse_other_topic
from distlog.core.kafka_directory.exported_partition import ExportedPartition, export_partition
from distlog.core.kafka_directory.log_dir import refuse_topic
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import TopicHandle

_COLUMNS = ("partition", "log_start_offset", "log_end_offset", "segments", "segments_written", "bytes_written")


@dataclass(frozen=True, slots=True, repr=False)
class ExportReport(Shown):
    """What is in the log directory `log_dir` after an export, and what that export wrote."""

    log_dir: str
    partitions: tuple[ExportedPartition, ...]

    def __str__(self) -> str:
        size = sum(each.bytes_written for each in self.partitions)
        segments = sum(each.segments_written for each in self.partitions)
        whole = counted(len(self.partitions), "partition")
        head = f"exported {whole} to {self.log_dir}: wrote {counted(segments, 'segment')}, {counted(size, 'byte')}"
        return "\n".join([head, *self.notes])

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each partition with an open transaction, which a broker cannot end."""
        return tuple(
            f"partition {each.partition}: a transaction is open from offset {each.last_stable_offset} on, where "
            "consumers of committed records will stop: end it, and export again"
            for each in self.partitions
            if each.last_stable_offset < each.log_end_offset
        )

    def to_table(self) -> pa.Table:
        """A row per partition."""
        return pa.Table.from_pylist(self._rows(), pa.schema([(name, pa.int64()) for name in _COLUMNS]))

    def to_dict(self) -> dict[str, Any]:
        """The log directory, the rows of the table, and the notes."""
        return {"log_dir": self.log_dir, "partitions": self._rows(), "notes": list(self.notes)}

    def _rows(self) -> list[dict[str, int]]:
        return [{name: getattr(each, name) for name in _COLUMNS} for each in self.partitions]


def export_topic(
    handle: TopicHandle, snapshot: Snapshot, log_dir: str | os.PathLike[str], partitions: Iterable[int]
) -> ExportReport:
    """Write `partitions` of the topic into the local folder `log_dir`, beside what else is there.

    Raises StorageError where a broker is running or has written, InvalidTopicError for the folder of a topic,
    TopicExistsError for another topic of this name, CorruptionError for a damaged segment.
    """
    target = Storage(os.path.realpath(Storage(log_dir).local_path("")))
    if os.path.isdir(target.url):
        refuse_topic(target, target.list_folders())
    with without_broker(target, alone=True):
        chosen = sorted(set(partitions))
        for number in chosen:
            refuse_other_topic(target.child(paths.partition_dir(snapshot.name, number)), snapshot.topic_id)
        exported = [export_partition(handle, snapshot, number, target) for number in chosen]
        _write_checkpoints(target, snapshot.name, exported)
    return ExportReport(target.url, tuple(exported))


def _write_checkpoints(target: Storage, topic: str, exported: list[ExportedPartition]) -> None:
    """Bring the log directory's checkpoints up to date; those of other partitions stay as they are."""
    ends = {each.partition: each.log_end_offset for each in exported}
    starts = {
        each.partition: each.log_start_offset if each.log_start_offset > each.first_base_offset else None
        for each in exported
    }
    cleaned = {
        each.partition: each.first_dirty_offset if each.first_dirty_offset > each.log_start_offset else None
        for each in exported
    }
    _merge(target, RECOVERY_POINTS, topic, ends)
    _merge(target, HIGH_WATERMARKS, topic, ends)
    _merge(target, LOG_START_OFFSETS, topic, starts)
    _merge(target, FIRST_DIRTY_OFFSETS, topic, cleaned)


def _merge(target: Storage, name: str, topic: str, offsets: Mapping[int, int | None]) -> None:
    """Set the offsets of the topic's partitions in a checkpoint file; None takes a partition out."""
    before = dict[PartitionName, int]()
    with suppress(FileNotFoundError):
        before = read_offsets(target.read(name), file=target.local_path(name))
    known = dict(before)
    for partition, offset in offsets.items():
        known.pop(PartitionName(topic, partition), None)
        if offset is not None:
            known[PartitionName(topic, partition)] = offset
    if known != before:
        target.put(name, write_offsets(known))
