"""The settings of topics by a KRaft cluster's own metadata, `__cluster_metadata-0` in a log directory."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import byte_array
from distlog.core.batches.record_batch import CONTROL, HEADER_SIZE, LOG_OVERHEAD, check_crcs, read_headers
from distlog.core.batches.record_decoder import decode
from distlog.core.batches.walk import Batches, BatchWalk, size_of_first
from distlog.core.config import MAX_LONG, TopicConfig, settings
from distlog.core.consumer_offsets import FieldReader
from distlog.core.display import short_text
from distlog.core.errors import CorruptRecordError, DistlogError, InvalidConfigError
from distlog.core.kafka_directory.partition_folder import CLUSTER_METADATA, PartitionFolder
from distlog.core.kafka_directory.source_log import SourceLog, log_walk
from distlog.core.kernels.batch_scan import CODEC_MASK
from distlog.core.transactions.open_transactions import control_type

# A value is a frame: its version (1), the kind of the record and the record's version as unsigned varints, and then
# the record's fields, flexible (KIP-482). A topic's settings are one record each; null takes a setting back. Records
# between the begin and the end of a transaction (KIP-868) count from its end on.


_FRAME, _VERSION = 1, 0
_TOPIC, _SETTING, _REMOVED_TOPIC, _BEGIN, _END, _ABORT = 2, 4, 9, 23, 24, 25
#: Of settings, the ones of topics; others are of brokers and clients.
_OF_TOPIC = 2
#: The first two bytes of a value that is one of these records.
_HEADS = [bytes([_FRAME, kind]) for kind in (_TOPIC, _SETTING, _REMOVED_TOPIC, _BEGIN, _END, _ABORT)]
#: Bounds of what is read and kept: a cluster's metadata is held in the memory of each of its brokers.
_MOST_BYTES, _MOST_KEPT, _MOST_KEPT_BYTES = 1 << 30, 1_000_000, 256 << 20
#: Of the settings of one topic; Kafka's are of some hundred bytes, and lists of throttled replicas of up to 32 KiB.
_MOST_TOPIC_BYTES = 256 << 10
#: Of one record of these kinds.
_MOST_RECORD_BYTES = 64 << 10
#: Of one batch: Kafka's have at most 8 MiB (`KafkaRaftClient`).
_MOST_BATCH_BYTES = 16 << 20


@dataclass(slots=True)
class _Image:
    """The topics of a cluster and their settings after the records that were taken, up to `end_offset`."""

    end_offset: int = 0
    names: dict[uuid.UUID, str] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    _waiting: list[bytes] | None = None
    _kept: int = 0
    _kept_bytes: int = 0

    def take(self, value: bytes) -> None:
        """Take the next record. Raises CorruptRecordError, also where a newer version wrote it."""
        reader = FieldReader(value, "a record", CLUSTER_METADATA)
        reader.is_flexible = True
        _, kind, version = reader.varint(), reader.varint(), reader.varint()
        if version != _VERSION:
            text = f"a record of {CLUSTER_METADATA} is of a version that is not known here: a newer Kafka wrote it"
            raise CorruptRecordError(text, kind=kind, version=version)
        if kind == _BEGIN:
            self._waiting = []
        elif kind == _ABORT:
            self._waiting = None
        elif kind == _END:
            waiting, self._waiting = self._waiting or [], None
            for each in waiting:
                self.take(each)
        elif self._waiting is not None:
            self._count(len(value))
            self._waiting.append(value)
        else:
            self._apply(kind, reader)
            reader.skip_tags()
            reader.finish()

    def _apply(self, kind: int, reader: FieldReader) -> None:
        if kind == _TOPIC:
            name = reader.text()
            self._count(len(name))
            self.names[uuid.UUID(bytes=reader.taken(16))] = name
        elif kind == _REMOVED_TOPIC:
            self.settings.pop(self.names.pop(uuid.UUID(bytes=reader.taken(16)), ""), None)
        else:
            resource, name, setting, value = reader.number(">b"), reader.text(), reader.text(), reader.nullable_text()
            if resource != _OF_TOPIC:
                return
            if value is None:
                self.settings.get(name, {}).pop(setting, None)
            else:
                self._count(len(name) + len(setting) + len(value))
                self.settings.setdefault(name, {})[setting] = value

    def _count(self, size: int) -> None:
        self._kept += 1
        self._kept_bytes += size
        if self._kept > _MOST_KEPT or self._kept_bytes > _MOST_KEPT_BYTES:
            raise CorruptRecordError(f"{CLUSTER_METADATA} has more topics and settings than can be", most=_MOST_KEPT)

    def check_settings(self) -> None:
        """Raise CorruptRecordError for a topic with more settings than can be told in a report."""
        for name, own in self.settings.items():
            if sum(len(setting) + len(value) for setting, value in own.items()) > _MOST_TOPIC_BYTES:
                text = "a topic has larger settings than can be"
                raise CorruptRecordError(text, topic=short_text(name), most=_MOST_TOPIC_BYTES)

    def take_batches(self, batches: Batches, file: str) -> None:
        """Take the records of whole batches that are not below `end_offset`; the batches must follow each other."""
        rows = batches.rows
        ends = rows["base_offset"] + rows["last_offset_delta"] + 1
        rows, ends = rows[ends > self.end_offset], ends[ends > self.end_offset]
        if not len(rows):
            return
        if rows["base_offset"][0] > self.end_offset or (rows["base_offset"][1:] != ends[:-1]).any():
            raise _missing(file, self.end_offset)
        rows = rows[(rows["attributes"] & CONTROL == 0) & (rows["record_count"] > 0)]
        # Kafka never compresses metadata (`BatchAccumulator`, `RecordsSnapshotWriter`), so nothing is expanded: what
        # is read is bounded by the file's size.
        if (rows["attributes"] & CODEC_MASK).any():
            raise CorruptRecordError("a batch is compressed, and batches of metadata never are", file=file)
        if (rows["size"] > _MOST_BATCH_BYTES).any():
            raise CorruptRecordError(
                "a batch is larger than one of metadata can be", file=file, most=_MOST_BATCH_BYTES
            )
        for value in _known_records(batches.data, rows, file, self.end_offset):
            self.take(value)
        self.end_offset = int(ends[-1])


def _known_records(data: Any, rows: np.ndarray, file: str, start_offset: int) -> Iterator[bytes]:
    """The values of the records that count here: no Python object is made of the many others."""
    values = decode(data, rows, columns=("value",), start_offset=start_offset, file=file).column("value")
    is_framed = pc.and_(
        pc.equal(pc.binary_slice(values, 0, 1), bytes([_FRAME])), pc.greater(pc.binary_length(values), 2)
    )
    if not pc.all(pc.fill_null(is_framed, False), min_count=0).as_py():
        raise CorruptRecordError(f"not a record of {CLUSTER_METADATA}: it has no known frame", file=file)
    known = values.filter(pc.is_in(pc.binary_slice(values, 0, 2), value_set=pa.array(_HEADS)))
    if (pc.max(pc.binary_length(known)).as_py() or 0) > _MOST_RECORD_BYTES:
        raise CorruptRecordError("a record is larger than one of metadata can be", file=file, most=_MOST_RECORD_BYTES)
    yield from known.to_pylist()


_SNAPSHOT = re.compile(r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint")
_SNAPSHOT_FOOTER = 4
#: The format of all batches of metadata, and where a batch tells it.
_MAGIC, _MAGIC_AT = 2, 16
#: How much is searched at once for whole batches, and how many bytes of what looks like some are compared at most.
_SEARCHED_BYTES, _MOST_COMPARED_BYTES = 4 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The settings of a cluster's topics; `place`, leader epoch and end offset, tells the newest replica."""

    cluster_id: str | None

    topics: Mapping[str, Mapping[uuid.UUID, Mapping[str, str]]] = field(default_factory=dict)
    place: tuple[int, int] = (-1, -1)
    notes: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """True if the metadata was whole."""
        return self.place[1] >= 0

    def settings(self, topic: str, topic_ids: Collection[uuid.UUID]) -> Mapping[str, str] | None:
        """The settings of the topic with one of these ids, or of any id if none is given; None if it is not there."""
        found = self.topics.get(topic, {})
        return next((each for key, each in found.items() if not topic_ids or key in topic_ids), None)


def most_complete(replicas: Iterable[ClusterMetadata]) -> list[ClusterMetadata]:
    """Of each cluster the metadata that goes furthest, with the notes on all of its replicas."""
    clusters = dict[str | None, list[ClusterMetadata]]()
    for each in replicas:
        clusters.setdefault(each.cluster_id, []).append(each)
    return [
        replace(max(of_one, key=lambda each: each.place), notes=tuple(note for each in of_one for note in each.notes))
        for of_one in clusters.values()
    ]


def taken_settings(
    clusters: Sequence[ClusterMetadata], topic: str, topic_ids: Collection[uuid.UUID], given: Mapping[str, object]
) -> TakenSettings:
    """The settings for a topic by the metadata of the cluster that it is of; `given` ones take precedence."""
    notes = [note for cluster in clusters for note in cluster.notes]
    if len(clusters) > 1 and not topic_ids:
        text = "there is metadata of several clusters, and no id of the topic tells which one it is of"
        return TakenSettings.of({}, given, (*notes, f"{text}: its settings are not known"))
    settings = [(cluster, own) for cluster in clusters if (own := cluster.settings(topic, topic_ids)) is not None]
    if any(own != settings[0][1] for _, own in settings):
        text = "several clusters have this topic, with different settings: its settings are not known"
        return TakenSettings.of({}, given, (*notes, text))
    if settings:
        cluster, own = settings[0]
        return TakenSettings.of(own, given, cluster.notes)
    if any(cluster.is_known for cluster in clusters):
        notes.append("the cluster's metadata does not have this topic: its settings are not known")
    return TakenSettings.of({}, given, notes)


def read_cluster_metadata(folder: PartitionFolder, cluster_id: str | None, *, is_clean: bool) -> ClusterMetadata:
    """The metadata in the folder. Damage, but for a torn end after a crash, leaves the settings unknown."""
    notes = list[str]()
    try:
        names = [name for name in folder.names if name.endswith((".log", ".checkpoint"))]
        folder.check_files(names)
        size = sum(map(folder.size, names))
        if size > _MOST_BYTES:
            raise CorruptRecordError("the files are larger than metadata can be", bytes=size, most=_MOST_BYTES)
        image, epoch = _snapshot(folder, notes)
        epoch = max(epoch, _log(folder, image, notes, is_clean=is_clean))
        # a snapshot, whole or not, may go further than what could be taken
        for offset, _, file in _snapshots(folder)[:1]:
            if offset > image.end_offset:
                raise _missing(folder.path(file), image.end_offset)
        image.check_settings()
    except Exception as error:
        # whatever is wrong with these files, the topics are adopted
        shown = error if isinstance(error, DistlogError) else f"{type(error).__name__}: {error}"
        text = f"settings are not taken from {CLUSTER_METADATA}, as it is damaged: {shown}"
        return ClusterMetadata(cluster_id, notes=(*notes, text))
    topics = dict[str, dict[uuid.UUID, Mapping[str, str]]]()
    for topic_id, name in image.names.items():
        topics.setdefault(name, {})[topic_id] = image.settings.get(name, {})
    return ClusterMetadata(cluster_id, topics, (epoch, image.end_offset), tuple(notes))


def _snapshots(folder: PartitionFolder) -> list[tuple[int, int, str]]:
    """The offset, leader epoch and name of each snapshot, whole or not, the newest first."""
    found = (match for name in folder.names if (match := _SNAPSHOT.fullmatch(name)))
    return sorted(((int(m["offset"]), int(m["epoch"]), m[0]) for m in found), reverse=True)


def _snapshot(folder: PartitionFolder, notes: list[str]) -> tuple[_Image, int]:
    """The newest whole snapshot, and its leader epoch; nothing if there is none."""
    for offset, epoch, name in _snapshots(folder):
        image, last = _Image(), -1
        try:
            walk = _walk(folder, name)
            for batches in walk:
                image.take_batches(batches, walk.file)
                last = control_type(batches.data, batches.rows[-1])
            if walk.damage is not None or last != _SNAPSHOT_FOOTER or offset > MAX_LONG:
                raise walk.damage or CorruptRecordError("the snapshot does not end", file=walk.file)
        except CorruptRecordError as error:
            notes.append(f"{CLUSTER_METADATA}: an older snapshot is taken: {error}")
        else:
            image.end_offset = offset
            return image, epoch
    return _Image(), -1


def _log(folder: PartitionFolder, image: _Image, notes: list[str], *, is_clean: bool) -> int:
    """Take what the log has behind the image; returns the leader epoch of its last batch, -1 if there is none."""
    segments, epoch = folder.loaded.segments, -1
    if not segments:
        # a broker has always one, if only an empty one behind its snapshot
        raise CorruptRecordError("its log is missing", file=folder.path(""))
    for base, following in zip(segments, [*list(segments)[1:], None], strict=True):
        if following is not None and following <= image.end_offset:
            continue
        name = segments[base][".log"]
        if base > image.end_offset:
            raise _missing(folder.path(name), image.end_offset)
        walk = _walk(folder, name)
        for batches in walk:
            image.take_batches(batches, walk.file)
            epoch = int(batches.rows["leader_epoch"][-1])
        if walk.damage is None:
            continue
        if is_clean or following is not None or _has_batch_behind(folder.log(name), walk.position):
            raise walk.damage
        notes.append(f"{CLUSTER_METADATA}: cut from position {walk.position}: {walk.damage.message}")
    return epoch


def _missing(file: str, from_offset: int) -> CorruptRecordError:
    return CorruptRecordError("metadata is missing", file=file, from_offset=from_offset)


def _has_batch_behind(log: SourceLog, position: int) -> bool:
    """True if a whole batch may begin past the damage at `position`: it is not the torn end of a log."""
    rest, compared_bytes = log[position + 1 : len(log)], 0
    data = byte_array(rest)
    for start in range(0, data.size, _SEARCHED_BYTES):
        magics = data[start + _MAGIC_AT : start + _MAGIC_AT + _SEARCHED_BYTES]
        for place in (start + np.flatnonzero(magics == _MAGIC)).tolist():
            size = size_of_first(rest[place : place + LOG_OVERHEAD])
            if not HEADER_SIZE <= size <= data.size - place:
                continue
            compared_bytes += size
            if compared_bytes > _MOST_COMPARED_BYTES or _is_batch(rest[place : place + size]):
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


#: Without `retention.ms` nothing is deleted: a topic must not lose records for want of its settings.
_KEEP_ALL = {"retention.ms": "-1"}
_POLICY = "cleanup.policy"
#: Settings that delete records under a policy that is not the topic's own.
_DELETING = ("retention.bytes", "retention.ms")
#: The settings that a broker's topics have for other reasons, and what they would do here.
_OTHERWISE = {
    "flush.messages": "acknowledged records could be lost, since there are no replicas",
    "file.delete.delay.ms": "readers of an older version need removed files for longer",
}


@dataclass(frozen=True, slots=True)
class TakenSettings:
    """The settings for an adopted topic; `taken` are the broker's. `notes` say what was left out, and why."""

    config: TopicConfig
    taken: Mapping[str, str]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, own: Mapping[str, str], given: Mapping[str, object], notes: Sequence[str] = ()) -> TakenSettings:
        """The topic's valid `own` settings under the `given` ones; none that delete if the policy is refused."""
        known = {each.name for each in settings()}
        taken, left_out, is_policy_refused = dict[str, str](), list[str](), False
        # the policy comes before what it rules
        for name, value in sorted(own.items()):
            if name in given:
                continue
            shown = f"{short_text(name)}={short_text(value)}"
            if name not in known:
                left_out.append(f"left out {shown}, which distlog does not have")
            elif name in _OTHERWISE:
                left_out.append(f"left out {shown}: {_OTHERWISE[name]}; give it if that is meant")
            elif name in _DELETING and is_policy_refused:
                left_out.append(f"left out {shown}: without the topic's cleanup.policy it could delete kept records")
            else:
                # spaces and repetitions in a list mean nothing to Kafka
                text = (
                    ",".join(dict.fromkeys(each.strip() for each in value.split(","))) if name == _POLICY else value
                )
                try:
                    # as distlog shows it: Kafka's text may have spaces
                    taken[name] = TopicConfig.parse({**_KEEP_ALL, **taken, name: text}).overrides()[name]
                except InvalidConfigError as error:
                    left_out.append(f"left out {shown}: {error.message}")
                    is_policy_refused |= name == _POLICY
        config = TopicConfig.parse({**_KEEP_ALL, **taken, **given})
        return cls(config, taken, (*notes, *left_out))
