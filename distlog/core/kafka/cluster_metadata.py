"""The settings of topics by a KRaft cluster's own metadata, `__cluster_metadata-0` in a log directory."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import byte_array
from distlog.core.config import TopicConfig, settings
from distlog.core.display import short_text
from distlog.core.errors import CorruptRecordError, DistlogError, InvalidConfigError
from distlog.core.format.kernels.batch_scan import CODEC_MASK
from distlog.core.format.record_batch import (
    CONTROL,
    HEADER_SIZE,
    LOG_OVERHEAD,
    Batches,
    BatchWalk,
    check_crcs,
    read_headers,
    size_of_first,
)
from distlog.core.format.record_decoder import decode
from distlog.core.integers import MAX_LONG
from distlog.core.kafka.partition_folder import CLUSTER_METADATA, PartitionFolder, SourceLog, log_walk
from distlog.core.read.consumer_offsets import FieldReader
from distlog.core.segments.producer_states import control_type


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The settings of a cluster's topics; `progress`, leader epoch and end offset, orders replicas."""

    cluster_id: str | None
    topics: Mapping[str, Mapping[uuid.UUID, Mapping[str, str]]] = field(default_factory=dict)
    progress: tuple[int, int] = (-1, -1)
    notes: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        return self.progress[1] >= 0

    def settings(self, topic: str, topic_ids: Collection[uuid.UUID]) -> Mapping[str, str] | None:
        """Return the settings of the topic with an id in `topic_ids`, or any id if empty; None if it is missing."""
        candidates = self.topics.get(topic, {})
        return next((values for key, values in candidates.items() if not topic_ids or key in topic_ids), None)


# A value is a frame: its version (1), the kind of the record and the record's version as unsigned varints, and then
# the record's fields, flexible (KIP-482). Null resets a setting. Records of a transaction (KIP-868) apply at its end.
_FRAME, _VERSION = 1, 0
_TOPIC, _SETTING, _REMOVED_TOPIC, _BEGIN, _END, _ABORT = 2, 4, 9, 23, 24, 25
#: The resource type of topics in settings; other types are brokers and clients.
_OF_TOPIC = 2
#: The first two bytes of the values that are read.
_HEADS = [bytes([_FRAME, kind]) for kind in (_TOPIC, _SETTING, _REMOVED_TOPIC, _BEGIN, _END, _ABORT)]
#: Limits of reading and storing: a cluster's metadata fits into the memory of its brokers.
_MOST_BYTES, _MOST_VALUES, _MOST_VALUE_BYTES = 1 << 30, 1_000_000, 256 << 20
#: The limit of a topic's settings; Kafka's have some hundred bytes, and lists of throttled replicas up to 32 KiB.
_MOST_TOPIC_BYTES = 256 << 10
#: The limit of a record.
_MOST_RECORD_BYTES = 64 << 10
#: The limit of a batch: Kafka's have at most 8 MiB (`KafkaRaftClient`).
_MOST_BATCH_BYTES = 16 << 20


@dataclass(slots=True)
class _Image:
    """The topics of a cluster and their settings after the records up to `end_offset`."""

    end_offset: int = 0
    names: dict[uuid.UUID, str] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    _waiting: list[bytes] | None = None
    _count: int = 0
    _bytes: int = 0

    def add(self, value: bytes) -> None:
        """Apply the next record. Raises CorruptRecordError, also for a record of a newer version."""
        reader = FieldReader(value, "a record", CLUSTER_METADATA)
        reader.is_flexible = True
        _, kind, version = reader.varint(), reader.varint(), reader.varint()
        if version != _VERSION:
            text = f"a record of {CLUSTER_METADATA} has an unknown version: a newer Kafka wrote it"
            raise CorruptRecordError(text, kind=kind, version=version)
        if kind == _BEGIN:
            self._waiting = []
        elif kind == _ABORT:
            self._waiting = None
        elif kind == _END:
            waiting, self._waiting = self._waiting or [], None
            for record in waiting:
                self.add(record)
        elif self._waiting is not None:
            self._count_value(len(value))
            self._waiting.append(value)
        else:
            self._apply(kind, reader)
            reader.skip_tags()
            reader.finish()

    def _apply(self, kind: int, reader: FieldReader) -> None:
        if kind == _TOPIC:
            name = reader.text()
            self._count_value(len(name))
            self.names[uuid.UUID(bytes=reader.read(16))] = name
        elif kind == _REMOVED_TOPIC:
            self.settings.pop(self.names.pop(uuid.UUID(bytes=reader.read(16)), ""), None)
        else:
            resource, name, setting, value = reader.number(">b"), reader.text(), reader.text(), reader.nullable_text()
            if resource != _OF_TOPIC:
                return
            if value is None:
                self.settings.get(name, {}).pop(setting, None)
            else:
                self._count_value(len(name) + len(setting) + len(value))
                self.settings.setdefault(name, {})[setting] = value

    def _count_value(self, size: int) -> None:
        self._count += 1
        self._bytes += size
        if self._count > _MOST_VALUES or self._bytes > _MOST_VALUE_BYTES:
            text = f"{CLUSTER_METADATA} has more topics and settings than can be"
            raise CorruptRecordError(text, most=_MOST_VALUES)

    def check_settings(self) -> None:
        """Raise CorruptRecordError for a topic with too many settings for a report."""
        for name, topic_settings in self.settings.items():
            if sum(len(setting) + len(value) for setting, value in topic_settings.items()) > _MOST_TOPIC_BYTES:
                text = "a topic has larger settings than can be"
                raise CorruptRecordError(text, topic=short_text(name), most=_MOST_TOPIC_BYTES)

    def add_batches(self, batches: Batches, file: str) -> None:
        rows = batches.rows
        ends = rows["base_offset"] + rows["last_offset_delta"] + 1
        rows, ends = rows[ends > self.end_offset], ends[ends > self.end_offset]
        if not len(rows):
            return
        if rows["base_offset"][0] > self.end_offset or (rows["base_offset"][1:] != ends[:-1]).any():
            raise _missing(file, self.end_offset)
        rows = rows[(rows["attributes"] & CONTROL == 0) & (rows["record_count"] > 0)]
        # Kafka never compresses metadata (`BatchAccumulator`, `RecordsSnapshotWriter`), so the file's size bounds the
        # size of the records
        if (rows["attributes"] & CODEC_MASK).any():
            raise CorruptRecordError("a batch is compressed, and batches of metadata never are", file=file)
        if (rows["size"] > _MOST_BATCH_BYTES).any():
            raise CorruptRecordError(
                "a batch is larger than one of metadata can be", file=file, most=_MOST_BATCH_BYTES
            )
        for value in _relevant_records(batches.data, rows, file, self.end_offset):
            self.add(value)
        self.end_offset = int(ends[-1])


def _relevant_records(data: Any, rows: np.ndarray, file: str, start_offset: int) -> Iterator[bytes]:
    """Yield the values of relevant records, without making Python objects of other records."""
    values = decode(data, rows, columns=("value",), start_offset=start_offset, file=file).column("value")
    is_framed = pc.and_(
        pc.equal(pc.binary_slice(values, 0, 1), bytes([_FRAME])), pc.greater(pc.binary_length(values), 2)
    )
    if not pc.all(pc.fill_null(is_framed, False), min_count=0).as_py():
        raise CorruptRecordError(f"not a record of {CLUSTER_METADATA}: it has no known frame", file=file)
    relevant = values.filter(pc.is_in(pc.binary_slice(values, 0, 2), value_set=pa.array(_HEADS)))
    if (pc.max(pc.binary_length(relevant)).as_py() or 0) > _MOST_RECORD_BYTES:
        raise CorruptRecordError("a record is larger than one of metadata can be", file=file, most=_MOST_RECORD_BYTES)
    yield from relevant.to_pylist()


_SNAPSHOT = re.compile(r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint")
_SNAPSHOT_FOOTER = 4
#: The format of all batches of metadata, and its position in a batch.
_MAGIC, _MAGIC_AT = 2, 16
#: How many bytes are searched at once for batches, and how many bytes of candidates are compared at most.
_SEARCHED_BYTES, _MOST_COMPARED_BYTES = 4 << 20, 64 << 20


def most_complete(replicas: Iterable[ClusterMetadata]) -> list[ClusterMetadata]:
    """Return the most complete metadata per cluster, with the notes on all of its replicas."""
    clusters = dict[str | None, list[ClusterMetadata]]()
    for replica in replicas:
        clusters.setdefault(replica.cluster_id, []).append(replica)
    return [
        replace(max(copies, key=attrgetter("progress")), notes=tuple(note for copy in copies for note in copy.notes))
        for copies in clusters.values()
    ]


def taken_settings(
    clusters: Sequence[ClusterMetadata], topic: str, topic_ids: Collection[uuid.UUID], overrides: Mapping[str, object]
) -> ImportedSettings:
    """Return the settings of a topic by its cluster's metadata; `overrides` take precedence."""
    notes = [note for cluster in clusters for note in cluster.notes]
    if len(clusters) > 1 and not topic_ids:
        text = "there is metadata of several clusters, and the topic has no id that selects one"
        return ImportedSettings.of({}, overrides, (*notes, f"{text}: its settings are not known"))
    settings = [
        (cluster, values) for cluster in clusters if (values := cluster.settings(topic, topic_ids)) is not None
    ]
    if any(values != settings[0][1] for _, values in settings):
        text = "several clusters have this topic, with different settings: its settings are not known"
        return ImportedSettings.of({}, overrides, (*notes, text))
    if settings:
        cluster, values = settings[0]
        return ImportedSettings.of(values, overrides, cluster.notes)
    if any(cluster.is_known for cluster in clusters):
        notes.append("the cluster's metadata does not have this topic: its settings are not known")
    return ImportedSettings.of({}, overrides, notes)


def read_cluster_metadata(folder: PartitionFolder, cluster_id: str | None, *, is_clean: bool) -> ClusterMetadata:
    """Read the metadata in the folder. Damage leaves the settings unknown, except a torn write after a crash."""
    notes = list[str]()
    try:
        names = [name for name in folder.names if name.endswith((".log", ".checkpoint"))]
        folder.check_files(names)
        size = sum(map(folder.size, names))
        if size > _MOST_BYTES:
            raise CorruptRecordError("the files are larger than metadata can be", bytes=size, most=_MOST_BYTES)
        image, epoch = _snapshot(folder, notes)
        epoch = max(epoch, _log(folder, image, notes, is_clean=is_clean))
        # a snapshot, even an incomplete one, may have later records than were read
        for offset, _, file in _snapshots(folder)[:1]:
            if offset > image.end_offset:
                raise _missing(folder.path(file), image.end_offset)
        image.check_settings()
    except Exception as error:
        # the topics are imported even if these files are damaged
        shown = error if isinstance(error, DistlogError) else f"{type(error).__name__}: {error}"
        text = f"settings are not taken from {CLUSTER_METADATA}, which is damaged: {shown}"
        return ClusterMetadata(cluster_id, notes=(*notes, text))
    topics = dict[str, dict[uuid.UUID, Mapping[str, str]]]()
    for topic_id, name in image.names.items():
        topics.setdefault(name, {})[topic_id] = image.settings.get(name, {})
    return ClusterMetadata(cluster_id, topics, (epoch, image.end_offset), tuple(notes))


def _snapshots(folder: PartitionFolder) -> list[tuple[int, int, str]]:
    """Return the offset, leader epoch and name of snapshots, even incomplete ones, the newest first."""
    matches = (match for name in folder.names if (match := _SNAPSHOT.fullmatch(name)))
    return sorted(((int(m["offset"]), int(m["epoch"]), m[0]) for m in matches), reverse=True)


def _snapshot(folder: PartitionFolder, notes: list[str]) -> tuple[_Image, int]:
    """Return the newest complete snapshot, and its leader epoch; an empty image without one."""
    for offset, epoch, name in _snapshots(folder):
        image, last = _Image(), -1
        try:
            walk = _walk(folder, name)
            for batches in walk:
                image.add_batches(batches, walk.file)
                last = control_type(batches.data, batches.rows[-1])
            if walk.damage is not None or last != _SNAPSHOT_FOOTER or offset > MAX_LONG:
                raise walk.damage or CorruptRecordError("the snapshot does not end", file=walk.file)
        except CorruptRecordError as error:
            notes.append(f"{CLUSTER_METADATA}: an older snapshot is used: {error}")
        else:
            image.end_offset = offset
            return image, epoch
    return _Image(), -1


def _log(folder: PartitionFolder, image: _Image, notes: list[str], *, is_clean: bool) -> int:
    """Apply the log after the image; returns the leader epoch of its last batch, -1 without a batch."""
    segments, epoch = folder.loaded.segments, -1
    if not segments:
        # a broker always has a log, which may be empty after its snapshot
        raise CorruptRecordError("its log is missing", file=folder.path(""))
    for base, following in zip(segments, [*list(segments)[1:], None], strict=True):
        if following is not None and following <= image.end_offset:
            continue
        name = segments[base][".log"]
        if base > image.end_offset:
            raise _missing(folder.path(name), image.end_offset)
        walk = _walk(folder, name)
        for batches in walk:
            image.add_batches(batches, walk.file)
            epoch = int(batches.rows["leader_epoch"][-1])
        if walk.damage is None:
            continue
        if is_clean or following is not None or _has_later_batch(folder.log(name), walk.position):
            raise walk.damage
        notes.append(f"{CLUSTER_METADATA}: cut from position {walk.position}: {walk.damage.message}")
    return epoch


def _missing(file: str, from_offset: int) -> CorruptRecordError:
    return CorruptRecordError("metadata is missing", file=file, from_offset=from_offset)


def _has_later_batch(log: SourceLog, position: int) -> bool:
    """Return whether a complete batch may follow the damage at `position`, which is then not a torn write."""
    data_after, compared_bytes = log[position + 1 : len(log)], 0
    data = byte_array(data_after)
    for start in range(0, data.size, _SEARCHED_BYTES):
        magics = data[start + _MAGIC_AT : start + _MAGIC_AT + _SEARCHED_BYTES]
        for position_after in (start + np.flatnonzero(magics == _MAGIC)).tolist():
            size = size_of_first(data_after[position_after : position_after + LOG_OVERHEAD])
            if not HEADER_SIZE <= size <= data.size - position_after:
                continue
            compared_bytes += size
            if compared_bytes > _MOST_COMPARED_BYTES or _is_batch(data_after[position_after : position_after + size]):
                return True
    return False


def _is_batch(data: memoryview) -> bool:
    with suppress(CorruptRecordError):
        rows = read_headers(data)
        check_crcs(data, rows)
        return len(rows) > 0
    return False


def _walk(folder: PartitionFolder, name: str) -> BatchWalk:
    return log_walk(folder.log(name), checked=True, file=folder.path(name))


#: Without `retention.ms` nothing is deleted: a topic must not lose records because its settings are unknown.
_KEEP_ALL = {"retention.ms": "-1"}
_POLICY = "cleanup.policy"
#: Settings that delete records under a policy other than the topic's.
_DELETING = ("retention.bytes", "retention.ms")
#: Settings that have other reasons in a broker's topics, and their effect here.
_OTHERWISE = {
    "flush.messages": "acknowledged records could be lost, since there are no replicas",
    "file.delete.delay.ms": "readers of an older version need removed files for longer",
}


@dataclass(frozen=True, slots=True)
class ImportedSettings:
    """The settings of an imported topic; `values` are the broker's. `notes` has the skipped settings and reasons."""

    config: TopicConfig
    values: Mapping[str, str]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, broker: Mapping[str, str], overrides: Mapping[str, object], notes: Sequence[str] = ()
    ) -> ImportedSettings:
        """Merge the `broker`'s valid settings with `overrides`; without retention if the policy is invalid."""
        names = {setting.name for setting in settings()}
        valid, left_out, is_policy_refused = dict[str, str](), list[str](), False
        # the policy sorts before the settings that it rules
        for name, value in sorted(broker.items()):
            if name in overrides:
                continue
            shown = f"{short_text(name)}={short_text(value)}"
            if name not in names:
                left_out.append(f"left out {shown}, which distlog does not have")
            elif name in _OTHERWISE:
                left_out.append(f"left out {shown}: {_OTHERWISE[name]}; set it explicitly if that is intended")
            elif name in _DELETING and is_policy_refused:
                left_out.append(f"left out {shown}: without the topic's cleanup.policy it could delete kept records")
            else:
                # spaces and repetitions in a list mean nothing to Kafka
                text = (
                    ",".join(dict.fromkeys(item.strip() for item in value.split(","))) if name == _POLICY else value
                )
                try:
                    # in distlog's form: Kafka's text may have spaces
                    valid[name] = TopicConfig.parse({**_KEEP_ALL, **valid, name: text}).overrides()[name]
                except InvalidConfigError as error:
                    left_out.append(f"left out {shown}: {error.message}")
                    is_policy_refused |= name == _POLICY
        config = TopicConfig.parse({**_KEEP_ALL, **valid, **overrides})
        return cls(config, valid, (*notes, *left_out))
