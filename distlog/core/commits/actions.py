"""A commit and its actions, each of which changes one thing about a topic; and their JSON."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import MAX_LONG, Longs, booleans, flags_of, integers, join, numbers_of, texts
from distlog.core.commits import fields
from distlog.core.commits.deduplication import BOUNDS, NONE, ProducerBatch
from distlog.core.commits.fields import LONG, NAME, PARTITION, STEM, UUID, Integer, Text, optional, stored
from distlog.core.commits.segment_table import REMOVED_SCHEMA, SCHEMA, SegmentInfo, check_rows, to_rows, to_segments
from distlog.core.errors import CorruptMetadataError, UnsupportedVersionError
from distlog.core.format.indexes import TIME_ENTRY
from distlog.core.format.kernels.batch_scan import crcs_joined, crcs_of_rows
from distlog.core.format.record_batch import LOG_OVERHEAD
from distlog.core.paths import NEW_STEM_PATTERN, stem_read_version

#: The format of commits and checkpoints: docs/formats.md has the layouts.
FORMAT = 2
#: The operation of a commit that makes an empty topic.
CREATE = "create"
MAX_PARTITIONS = 100_000
#: Prefixes of application ids of partition leaders and producers. An application with the same id would fence them.
LEADER_APP, PRODUCER_APP = RESERVED_APPS = ("leader:", "producer:")
ADD_TABLE, REMOVE_TABLE, PRODUCERS = "add_table", "remove_table", "producers"
#: This many Add or Remove actions in a row become one table.
TABLE_ROWS = 32
#: The most rows of a table, of a commit's tables together, and the most producer batches in a commit.
MAX_TABLE_ROWS, MAX_COMMIT_ROWS, MAX_PRODUCER_BATCHES = 100_000, 500_000, 100_000
#: The columns of producer batches that are stored as differences to the row before.
PRODUCER_COLUMNS_AS_STEPS = ("partition", "last_offset", "timestamp")
_PRODUCER_DEFAULTS = {"kind": 0, "coordinator_epoch": NONE}
_FEATURE = Text("[A-Za-z0-9_.-]{1,100}")
_MAX_FEATURES = 1000


def _features(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MAX_FEATURES:
        raise ValueError("must be a list of features")
    return tuple(sorted({_FEATURE(name) for name in value}))


# If older libraries would misread a commit, its `requires` lists a feature, which stays in the topic's state. This
# library supports no feature yet, so it raises an error with the names of all listed ones.
@dataclass(frozen=True, slots=True)
class Requires:
    """The features that readers and writers must support, and those that only writers must support; sorted."""

    reader: tuple[str, ...] = stored(_features, default=())
    writer: tuple[str, ...] = stored(_features, default=())

    @classmethod
    def of(cls, value: Any) -> Requires:
        return fields.read(cls, value)

    def union(self, other: Requires) -> Requires:
        if other == NO_FEATURES:
            return self
        names = ((*self.reader, *other.reader), (*self.writer, *other.writer))
        return Requires(*(tuple(sorted(set(features))) for features in names))

    def check_readable(self, file: str) -> None:
        _check_supported(self.reader, "read", file)

    def check_writable(self) -> None:
        _check_supported((*self.reader, *self.writer), "write to", None)


NO_FEATURES = Requires()


def _check_supported(features: Sequence[str], verb: str, file: str | None) -> None:
    if features:
        text = f"to {verb} the topic, distlog needs features of a newer version: upgrade"
        raise UnsupportedVersionError(text, file=file, features=",".join(features))


@dataclass(frozen=True, slots=True)
class Create:
    """Begins a topic: at version 0, or after a drop; `name` is the prefix of its partition folders."""

    name: str = stored(Text("[a-zA-Z0-9._-]{1,249}"))


@dataclass(frozen=True, slots=True)
class Drop:
    """Ends the topic; its segments are no longer referenced."""


@dataclass(frozen=True, slots=True)
class SetTopicId:
    """Gives the topic another id from the next commit on. For users of the former id, the topic is dropped."""

    topic_id: str = stored(UUID)


@dataclass(frozen=True, slots=True)
class SetPartitions:
    """Raises the number of partitions to `count`."""

    count: int = stored(Integer(1, MAX_PARTITIONS))


@dataclass(frozen=True, slots=True)
class SetConfig:
    """Replaces the topic's settings; `settings` are the topic's own (TopicConfig.overrides)."""

    settings: Mapping[str, str] = stored(fields.settings)


@dataclass(frozen=True, slots=True)
class Add:
    """Adds a sealed segment: at the log's end, or in place of segments that the same commit removes."""

    segment: SegmentInfo


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes a segment, whose files are named `stem` with a suffix, from the snapshot; vacuum deletes them later."""

    partition: int = stored(PARTITION)
    stem: str = stored(STEM)


@dataclass(frozen=True, slots=True)
class AddTable:
    """Adds the segments in `rows` (of SegmentTable's SCHEMA), as an Add for each row in turn does."""

    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class RemoveTable:
    """Removes the segments in `rows` (of REMOVED_SCHEMA), as a Remove for each row does."""

    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class SetLogStartOffset:
    """Raises a partition's log start offset. It may exceed the log end only if the partition has no segments."""

    partition: int = stored(PARTITION)
    offset: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class Restore:
    """Lowers the log start offset, and lets the commit add segments that were live at `version` or later."""

    partition: int = stored(PARTITION)
    offset: int = stored(LONG)
    version: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class SetTransaction:
    """Records an application's batch and the offsets it got by partition (Delta's set transaction).

    `in_order`: the application commits its numbered batches one after the other, so lower numbers may be forgotten.
    """

    app_id: str = stored(NAME)
    batch_id: int | str = stored(fields.batch_id)
    offsets: Mapping[int, tuple[int, int]] = stored(fields.by_partition(fields.offset_range))
    in_order: bool = stored(fields.boolean, default=False)


@dataclass(frozen=True, slots=True)
class ProducerBatches:
    """Records the commit's producer batches by partition, in offset order; and earlier ones if none are recorded."""

    batches: Mapping[int, tuple[ProducerBatch, ...]]


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Compaction has cleaned the partition below `first_dirty_offset` (Kafka's cleaner-offset-checkpoint)."""

    partition: int = stored(PARTITION)
    first_dirty_offset: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class Active:
    """Opens an active segment, from the partition's log end offset on, for the appends of all processes."""

    partition: int = stored(PARTITION)
    stem: str = stored(STEM)
    base_offset: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class Seal:
    """Closes the partition's active segment; unless it is empty, an Add of the same stem follows."""

    partition: int = stored(PARTITION)
    stem: str = stored(STEM)


@dataclass(frozen=True, slots=True)
class SetVacuumHorizon:
    """Raises the vacuum horizon. Commits refuse files whose writer read a lower version: vacuum may delete them."""

    version: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class SetLogHorizon:
    """Raises the log retention horizon, at most to the vacuum horizon. Vacuum may delete commits below it."""

    version: int = stored(LONG)


Action = (
    Create
    | Drop
    | SetTopicId
    | SetPartitions
    | SetConfig
    | Add
    | Remove
    | AddTable
    | RemoveTable
    | SetLogStartOffset
    | Restore
    | SetTransaction
    | ProducerBatches
    | Cleaned
    | Active
    | Seal
    | SetVacuumHorizon
    | SetLogHorizon
)


def each_action(actions: Iterable[Action]) -> Iterator[Action]:
    """Yield the actions, with an action for each row of a table: slow for large tables."""
    for action in actions:
        if isinstance(action, AddTable):
            yield from map(Add, to_segments(action.rows))
        elif isinstance(action, RemoveTable):
            yield from map(Remove, action.rows["partition"].to_pylist(), action.rows["stem"].to_pylist())
        else:
            yield action


def first_stem_below(actions: Sequence[Action], horizon: int) -> str | None:
    """Return the first new stem whose writer had read a version below the vacuum `horizon`, or None."""
    # most commits have no old stem: test the distinct stems first, which is faster than all rows of tables
    stems = {stem for _, stem in _partition_stems(actions, Add | Active)}
    for action in actions:
        if isinstance(action, AddTable):
            stems.update(pc.unique(action.rows["stem"]).to_pylist())
    old_stems = {stem for stem in stems if (version := stem_read_version(stem)) is not None and version < horizon}
    if not old_stems:
        return None
    # a segment with the stem of a removed or sealed one, or of a restored one, is not new: its files existed before
    replaced_files = set(_partition_stems(actions, Remove | RemoveTable | Seal))
    restored = {action.partition for action in actions if isinstance(action, Restore)}
    for partition, stem in _partition_stems(actions, Add | AddTable | Active):
        is_new = partition not in restored and (partition, stem) not in replaced_files
        if is_new and stem in old_stems:
            return stem
    return None


def _partition_stems(actions: Iterable[Action], kinds: Any) -> Iterator[tuple[int, str]]:
    for action in actions:
        if isinstance(action, kinds):
            if isinstance(action, AddTable | RemoveTable):
                yield from zip(action.rows["partition"].to_pylist(), action.rows["stem"].to_pylist(), strict=True)
            else:
                segment = action.segment if isinstance(action, Add) else action
                yield segment.partition, segment.stem


#: The fields with the position and the size of each part of a segment in a bundle. A bundle is a file with parts of
#: several segments, which all have the bundle's stem.
PARTS = (
    ("log_position", "log_bytes"),
    ("offset_index_position", "offset_index_bytes"),
    ("time_index_position", "time_index_bytes"),
    ("key_index_position", "key_index_bytes"),
)
_PART_SCHEMA = pa.schema([SCHEMA.field(name) for name in ("stem", *chain.from_iterable(PARTS))])


def check_added(actions: Sequence[Action]) -> None:
    """Raise ValueError if parts of bundles overlap. One commit suffices, since it has all segments of its bundles."""
    added = [action.segment for action in actions if isinstance(action, Add) and action.segment.is_bundled]
    batches = [action.rows.select(_PART_SCHEMA.names) for action in actions if isinstance(action, AddTable)]
    if added:
        batches.append(to_rows(added, _PART_SCHEMA))
    if batches:
        check_bundles(join(batches))


def check_bundles(segments: pa.RecordBatch) -> None:
    """Raise ValueError if parts of a bundle overlap, or end past the largest position; `segments` has PARTS."""
    if not (numbers_of(segments["log_position"]) >= 0).any():
        return
    # for each part in a bundle: the number of its stem, its begin and its size
    stems = numbers_of(segments["stem"].dictionary_encode().indices)
    columns = [(numbers_of(segments[begin]), numbers_of(segments[size])) for begin, size in PARTS]
    part_stems = np.concatenate([stems[begins >= 0] for begins, _ in columns])
    begins = np.concatenate([begins[begins >= 0] for begins, _ in columns])
    sizes = np.concatenate([sizes[begins >= 0] for begins, sizes in columns])
    if np.any(begins > MAX_LONG - sizes):
        raise ValueError("a part of a bundle ends after the largest position")
    order = np.lexsort((begins + sizes, begins, part_stems))
    part_stems, begins, ends = part_stems[order], begins[order], (begins + sizes)[order]
    if np.any((part_stems[1:] == part_stems[:-1]) & (begins[1:] < ends[:-1])):
        raise ValueError("two parts of a bundle overlap")


def with_tables(actions: Sequence[Action]) -> list[Action]:
    """Return the actions, with each run of at least TABLE_ROWS Add or Remove actions as one table."""
    if len(actions) < TABLE_ROWS:
        return list(actions)
    result = list[Action]()
    for kind, group in itertools.groupby(actions, type):
        run: list[Any] = list(group)
        if kind not in (Add, Remove) or len(run) < TABLE_ROWS:
            result += run
        elif kind is Add:
            result.append(AddTable(to_rows([action.segment for action in run])))
        else:
            columns = [integers([action.partition for action in run]), texts([action.stem for action in run])]
            result.append(RemoveTable(pa.RecordBatch.from_arrays(columns, schema=REMOVED_SCHEMA)))
    return result


def replacement_actions(removed: pa.RecordBatch, added: pa.RecordBatch) -> list[Action]:
    """The actions that remove the segments in `removed`, and add those in `added`: tables if they are many."""
    tables: list[Action] = [RemoveTable(removed), AddTable(added)]
    return tables if max(len(removed), len(added)) >= TABLE_ROWS else [*each_action(tables)]


def write_producers(action: ProducerBatches) -> dict[str, Any]:
    rows = [(partition, *batch) for partition, batches in action.batches.items() for batch in batches]
    columns: dict[str, Any] = dict(zip(("partition", *BOUNDS), map(list, zip(*rows, strict=True)), strict=True))
    for name in PRODUCER_COLUMNS_AS_STEPS:
        columns[name] = [value - previous for previous, value in itertools.pairwise([0, *columns[name]])]
    # a column of equal values is stored as one number
    compacted = {name: column[0] if len(set(column)) == 1 else column for name, column in columns.items()}
    stored_columns = {name: column for name, column in compacted.items() if column != _PRODUCER_DEFAULTS.get(name)}
    # always a list, since its length is the number of batches
    return {PRODUCERS: {**stored_columns, "partition": columns["partition"]}}


def read_producers(body: Any) -> ProducerBatches:
    if not isinstance(body, dict) or not isinstance(body.get("partition"), list):
        raise ValueError(f"{PRODUCERS} must be an object of columns, among them a list of partitions")
    count = len(body["partition"])
    if not 0 < count <= MAX_PRODUCER_BATCHES:
        raise ValueError(f"a commit has 1 to {MAX_PRODUCER_BATCHES} batches of producers, not {count}")
    columns = {}
    for name in ("partition", *BOUNDS):
        if name not in body and name not in _PRODUCER_DEFAULTS:
            raise ValueError(f"{name}: {PRODUCERS} must have this column")
        column = body.get(name, _PRODUCER_DEFAULTS.get(name))
        if not isinstance(column, list):
            column = [column] * count
        if len(column) != count:
            raise ValueError(f"{name}: a column must have a value for each of the {count} batches")
        if set(map(type, column)) - {int}:
            raise ValueError(f"{name}: must be integers")
        columns[name] = list(itertools.accumulate(column)) if name in PRODUCER_COLUMNS_AS_STEPS else column
        low, high = BOUNDS.get(name, (0, MAX_PARTITIONS - 1))
        if min(columns[name]) < low or max(columns[name]) > high:
            raise ValueError(f"{name}: must be integers from {low} to {high}")
    batches_by_partition: dict[int, list[ProducerBatch]] = {}
    for partition, *values in zip(*columns.values(), strict=True):
        batches_by_partition.setdefault(partition, []).append(ProducerBatch(*values))
    return ProducerBatches({partition: tuple(batches) for partition, batches in batches_by_partition.items()})


_KINDS: dict[str, type] = {
    "create": Create,
    "drop": Drop,
    "topic_id": SetTopicId,
    "partitions": SetPartitions,
    "config": SetConfig,
    "add": Add,
    "remove": Remove,
    "log_start_offset": SetLogStartOffset,
    "restore": Restore,
    "transaction": SetTransaction,
    "cleaned": Cleaned,
    "active": Active,
    "seal": Seal,
    "gc_floor": SetVacuumHorizon,
    "log_floor": SetLogHorizon,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def read_actions(items: Any) -> tuple[Action, ...]:
    """The actions of a commit, from a list of JSON objects; raises ValueError, and UnsupportedVersionError."""
    if not isinstance(items, list):
        raise ValueError("must be a list")
    actions = tuple(_read_action(*name_and_body(item)) for item in items)
    if sum(isinstance(action, ProducerBatches) for action in actions) > 1:
        raise ValueError("a commit may have the action producers only once")
    rows = sum(len(action.rows) for action in actions if isinstance(action, AddTable | RemoveTable))
    if rows > MAX_COMMIT_ROWS:
        raise ValueError(f"the tables of a commit may have at most {MAX_COMMIT_ROWS} rows, not {rows}")
    return actions


def write_actions(actions: Iterable[Action]) -> list[dict[str, Any]]:
    """The JSON objects that `read_actions` turns into the actions; a table of too many rows is split."""
    items = []
    for action in actions:
        match action:
            case AddTable() | RemoveTable():
                starts = range(0, len(action.rows), MAX_TABLE_ROWS)
                items += [write_table(type(action)(action.rows.slice(row, MAX_TABLE_ROWS))) for row in starts]
            case ProducerBatches():
                items.append(write_producers(action))
            case Add(segment):
                items.append({"add": fields.write(segment)})
            case _:
                items.append({_NAMES[type(action)]: fields.write(action)})
    return items


def name_and_body(item: Any) -> tuple[str, Any]:
    if not isinstance(item, dict) or len(item) != 1:
        raise ValueError("an action must be an object with one member")
    ((name, body),) = item.items()
    return name, body


def check_known(name: str) -> None:
    if name not in _KINDS and name not in (ADD_TABLE, REMOVE_TABLE, PRODUCERS):
        raise UnsupportedVersionError(f"a newer distlog wrote the action {name[:100]!r} to this topic: upgrade")


def _read_action(name: str, body: Any) -> Action:
    check_known(name)
    if name in (ADD_TABLE, REMOVE_TABLE):
        return read_table(name, body)
    if name == PRODUCERS:
        return read_producers(body)
    if name == "add":
        return Add(fields.read(SegmentInfo, body))
    action: Action = fields.read(_KINDS[name], body)
    return action


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version of a topic: its operation, writer, time, and the commit before it (`prev`)."""

    version: int = stored(LONG)
    id: str = stored(UUID)
    prev: str | None = stored(optional(UUID))
    topic_id: str = stored(UUID)
    timestamp_ms: int = stored(Integer(0, MAX_LONG - 1))
    operation: str = stored(Text("[a-z-]{1,64}"))
    writer: str = stored(NAME)
    actions: tuple[Action, ...] = stored(read_actions)
    # The features that readers and writers must support from this version on.
    requires: Requires = stored(Requires.of, default=NO_FEATURES)
    # How long the writer had tried, in ms; 0 if no other writer came first. Others wait accordingly (`RaceBackoff`).
    waited_ms: int = stored(LONG, default=0)
    # An id by which the writer finds its own commit in the log, after an error hid the outcome; None if not needed.
    write_id: str | None = stored(optional(NAME), default=None)
    # If many appends are queued: the stem of the one whose writer commits next, see `AppendRace`.
    next_append: str | None = stored(optional(Text(NEW_STEM_PATTERN)), default=None)
    # The size of the commit's file, which counts for the next checkpoint; 0 unless it was read from a file.
    size: int = dataclasses.field(default=0, compare=False)

    def encode(self) -> bytes:
        return fields.with_checksum({"format": FORMAT, **fields.write(self), "actions": write_actions(self.actions)})

    @classmethod
    def decode(cls, data: bytes, file: str) -> Commit:
        try:
            return fields.read(cls, parse(data, file), size=len(data))
        except UnsupportedVersionError as error:
            error.details.setdefault("file", file)
            raise
        except (ValueError, RecursionError) as error:
            raise CorruptMetadataError(f"not a commit: {error}; restore the file from a copy", file=file) from error


def parse(data: bytes, file: str) -> Any:
    """The JSON object of the commit `file`; raises ValueError, and UnsupportedVersionError for unknown features."""
    body = fields.parse(data)
    if not isinstance(body, dict):
        raise ValueError("a commit must be an object")
    check_format(body.get("format"), file)
    fields.check_checksum(data)
    # before other fields, which this library may misread without the feature
    Requires.of(body.get("requires", {})).check_readable(file)
    return body


def check_format(stored_format: Any, file: str) -> None:
    """Raise UnsupportedVersionError for a format of commits that is not FORMAT, ValueError unless it is a number."""
    if fields.LONG(stored_format) > FORMAT:
        raise UnsupportedVersionError("a newer distlog wrote this topic: upgrade", file=file, format=stored_format)
    if stored_format < FORMAT:
        text = "a pre-release distlog wrote this topic: read it with that version, and append it to a new topic"
        raise UnsupportedVersionError(text, file=file, format=stored_format)


#: The columns of a table that are stored as differences to the row before.
COLUMNS_AS_STEPS = frozenset({"partition", "base_offset", "created_ms"})
#: The columns that are stored as differences to another column, in the order in which they are decoded.
RELATIVE_COLUMNS = {
    "next_offset": "base_offset",
    "offset_of_max_timestamp": "base_offset",
    "max_timestamp": "created_ms",
    "first_timestamp": "max_timestamp",
    "min_timestamp": "max_timestamp",
    "last_batch_crc": "first_batch_crc",
}
#: The size column of each position column. A position is stored relative to the part's end in the row before.
ADJACENT_PARTS = dict(PARTS)
#: The head of a batch of format 2, up to its checksum.
_HEAD = np.dtype([("base_offset", ">i8"), ("size", ">i4"), ("leader_epoch", ">i4"), ("magic", "i1"), ("crc", ">u4")])
_SCHEMAS = {ADD_TABLE: SCHEMA, REMOVE_TABLE: REMOVED_SCHEMA}
_CHECKS = fields.checks(SegmentInfo)
_TEXT_SIZE = struct.Struct("<q")
_ZSTD_LEVEL = 3
_NUMBER_BYTES = (1, 2, 4, 8)
_ZSTD_MAGIC = struct.pack("<I", 0xFD2FB528)
#: The text of a table may have this many bytes, and for each row this many more.
_MAX_TEXT_BYTES, _MAX_TEXT_BYTES_PER_ROW = 4096, 128


def write_table(action: AddTable | RemoveTable) -> dict[str, Any]:
    """The JSON object of a table of at least one row and at most MAX_TABLE_ROWS."""
    kind = ADD_TABLE if isinstance(action, AddTable) else REMOVE_TABLE
    columns, texts_of = dict[str, Longs](), dict[str, list[str]]()
    for spec in _SCHEMAS[kind]:
        column = action.rows[spec.name]
        if spec.type == pa.string():
            coded = column.dictionary_encode()
            texts_of[spec.name] = coded.dictionary.to_pylist()
            columns[spec.name] = numbers_of(coded.indices).astype(np.int64)
        else:
            is_flag = spec.type == pa.bool_()
            columns[spec.name] = flags_of(column).astype(np.int64) if is_flag else numbers_of(column)
    encoded = _encoded(columns)
    rows = len(action.rows)
    # a column of equal numbers is stored as one of `constants`, any other with the fewest bytes for each number
    constants = {name: int(column[0]) for name, column in encoded.items() if (column == column[0]).all()}
    widths = {name: _number_bytes(column) for name, column in encoded.items() if name not in constants}
    text = json.dumps({"texts": texts_of, "columns": widths, "same": constants}, separators=(",", ":")).encode()
    parts = [encoded[name].astype(f"<i{width}").tobytes() for name, width in widths.items()]
    plain = b"".join([_TEXT_SIZE.pack(len(text)), text, *parts])
    data = base64.b64encode(pa.Codec("zstd", _ZSTD_LEVEL).compress(plain, asbytes=True)).decode("ascii")
    # data and padding have at least one character for each row, so that no small commit expands to a huge table
    return {kind: {"rows": rows, "size": len(plain), "data": data, "pad": "0" * (rows - len(data))}}


def _encoded(columns: Mapping[str, Longs]) -> dict[str, Longs]:
    """Return the columns as differences to the row before or to another column, which compress better."""
    encoded = dict(columns)
    for name in COLUMNS_AS_STEPS & columns.keys():
        encoded[name] = np.diff(columns[name], prepend=0)
    for name, other in RELATIVE_COLUMNS.items():
        if name in columns:
            encoded[name] = columns[name] - columns[other]
    for name, size in ADJACENT_PARTS.items():
        if name in columns:
            ends = columns[name] + columns[size]
            encoded[name] = columns[name] - np.concatenate([[0], ends[:-1]])
    # a log of one batch has the expected checksum, so this stores 0, which compresses well
    for name, expected in _expected_checksums(columns).items():
        encoded[name] = columns[name] ^ expected
    return encoded


def _expected_checksums(columns: Mapping[str, Longs]) -> dict[str, Longs]:
    """Compute the checksums of a log of one batch of format 2, and of its time index, from other columns."""
    if "crc32c" not in columns:
        return {}
    sizes, count = columns["log_bytes"], len(columns["log_bytes"])
    headers = np.empty(count, _HEAD)
    headers["base_offset"], headers["size"] = columns["stored_base_offset"], sizes - LOG_OVERHEAD
    headers["leader_epoch"], headers["magic"], headers["crc"] = columns["leader_epoch"], 2, columns["first_batch_crc"]
    entry = np.empty(count, TIME_ENTRY)
    entry["timestamp"] = columns["max_timestamp"]
    entry["relative_offset"] = columns["next_offset"] - columns["base_offset"] - 1
    has_entry = columns["time_index_bytes"] == TIME_ENTRY.itemsize
    # the checksum in the header is the CRC of all bytes after the header
    log_crcs = crcs_joined(crcs_of_rows(headers), columns["first_batch_crc"], sizes - _HEAD.itemsize)
    return {"crc32c": log_crcs, "time_index_crc32c": np.where(has_entry, crcs_of_rows(entry), 0)}


def _number_bytes(column: Longs) -> int:
    low, high = int(column.min()), int(column.max())
    return next(width for width in _NUMBER_BYTES if -(1 << (8 * width - 1)) <= low and high < (1 << (8 * width - 1)))


def read_table(kind: str, body: Any) -> AddTable | RemoveTable:
    if not isinstance(body, dict) or not isinstance(body.get("data"), str):
        raise ValueError(f"{kind} must be an object with data")
    rows = fields.Integer(1, MAX_TABLE_ROWS)(body.get("rows"))
    pad = body.get("pad")
    if not isinstance(pad, str) or rows > len(body["data"]) + len(pad):
        raise ValueError(f"{kind}: a table of {rows} rows must have at least as many characters of data and padding")
    columns, texts_of = _unpacked(body, rows, _SCHEMAS[kind])
    arrays = [_column(spec, columns, texts_of, rows) for spec in _SCHEMAS[kind]]
    batch = pa.RecordBatch.from_arrays(arrays, schema=_SCHEMAS[kind])
    if kind == REMOVE_TABLE:
        for name in REMOVED_SCHEMA.names:
            fields.check_column(name, batch[name], _CHECKS[name])
        return RemoveTable(batch)
    check_rows(batch)
    return AddTable(batch)


def _unpacked(body: Mapping[str, Any], rows: int, schema: pa.Schema) -> tuple[dict[str, Longs], dict[str, list[str]]]:
    """Return the numbers of each column, and the texts of each text column: its numbers are indexes of the texts."""
    max_text_size = _MAX_TEXT_BYTES + _MAX_TEXT_BYTES_PER_ROW * rows
    size = Integer(_TEXT_SIZE.size, max_text_size + max(_NUMBER_BYTES) * len(schema) * rows)(body.get("size"))
    try:
        data = base64.b64decode(body["data"], validate=True)
        if declared_size(data) != size:
            raise ValueError("the table does not have its declared size")
        plain = memoryview(pa.Codec("zstd").decompress(data, decompressed_size=size))
    except (binascii.Error, pa.ArrowException, OSError) as error:
        raise ValueError(f"the table cannot be decompressed: {error}") from None
    (text_size,) = _TEXT_SIZE.unpack_from(plain)
    if not 0 <= text_size <= min(size - _TEXT_SIZE.size, max_text_size):
        raise ValueError("the text of the table is cut off")
    start = _TEXT_SIZE.size + text_size
    text = fields.parse(bytes(plain[_TEXT_SIZE.size : start]))
    if not isinstance(text, dict):
        raise ValueError("the text of the table must be an object")
    texts_of, widths, constants = (text.get(name) for name in ("texts", "columns", "same"))
    if not isinstance(texts_of, dict) or not isinstance(widths, dict) or not isinstance(constants, dict):
        raise ValueError("the table lacks columns")
    if {*widths, *constants} != {*schema.names} or len(widths) + len(constants) != len(schema):
        raise ValueError("the table has other columns than this library knows")
    check_number = Integer(-(1 << 63), MAX_LONG)
    columns = {name: np.full(rows, check_number(value), np.int64) for name, value in constants.items()}
    for name, width in widths.items():
        if type(width) is not int or width not in _NUMBER_BYTES:
            raise ValueError(f"{name}: a number has 1, 2, 4 or 8 bytes")
        end = start + width * rows
        if end > size:
            raise ValueError(f"{name}: the column is cut off")
        columns[name] = np.frombuffer(plain[start:end], f"<i{width}").astype(np.int64)
        start = end
    if start != size:
        raise ValueError("the table has more bytes than its columns need")
    return _decoded(columns), texts_of


def _decoded(columns: dict[str, Longs]) -> dict[str, Longs]:
    for name in COLUMNS_AS_STEPS & columns.keys():
        columns[name] = np.cumsum(columns[name])
    for name, other in RELATIVE_COLUMNS.items():
        if name in columns:
            columns[name] = columns[name] + columns[other]
    for name, size in ADJACENT_PARTS.items():
        if name in columns:
            # each position is the previous position, plus the previous part's size, plus the stored difference
            columns[name] = np.cumsum(columns[name] + np.concatenate([[0], columns[size][:-1]]))
    for name, expected in _expected_checksums(columns).items():
        columns[name] = columns[name] ^ expected
    return columns


def _column(spec: pa.Field, columns: Mapping[str, Longs], texts_of: Mapping[str, Any], rows: int) -> pa.Array:
    column = columns[spec.name]
    if spec.type == pa.string():
        values = texts_of.get(spec.name)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise ValueError(f"{spec.name}: must be a list of strings")
        if len(values) > rows:
            raise ValueError(f"{spec.name}: there are more texts than rows: {len(values)}")
        _check_within(spec.name, column, len(values))
        for value in values:
            _CHECKS[spec.name](value)
        return pc.take(texts(values), integers(column))
    if spec.type == pa.bool_():
        _check_within(spec.name, column, 2)
        return booleans(column)
    return integers(column)


def _check_within(name: str, column: Longs, end: int) -> None:
    if column.min() < 0 or column.max() >= end:
        raise ValueError(f"{name}: must be numbers from 0 to {end - 1}")


def declared_size(data: bytes) -> int:
    """The size that the header of a zstd frame (RFC 8878, 3.1.1.1) declares."""
    flags = data[4] if len(data) > len(_ZSTD_MAGIC) else 0
    is_single_segment = (flags >> 5) & 1
    # the header of a frame of a single segment has no byte for the window, and at least one for the size
    window_bytes = 1 - is_single_segment
    dictionary_id_bytes = (0, 1, 2, 4)[flags & 3]
    size_bytes = (is_single_segment, 2, 4, 8)[flags >> 6]
    start = len(_ZSTD_MAGIC) + 1 + window_bytes + dictionary_id_bytes
    if data[:4] != _ZSTD_MAGIC or not size_bytes or len(data) < start + size_bytes:
        raise ValueError("the data is not a zstd frame that declares its size")
    # two bytes store the size minus 256
    return int.from_bytes(data[start : start + size_bytes], "little") + (256 if size_bytes == 2 else 0)
