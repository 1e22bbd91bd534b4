"""Checkpoints: files with the whole state at one version, so that a topic opens without its history.

A checkpoint is never required: if it is missing or wrong, an older one is used, or the commits. Its name has digits
of its SHA-256. Checkpoints of a large topic are incremental: each has the changes since a full one, so a reader needs
two files at most. docs/formats.md#checkpoints has the layout.

Nothing in the file is trusted. The zstd frame declares the size of its content, whose limit grows with the file's
size. Arrow may crash on a malformed schema, so the schemas are made from names and types in the JSON text. Arrow
verifies the messages and validates the columns in full. The columns may not be larger than the bytes that hold them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core import paths
from distlog.core.arrays import MAX_LONG, Flags, Longs, flags_of, integers, join, numbers_of
from distlog.core.commits import fields, segment_table
from distlog.core.commits.actions import (
    FORMAT,
    MAX_PARTITIONS,
    NO_FEATURES,
    Active,
    Requires,
    check_bundles,
    check_format,
    declared_size,
)
from distlog.core.commits.deduplication import (
    BATCH_SCHEMA,
    NO_PRODUCERS,
    PRODUCER_SCHEMA,
    TransactionTable,
    producer_columns,
    producer_tables,
)
from distlog.core.commits.fields import LONG, UUID, Text, stored
from distlog.core.commits.partition_table import PartitionTable
from distlog.core.commits.segment_table import SegmentTable, check_rows
from distlog.core.commits.snapshot import MAX_FORMER_IDS, PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptMetadataError
from distlog.core.storage.calls import in_parallel
from distlog.core.storage.storage import Storage

#: A checkpoint is due after this many commits by default, or after this many bytes of commits.
CHECKPOINT_COMMITS, CHECKPOINT_BYTES = 100, 8 << 20
#: The most bytes of a checkpoint file. A million segments take about 75 MB, and 290 MB decompressed.
MAX_FILE_BYTES = 256 << 20
#: A file may decompress to MIN_SIZE_LIMIT + BYTES_PER_BYTE * its size (usually 4 * its size), up to MAX_STATE_BYTES.
MIN_SIZE_LIMIT = 16 << 20
BYTES_PER_BYTE = 32
MAX_STATE_BYTES = 2 << 30
_SCHEMAS = {"segments": segment_table.SCHEMA, "transactions": BATCH_SCHEMA, "producers": PRODUCER_SCHEMA}
#: The two columns that sort and identify a table's rows. Without a second, equal rows are numbered (`_sort_keys`).
_SORT_COLUMNS: Mapping[str, tuple[str, str | None]] = {
    "segments": ("partition", "base_offset"),
    "transactions": ("version", None),
    "producers": ("partition", "producer_id"),
}
#: The column with the numbers of added or removed rows, and the suffix of a table that lists removed rows.
_ROW_NUMBER, _REMOVED = "row", "_gone"
_ROWS_SCHEMA = pa.schema([(_ROW_NUMBER, pa.int64())])
_TYPES = {str(kind): kind for schema in _SCHEMAS.values() for kind in schema.types}
#: A checkpoint with this many rows is written in the background, and incrementally if possible.
LARGE_ROWS = 10_000
#: Higher levels take several times as long, for a file of the same size.
_ZSTD_LEVEL = 1
_SKIPPABLE_FRAME_HEADER = struct.Struct("<II")
_SKIPPABLE_FRAME_MAGIC = 0x184D2A50
_TEXT_SIZE = struct.Struct("<q")
#: The numbers of fields in Arrow's flatbuffers.
_MESSAGE_HEADER, _BATCH_COMPRESSION = 2, 3
#: The errors of Arrow, zstd and JSON for malformed bytes.
_MALFORMED = pa.ArrowException, ArithmeticError, EOFError, LookupError, OSError, RecursionError, TypeError, ValueError
#: The sign bit of an int64: with it flipped, the big-endian bytes sort like the numbers.
_SIGN_BIT = np.uint64(1 << 63)


def row_count(snapshot: Snapshot) -> int:
    """Return about the number of rows and partitions in a checkpoint of `snapshot`."""
    table = snapshot.partitions
    producers = sum(state.producers.max_count for state in table.own_states.values())
    return len(table) + table.segment_count + len(snapshot.transactions) + producers


def write(storage: Storage, snapshot: Snapshot, *, is_newest: bool = True) -> str:
    """Write a full checkpoint of `snapshot`, and return its name, which LAST_CHECKPOINT gets if it `is_newest`."""
    data = encode(snapshot)
    name = paths.checkpoint_file(snapshot.version, _digest(data))
    decode(data, name)  # raises if no reader could use the file
    storage.put(name, data)
    if is_newest:
        storage.put(paths.LAST_CHECKPOINT, name.encode())
    return name


def write_incremental(storage: Storage, snapshot: Snapshot, base: str, commits_per_checkpoint: int) -> str | None:
    """Write the changes since the full checkpoint `base`; returns the file's name, or None if a full one is due."""
    body, batches = _body_and_rows(snapshot)
    base_data = _read_file(storage, base)
    base_body, base_batches = unpack(base_data)
    # if most rows of the base were removed, a full checkpoint is faster to read
    max_base_rows = 2 * sum(map(len, batches.values())) + LARGE_ROWS
    if base_body["topic_id"] != snapshot.topic_id or sum(map(len, base_batches.values())) > max_base_rows:
        return None
    # A full checkpoint is due when the incremental ones since the base, about `count`, have more bytes than the base.
    # If their sizes grow evenly up to this one's, they have size * (count + 1) / 2 bytes: solve this for the size.
    count = (snapshot.version - (paths.parse_checkpoint_file(base) or 0)) // commits_per_checkpoint
    count += (snapshot.commit_bytes - base_body["commit_bytes"]) // CHECKPOINT_BYTES
    max_bytes = 2 * len(base_data) // (max(count, 1) + 1)
    changed, removed = dict[str, pa.RecordBatch](), dict[str, pa.RecordBatch]()
    for table, rows in batches.items():
        if base_batches[table].schema != rows.schema:
            return None  # another version of distlog wrote the base
        changes = RowChanges.between(base_batches[table], rows, _SORT_COLUMNS[table])
        changed[table] = changes.added.append_column(_ROW_NUMBER, integers(changes.added_rows))
        removed[table + _REMOVED] = pa.RecordBatch.from_arrays([integers(changes.removed_rows)], schema=_ROWS_SCHEMA)
    data = pack(body, {name: batch for name, batch in {**changed, **removed}.items() if len(batch)})
    if len(data) > max_bytes:
        return None
    name = paths.checkpoint_file(snapshot.version, _digest(data), base)
    storage.put(name, data)
    storage.put(paths.LAST_CHECKPOINT, name.encode())
    return name


def read(storage: Storage, name: str) -> Snapshot:
    """The state in the checkpoint `name`; raises CorruptMetadataError, FileNotFoundError, UnsupportedVersionError."""
    full = paths.base_of_checkpoint(name)
    names = [name] if full is None else [full, name]
    read_file = partial(_read_file, storage)
    reads_in_parallel = len(names) > 1 and not storage.is_local
    data, *changes = in_parallel(read_file, names) if reads_in_parallel else map(read_file, names)
    snapshot = decode(data, name, *changes)
    if snapshot.version != paths.parse_checkpoint_file(name):
        text = "the checkpoint has another version than its file's name: delete the file"
        raise CorruptMetadataError(text, file=name)
    return snapshot


def _read_file(storage: Storage, name: str) -> bytes:
    data = storage.read(name, 0, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise CorruptMetadataError("the checkpoint is larger than any checkpoint may be: delete the file", file=name)
    version, base = paths.parse_checkpoint_file(name) or 0, paths.base_of_checkpoint(name)
    if paths.checkpoint_file(version, _digest(data), base) != name:
        raise CorruptMetadataError("the checkpoint's checksum is wrong: delete the file", file=name)
    return data


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


#: The JSON members of a partition; the last one is the number of its segments.
_PARTITION_MEMBERS = ("log_start_offset", "log_end_offset", "first_dirty_offset", "segments")


def _active(bodies: Any) -> tuple[Active, ...]:
    return tuple(fields.read(Active, body) for body in bodies)


def _partitions(bodies: Any) -> tuple[Longs, ...]:
    """Check a list of objects with the members of a partition; returns a column for each member."""
    if not isinstance(bodies, list) or not all(type(body) is dict for body in bodies):
        raise ValueError("must be a list of objects")
    if len(bodies) > MAX_PARTITIONS:
        raise ValueError(f"there are more than {MAX_PARTITIONS} partitions")
    columns = []
    for name in _PARTITION_MEMBERS:
        values = [body.get(name) for body in bodies]
        if set(map(type, values)) - {int} or not 0 <= min(values, default=0) <= max(values, default=0) <= MAX_LONG:
            raise ValueError(f"{name}: must be an integer from 0 to {MAX_LONG}")
        columns.append(np.array(values, np.int64))
    return tuple(columns)


def _former_ids(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_FORMER_IDS:
        raise ValueError("must be a list of ids")
    return tuple(map(UUID, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The JSON object in the file; its members have the names of Snapshot's fields."""

    version: int = stored(LONG)
    commit_id: str = stored(UUID)
    topic_id: str = stored(UUID)
    name: str = stored(Text("[a-zA-Z0-9._-]{1,249}"))
    timestamp_ms: int = stored(LONG)
    config: Mapping[str, str] = stored(fields.settings)
    gc_floor: int = stored(LONG)
    dropped: bool = stored(fields.boolean)
    commit_bytes: int = stored(LONG)
    partitions: tuple[Longs, ...] = stored(_partitions)
    active: tuple[Active, ...] = stored(_active)
    transactions: int = stored(LONG)
    producers: int = stored(LONG)
    passed_ms: int = stored(LONG, default=0)
    requires: Requires = stored(Requires.of, default=NO_FEATURES)
    log_floor: int = stored(LONG, default=0)
    former_retention_ms: int = stored(LONG, default=0)
    former_retention_version: int = stored(LONG, default=0)
    replaced_ms: int = stored(LONG, default=0)
    former_ids: tuple[str, ...] = stored(_former_ids, default=())


#: The fields that Snapshot has with the same type.
_COMMON_FIELDS = fields.checks(_State).keys() - {"config", "partitions", "active", "transactions", "producers"}


def encode(snapshot: Snapshot) -> bytes:
    return pack(*_body_and_rows(snapshot))


def _body_and_rows(snapshot: Snapshot) -> tuple[dict[str, Any], dict[str, pa.RecordBatch]]:
    table = snapshot.partitions
    producers = producer_columns({number: state.producers for number, state in sorted(table.own_states.items())})
    state = _State(
        **{name: getattr(snapshot, name) for name in _COMMON_FIELDS},
        config={name: str(value) for name, value in snapshot.config.overrides().items()},
        partitions=(),  # replaced by JSON below: a _State has them in columns
        active=tuple(state.active for _, state in sorted(table.own_states.items()) if state.active),
        transactions=len(snapshot.transactions),
        producers=len(producers),
    )
    segments = table.segments()
    body = {"format": FORMAT, **fields.write(state), "partitions": _partition_bodies(table, segments)}
    return body, dict(zip(_SCHEMAS, (segments, snapshot.transactions.columns(), producers), strict=True))


def decode(data: bytes, file: str, changes: bytes | None = None) -> Snapshot:
    """The state in the full checkpoint `data`, with the `changes` of an incremental one; raises as `read` does."""
    try:
        body, batches = unpack(data)
        if changes is not None:
            if declared_size(data) + declared_size(changes) > MAX_STATE_BYTES:
                raise ValueError("with its full checkpoint the file decompresses to more than any state may take")
            body, changed = unpack(changes, incremental=True)
            batches = {table: _with_changes(rows, table, changed) for table, rows in batches.items()}
        check_format(body.get("format"), file)
        state = fields.read(_State, body)
        state.requires.check_readable(file)
        return _snapshot(state, *batches.values())
    except _MALFORMED as error:
        raise CorruptMetadataError(f"not a checkpoint: {error}; delete the file", file=file) from error


def _with_changes(base: pa.RecordBatch, table: str, changed: Mapping[str, pa.RecordBatch]) -> pa.RecordBatch:
    no_rows = pa.RecordBatch.from_arrays([integers([])], schema=_ROWS_SCHEMA)
    added = changed.get(table)
    if added is None:
        added = base.slice(0, 0).append_column(_ROW_NUMBER, no_rows[_ROW_NUMBER])
    removed = changed.get(table + _REMOVED, no_rows)
    rows = numbers_of(added[_ROW_NUMBER])
    return RowChanges(numbers_of(removed[_ROW_NUMBER]), rows, added.drop_columns([_ROW_NUMBER])).applied(base)


def _partition_bodies(table: PartitionTable, segments: pa.RecordBatch) -> list[dict[str, Any]]:
    counts = np.bincount(numbers_of(segments["partition"]), minlength=len(table))
    columns = (table.log_start_offsets, table.log_end_offsets, table.first_dirty_offsets, counts)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [dict(zip(_PARTITION_MEMBERS, row, strict=True)) for row in rows]


def _snapshot(
    state: _State, segments: pa.RecordBatch, transactions: pa.RecordBatch, producers: pa.RecordBatch
) -> Snapshot:
    _, log_ends, _, segment_counts = state.partitions
    count = sum(segment_counts.tolist())  # Python's integers do not overflow
    if (len(segments), len(transactions), len(producers)) != (count, state.transactions, state.producers):
        raise ValueError("the numbers of rows differ from the numbers in the metadata")
    _check_segments(segments, log_ends, segment_counts)
    return Snapshot(
        **{name: getattr(state, name) for name in _COMMON_FIELDS},
        config=TopicConfig.stored(state.config),
        partitions=_partition_table(segments, producers, state),
        transactions=TransactionTable.of_columns(transactions, state.timestamp_ms),
    )


def _partition_table(segments: pa.RecordBatch, producers: pa.RecordBatch, state: _State) -> PartitionTable:
    log_starts, log_ends, first_dirty, counts = state.partitions
    tables = producer_tables(producers, log_ends, state.passed_ms)
    active = {segment.partition: segment for segment in state.active}
    table, end_rows = SegmentTable(segments), np.cumsum(counts)
    own_states = {
        number: PartitionState(
            log_start_offset=int(log_starts[number]),
            log_end_offset=int(log_ends[number]),
            segments=table.part(int(end_rows[number] - counts[number]), int(end_rows[number])),
            first_dirty_offset=int(first_dirty[number]),
            active=active.get(number),
            producers=tables.get(number, NO_PRODUCERS),
        )
        for number in sorted({*active, *tables})
        if number < len(counts)
    }
    return PartitionTable.of_columns(log_starts, log_ends, first_dirty, segments, own_states)


def pack(state: Mapping[str, Any], batches: Mapping[str, pa.RecordBatch]) -> bytes:
    """The bytes of a checkpoint of a state and its rows; ValueError if they are more than a checkpoint may have."""
    columns = {name: {spec.name: str(spec.type) for spec in batch.schema} for name, batch in batches.items()}
    text = json.dumps({**state, "columns": columns}, default=fields.write, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the columns
    plain = b"".join([_TEXT_SIZE.pack(len(text)), text, *(batch.serialize() for batch in batches.values())])
    data: bytes = pa.Codec("zstd", _ZSTD_LEVEL).compress(plain, asbytes=True)
    # equal rows compress so well that readers would refuse the file as a decompression bomb: add a frame to skip
    missing = -(-(len(plain) - MIN_SIZE_LIMIT) // BYTES_PER_BYTE) - len(data)
    if missing > 0:
        data += _SKIPPABLE_FRAME_HEADER.pack(_SKIPPABLE_FRAME_MAGIC, missing) + bytes(missing)
    if len(data) > MAX_FILE_BYTES or len(plain) > _max_plain_size(data):
        raise ValueError(f"the state is too large for a checkpoint: {len(plain)} bytes, {len(data)} when compressed")
    return data


def unpack(data: bytes, *, incremental: bool = False) -> tuple[dict[str, Any], dict[str, pa.RecordBatch]]:
    """The state and the tables in a checkpoint's bytes; raises one of _MALFORMED for other bytes."""
    size = declared_size(data)
    if size > _max_plain_size(data):
        raise ValueError(f"the file decompresses to {size} bytes, far more than its size allows")
    plain = pa.BufferReader(pa.Codec("zstd").decompress(data, decompressed_size=size))
    # padded with ones, so that the size is negative if bytes are missing
    (text_size,) = _TEXT_SIZE.unpack(plain.read(_TEXT_SIZE.size).ljust(_TEXT_SIZE.size, b"\xff"))
    if not 0 <= text_size <= size:
        raise ValueError("the text is cut off")
    state = dict(fields.parse(plain.read(text_size)))
    columns = state.pop("columns")
    names = [*_SCHEMAS]
    if incremental:  # empty tables are left out
        names = [name for name in (*_SCHEMAS, *(table + _REMOVED for table in _SCHEMAS)) if name in columns]
    batches = {name: _next_batch(plain, dict(columns[name])) for name in names}
    if plain.read(1):
        raise ValueError("the file has more batches than it declares")
    return state, batches


def _max_plain_size(data: bytes) -> int:
    return min(MIN_SIZE_LIMIT + BYTES_PER_BYTE * len(data), MAX_STATE_BYTES)


def _next_batch(source: pa.NativeFile, columns: Mapping[str, str]) -> pa.RecordBatch:
    """Read the batch in the next message of `source`; ValueError if its columns need more bytes than the message."""
    message = pa.ipc.read_message(source)
    body = message.body
    # Arrow trusts the sizes that compressed columns declare
    if message.metadata_version != pa.ipc.MetadataVersion.V5 or _is_compressed(message.metadata.to_pybytes()):
        raise ValueError("the columns are compressed")
    if body.address % 8:
        raise ValueError("the columns are not aligned")
    batch = pa.ipc.read_record_batch(message, pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()]))
    batch.validate(full=True)
    # columns could share bytes, and a batch without columns could have any number of rows. Each table has an int64
    # column, so a row has at least 8 bytes.
    if 8 * len(batch) > body.size or batch.nbytes > body.size:
        raise ValueError("the columns are larger than the bytes that hold them")
    return batch


def _is_compressed(message: bytes) -> bool:
    """True if the record batch in this flatbuffer, which Arrow has verified, is compressed."""
    header = _field_position(message, _unsigned(message, 0, 4), _MESSAGE_HEADER)
    # without a header this is unknown: refuse the batch
    return header == 0 or _field_position(message, header + _unsigned(message, header, 4), _BATCH_COMPRESSION) != 0


def _field_position(flatbuffer: bytes, table: int, number: int) -> int:
    """The position of a field of the flatbuffer's table at `table`; 0 without the field."""
    # A table begins with the distance back to its vtable. This has uint16: its own size, the table's size, and the
    # offset of each field in the table, 0 for a missing field. The vtable may end before missing fields.
    fields_at = table - int.from_bytes(flatbuffer[table : table + 4], "little", signed=True)
    offset_at = 4 + 2 * number
    offset = _unsigned(flatbuffer, fields_at + offset_at, 2) if offset_at < _unsigned(flatbuffer, fields_at, 2) else 0
    return table + offset if offset else 0


def _unsigned(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size], "little")


def _check_segments(segments: pa.RecordBatch, log_ends: Longs, counts: Longs) -> None:
    """Raise ValueError unless the rows are segments in the order of their logs, within the log ends."""
    if not segments.schema.equals(segment_table.SCHEMA) or any(column.null_count for column in segments.columns):
        raise ValueError("the rows are malformed")
    check_rows(segments)
    partitions, bases, ends = (numbers_of(segments[name]) for name in ("partition", "base_offset", "next_offset"))
    if not np.array_equal(partitions, np.repeat(np.arange(len(counts)), counts)):
        raise ValueError("the segments are not in the order of their partitions")
    # a segment ends where the partition's next one begins, or before; the last one at the log end
    max_ends = log_ends[partitions]
    max_ends[:-1] = np.where(partitions[:-1] == partitions[1:], bases[1:], max_ends[:-1])
    if np.any(ends > max_ends):
        raise ValueError("the segments overlap, or end past their log")
    check_bundles(segments)


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The numbers of the base table's rows to remove, and of the `added` rows in the new table; both ascend."""

    removed_rows: Longs
    added_rows: Longs
    added: pa.RecordBatch

    @classmethod
    def between(cls, base: pa.RecordBatch, rows: pa.RecordBatch, sort_columns: tuple[str, str | None]) -> RowChanges:
        """The changes from `base` to `rows`, sorted by `sort_columns`; ValueError if equal rows are not in order."""
        if base.schema != rows.schema:
            raise ValueError("the tables have other columns")
        base_keys, keys = _sort_keys(base, sort_columns), _sort_keys(rows, sort_columns)
        insert_rows = np.searchsorted(base_keys, keys)
        candidates = np.flatnonzero(insert_rows < len(base_keys))
        # the rows whose keys are in the base, and the rows of the base with these keys
        common_rows = candidates[base_keys[insert_rows[candidates]] == keys[candidates]]
        base_rows = insert_rows[common_rows]
        is_equal = np.ones(len(base_rows), np.bool_)
        for name in base.schema.names:
            is_equal &= _are_alike(_rows_at(base[name], base_rows), _rows_at(rows[name], common_rows))
        unchanged_rows, unchanged_base_rows = common_rows[is_equal], base_rows[is_equal]
        if (np.diff(unchanged_base_rows) <= 0).any():
            raise ValueError("the rows are not in order")
        added_rows = _complement(unchanged_rows, len(rows))
        return cls(_complement(unchanged_base_rows, len(base)), added_rows, rows.take(integers(added_rows)))

    def applied(self, base: pa.RecordBatch) -> pa.RecordBatch:
        if base.schema != self.added.schema or len(self.added_rows) != len(self.added):
            raise ValueError("the changes are of another table")
        if not len(self.removed_rows) and not len(self.added_rows):
            return base
        _check_ascending(self.removed_rows, len(base))
        count = len(base) - len(self.removed_rows) + len(self.added)
        _check_ascending(self.added_rows, count)
        # for each row of the result, its number among the rows of `base` and, after them, the added rows
        sources = np.empty(count, np.int64)
        sources[self.added_rows] = np.arange(len(base), len(base) + len(self.added))
        sources[_complement(self.added_rows, count)] = _complement(self.removed_rows, len(base))
        return join([base, self.added]).take(integers(sources))


def _check_ascending(numbers: Longs, count: int) -> None:
    if (np.diff(numbers) <= 0).any() or (len(numbers) and not 0 <= numbers[0] <= numbers[-1] < count):
        raise ValueError("the changes are of rows that do not exist")


def _complement(numbers: Longs, count: int) -> Longs:
    flags = np.ones(count, np.bool_)
    flags[numbers] = False
    return np.flatnonzero(flags)


def _sort_keys(rows: pa.RecordBatch, names: tuple[str, str | None]) -> npt.NDArray[np.bytes_]:
    """A key for each row, which sorts like its values in two columns; without a second, equal rows are numbered."""
    first = numbers_of(rows[names[0]]).astype(np.int64)
    if names[1] is None:
        # the number of each row among the rows of the same value
        begins = np.flatnonzero(np.append(True, first[1:] != first[:-1])) if len(first) else np.empty(0, np.int64)
        second = np.arange(len(first)) - np.repeat(begins, np.diff(np.append(begins, len(first))))
    else:
        second = numbers_of(rows[names[1]])
    words = np.empty((len(first), 2), ">u8")
    for column_number, column in enumerate((first, second)):
        words[:, column_number] = column.astype(np.int64).view(np.uint64) ^ _SIGN_BIT
    return words.view("S16").ravel()


def _rows_at(column: pa.Array, rows: Longs) -> pa.Array:
    """Return the column's values in ascending `rows`; without a copy if these are adjacent."""
    if not len(rows) or rows[-1] - rows[0] == len(rows) - 1:
        return column.slice(int(rows[0]) if len(rows) else 0, len(rows))
    return column.take(integers(rows))


def _are_alike(first: pa.Array, second: pa.Array) -> Flags:
    """Return a flag for each row: True if the values are equal. `pc.equal` does not compare structs and lists."""
    if pa.types.is_struct(first.type):
        parts = [_are_alike(*pair) for pair in zip(first.flatten(), second.flatten(), strict=True)]
        is_struct_alike: Flags = np.logical_and.reduce(parts)
        return is_struct_alike
    if pa.types.is_list(first.type):
        lengths, second_lengths = (numbers_of(column.value_lengths()) for column in (first, second))
        is_list_alike: Flags = lengths == second_lengths
        rows = np.flatnonzero(is_list_alike)
        is_item_alike = _are_alike(*(_rows_at(column, rows).flatten() for column in (first, second)))
        # lists of the same length are alike if `differences`, the number of different items so far, does not grow
        differences = np.append(0, np.cumsum(~is_item_alike))
        ends = np.cumsum(lengths[rows])
        is_list_alike[rows] = differences[ends] == differences[ends - lengths[rows]]
        return is_list_alike
    return flags_of(pc.equal(first, second))
