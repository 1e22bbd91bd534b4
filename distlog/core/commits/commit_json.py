"""A commit and its JSON: the only thing that ever changes a topic."""

from __future__ import annotations

import dataclasses
import itertools
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from distlog.core import paths
from distlog.core.arrays import integers, texts
from distlog.core.commits import fields
from distlog.core.commits.action_table import (
    ADD_TABLE,
    MOST_ROWS,
    MOST_ROWS_OF_TABLE,
    RELATIVE,
    REMOVE_TABLE,
    read_table,
    write_table,
)
from distlog.core.commits.actions import (
    FEATURE,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    MAX_PARTITIONS,
    NOTHING,
    Action,
    Active,
    Add,
    AddTable,
    Cleaned,
    Create,
    Drop,
    GcFloor,
    InPlaceTransaction,
    LogFloor,
    Manifest,
    Pin,
    ProducerBatches,
    Remove,
    RemoveTable,
    Requires,
    Restore,
    Seal,
    SetConfig,
    SetLogStartOffset,
    SetPartitions,
    SetTopicId,
    SetTransaction,
    UnknownAction,
    Unpin,
    each,
)
from distlog.core.commits.fields import LONG, NAME, UUID, Integer, Text, optional, stored
from distlog.core.commits.producer_table import BOUNDS, NONE, ProducerBatch
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.segment_table import REMOVED_SCHEMA, to_columns
from distlog.core.config import MAX_LONG
from distlog.core.errors import CommitConflictError, CorruptMetadataError, UnsupportedVersionError
from distlog.core.paths import NEW_STEM_PATTERN
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage

# ---
# The JSON of many actions of one kind as one action in columns: parts of bundles that are added, segments removed.
#
#     {"adds":{"stems":["<stem>"],"stem":0,"partition":[0,1,1,1],"base_offset":[500,0,0,0],"next_offset":50,...}}
#     {"removes":{"stems":["<stem>",...],"stem":[0,1,0,0],"partition":[0,0,1,0]}}
#
# A column is a list with a value for each action, or one value for all. `stem` is a number in `stems`. A column of
# STEPS has the first value, and then the differences. One of RELATIVE has differences to another column. A column
# that has its field's default is left out. So a part of a bundle takes a tenth of the bytes that it takes alone.


#: The names of the actions in columns.
ADDS, REMOVES = "adds", "removes"
#: Columns stand for no more actions: `fields.check` refuses a text of too many values.
MOST_ACTIONS = 28_000
#: So many actions of a kind are a table, see `action_table`.
TABLE_ROWS = 256
_MOST_VALUES = 100 * MOST_ACTIONS

STEPS = frozenset(
    {"partition", "base_offset", "created_ms", "log_position", "offset_index_position", "time_index_position"}
)
_CHECKS = fields.checks(SegmentInfo)
_DEFAULTS = {name: spec.default for name, spec in SegmentInfo.__dataclass_fields__.items() if name in _CHECKS}


def in_tables(actions: Sequence[Action]) -> list[Action]:
    """The actions, of which long runs of segments that are added or removed are tables."""
    if len(actions) < TABLE_ROWS:
        return list(actions)
    tabled = list[Action]()
    for kind, group in itertools.groupby(actions, _table_kind):
        run: list[Any] = list(group)
        if kind is None or len(run) < TABLE_ROWS:
            tabled += run
        elif kind is Add:
            tabled.append(AddTable(to_columns([action.segment for action in run])))
        else:
            facts = [integers([action.partition for action in run]), texts([action.stem for action in run])]
            tabled.append(RemoveTable(pa.RecordBatch.from_arrays(facts, schema=REMOVED_SCHEMA)))
    return tabled


def replacing(removed: pa.RecordBatch, added: pa.RecordBatch) -> list[Action]:
    """The actions that take out the segments in `removed`, and add those in `added`: tables if these are many."""
    tables: list[Action] = [RemoveTable(removed), AddTable(added)]
    return tables if max(len(removed), len(added)) >= TABLE_ROWS else [*each(tables)]


def _table_kind(action: Action) -> type | None:
    if isinstance(action, Add):
        return None if action.segment.unknown else Add
    return Remove if isinstance(action, Remove) else None


def runs(actions: Sequence[Action]) -> Iterator[tuple[str | None, list[Action]]]:
    """The actions in runs, each with the name that it has in columns; None for what is written one by one."""
    if len(actions) > MOST_ACTIONS:
        yield None, list(actions)
        return
    for kind, group in itertools.groupby(actions, _kind):
        run = list(group)
        yield kind if kind and _pays(kind, run) else None, run


def uses_columns(actions: Sequence[Action]) -> bool:
    """True if a commit of `actions` has actions in columns, which a reader must know."""
    return any(kind for kind, _ in runs(actions))


def _kind(action: Action) -> str | None:
    if isinstance(action, Add) and action.segment.is_bundled and not action.segment.unknown:
        return ADDS
    return REMOVES if isinstance(action, Remove) else None


def _pays(kind: str, run: Sequence[Any]) -> bool:
    """True if columns are worth it, so that topics without bundles stay readable for libraries without them."""
    return len(run) > 1 if kind == ADDS else 2 * len({action.stem for action in run}) <= len(run)


def write_run(kind: str, run: Sequence[Any]) -> dict[str, Any]:
    """The JSON object of a run that has the name `kind`."""
    rows = [action.segment for action in run] if kind == ADDS else run
    names = _CHECKS if kind == ADDS else ("partition", "stem")
    return {kind: _encoded({name: [getattr(row, name) for row in rows] for name in names})}


def read_run(kind: str, body: Any) -> list[Action]:
    """The actions that `write_run` wrote; raises ValueError."""
    if not isinstance(body, dict) or not isinstance(body.get("partition"), list):
        raise ValueError(f"{kind} must be an object of columns, among them a list of partitions")
    columns = _decoded({name: column for name, column in body.items() if name != "stems"}, body.get("stems"))
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if kind == ADDS:
        return [Add(fields.read(SegmentInfo, row)) for row in rows]
    return [fields.read(Remove, row) for row in rows]


def _encoded(columns: dict[str, list[Any]]) -> dict[str, Any]:
    stems = {stem: number for number, stem in enumerate(dict.fromkeys(columns["stem"]))}
    encoded = {**columns, "stem": [stems[stem] for stem in columns["stem"]]}
    for name in STEPS & columns.keys():
        encoded[name] = [after - before for before, after in itertools.pairwise([0, *columns[name]])]
    for name, other in RELATIVE.items():
        if name in columns:
            encoded[name] = [own - base for own, base in zip(columns[name], columns[other], strict=True)]
    short = {name: _short(column) for name, column in encoded.items() if set(columns[name]) != {_DEFAULTS.get(name)}}
    # the list that says how many there are
    return {"stems": list(stems), **short, "partition": encoded["partition"]}


def _short(column: list[Any]) -> Any:
    return column[0] if len(set(column)) == 1 else column


def _decoded(body: dict[str, Any], stems: Any) -> dict[str, list[Any]]:
    count = len(body["partition"])
    # a value for all takes a few bytes, however many it stands for
    if count > MOST_ACTIONS or count * len(body) > _MOST_VALUES:
        raise ValueError(f"{count} actions of {len(body)} values are more than a commit has")
    columns = {name: _long(name, column, count) for name, column in body.items()}
    if not isinstance(stems, list):
        raise ValueError("stems must be a list")
    if "stem" not in columns:
        # without it the files of one segment would stand for those of another
        raise ValueError("stem: there must be a column of stems")
    number = fields.Integer(0, len(stems) - 1)
    columns["stem"] = [stems[number(each)] for each in columns["stem"]]
    for name in STEPS & columns.keys():
        columns[name] = list(itertools.accumulate(_numbers(name, columns[name])))
    for name, other in RELATIVE.items():
        if name in columns:
            bases = columns.get(other, [_DEFAULTS[other]] * count)
            columns[name] = [
                own + base for own, base in zip(_numbers(name, columns[name]), _numbers(other, bases), strict=True)
            ]
    return columns


def _long(name: str, column: Any, count: int) -> list[Any]:
    if not isinstance(column, list):
        return [column] * count
    if len(column) != count:
        raise ValueError(f"{name}: a column must have a value for each of the {count} partitions")
    return column


def _numbers(name: str, column: list[Any]) -> list[int]:
    if set(map(type, column)) - {int}:
        raise ValueError(f"{name}: must be integers")
    return column


# ---
# The JSON of what a commit tells of producers: columns, too. The first value of a column of PRODUCER_STEPS stands
# for itself, the others are differences.
#
#     {"producers":{"reader_safe":true,"partition":[0,1],"producer_id":7,"producer_epoch":0,"last_sequence":4,...}}


#: The name of the action.
PRODUCERS = "producers"
#: A commit tells of no more batches of producers.
MOST_PRODUCER_BATCHES = 100_000
PRODUCER_STEPS = ("partition", "last_offset", "timestamp")
_PRODUCER_DEFAULTS = {"kind": 0, "coordinator_epoch": NONE}


def write_producers(action: ProducerBatches) -> dict[str, Any]:
    """The JSON object of the action."""
    rows = [(partition, *batch) for partition, batches in action.batches.items() for batch in batches]
    columns: dict[str, Any] = dict(zip(("partition", *BOUNDS), map(list, zip(*rows, strict=True)), strict=True))
    for name in PRODUCER_STEPS:
        columns[name] = [after - before for before, after in itertools.pairwise([0, *columns[name]])]
    short = {name: _short(column) for name, column in columns.items()}
    shown = {name: column for name, column in short.items() if column != _PRODUCER_DEFAULTS.get(name)}
    # the list that says how many there are
    return {PRODUCERS: {"reader_safe": True, **shown, "partition": columns["partition"]}}


def read_producers(body: Any) -> ProducerBatches:
    """The action that `write_producers` wrote; raises ValueError."""
    if not isinstance(body, dict) or not isinstance(body.get("partition"), list):
        raise ValueError(f"{PRODUCERS} must be an object of columns, among them a list of partitions")
    count = len(body["partition"])
    if not 0 < count <= MOST_PRODUCER_BATCHES:
        raise ValueError(f"a commit has 1 to {MOST_PRODUCER_BATCHES} batches of producers, not {count}")
    columns = {}
    for name in ("partition", *BOUNDS):
        if name not in body and name not in _PRODUCER_DEFAULTS:
            raise ValueError(f"{name}: {PRODUCERS} must have this column")
        column = _numbers(name, _long(name, body.get(name, _PRODUCER_DEFAULTS.get(name)), count))
        columns[name] = list(itertools.accumulate(column)) if name in PRODUCER_STEPS else column
        low, high = BOUNDS.get(name, (0, MAX_PARTITIONS - 1))
        if min(columns[name]) < low or max(columns[name]) > high:
            raise ValueError(f"{name}: must be integers from {low} to {high}")
    found: dict[int, list[ProducerBatch]] = {}
    for partition, *values in zip(*columns.values(), strict=True):
        found.setdefault(partition, []).append(ProducerBatch(*values))
    return ProducerBatches({partition: tuple(batches) for partition, batches in found.items()})


# ---
# The JSON of actions: an object with one member, which names the kind of the action; or many in columns.
#
# A library that does not know an action must not write the topic. It must not read it either, unless the action
# says `"reader_safe":true`.


_NAMES: dict[str, type] = {
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
    "producer_transaction": InPlaceTransaction,
    "cleaned": Cleaned,
    "active": Active,
    "seal": Seal,
    "gc_floor": GcFloor,
    "log_floor": LogFloor,
    "pin": Pin,
    "unpin": Unpin,
    "manifest": Manifest,
}
_NAME_OF = {kind: name for name, kind in _NAMES.items()}


def read_actions(items: Any) -> tuple[Action, ...]:
    """The actions of a commit, from a list of JSON objects; raises as `read_item` does."""
    if not isinstance(items, list):
        raise ValueError("must be a list")
    return tuple(read_items(items))


def read_items(items: Iterable[Any]) -> list[Action]:
    """The actions that the JSON objects describe; raises as `read_item` does, and for more than columns can tell."""
    actions, has_columns, has_producers, rows = list[Action](), False, False, 0
    for item in items:
        actions += read_item(item)
        if PRODUCERS in item and has_producers:
            raise ValueError("a commit has producers once, not several times")
        has_producers = has_producers or PRODUCERS in item
        rows += len(actions[-1].rows) if isinstance(actions[-1], AddTable | RemoveTable) else 0
        has_columns = has_columns or not item.keys().isdisjoint((ADDS, REMOVES))
        if has_columns and len(actions) > MOST_ACTIONS:
            raise ValueError(f"{len(actions)} actions, some in columns, are more than a commit has")
        if rows > MOST_ROWS:
            raise ValueError(f"tables of {rows} rows are more than a commit has")
    return actions


def write_items(actions: Sequence[Action]) -> Iterator[dict[str, Any]]:
    """The JSON objects that `read_item` turns into equal actions."""
    for kind, run in runs(actions):
        if kind is None:
            yield from chain.from_iterable(map(_written, run))
        else:
            yield write_run(kind, run)


def read_item(item: Any) -> list[Action]:
    """The actions that the JSON object `item` describes; raises ValueError, and UnsupportedVersionError."""
    name, body = named(item)
    if name in (ADD_TABLE, REMOVE_TABLE):
        return [read_table(name, body)]
    return read_run(name, body) if name in (ADDS, REMOVES) else [_read_action(name, body)]


def named(item: Any) -> tuple[str, Any]:
    """The name and the body of an action; raises ValueError."""
    if not isinstance(item, dict) or len(item) != 1:
        raise ValueError("an action must be an object with one member")
    ((name, body),) = item.items()
    return name, body


def _read_action(name: str, body: Any) -> Action:
    if name == PRODUCERS:
        return read_producers(body)
    if name not in _NAMES:
        return _unknown_action(name, body)
    if name == "add":
        return Add(fields.read(SegmentInfo, body))
    action: Action = fields.read(_NAMES[name], body)
    return action


def check_known(name: str, body: Any) -> None:
    """Raise UnsupportedVersionError if a reader must know the action `name`, and this library does not."""
    if name not in _NAMES and name not in (ADDS, REMOVES, PRODUCERS):
        _unknown_action(name, body)


def _unknown_action(name: str, body: Any) -> UnknownAction:
    if isinstance(body, dict) and body.get("reader_safe") is True:
        return UnknownAction(FEATURE(name))
    raise UnsupportedVersionError(f"a newer distlog wrote the action {name[:100]!r}: upgrade")


def _written(action: Action) -> Iterator[dict[str, Any]]:
    if isinstance(action, AddTable | RemoveTable):
        for first in range(0, len(action.rows), MOST_ROWS_OF_TABLE):
            yield write_table(type(action)(action.rows.slice(first, MOST_ROWS_OF_TABLE)))
    else:
        yield _write_action(action)


def _write_action(action: Action) -> dict[str, Any]:
    if isinstance(action, UnknownAction):
        raise UnsupportedVersionError(f"the action {action.kind!r} cannot be written: upgrade")
    if isinstance(action, ProducerBatches):
        return write_producers(action)
    body = action.segment if isinstance(action, Add) else action
    return {_NAME_OF[type(action)]: fields.write(body)}


# ---
# A commit file is one JSON object. Its last member is the CRC-32C of the bytes before it:
#
#     {"format":1,"version":7,"id":"<uuid>","prev":"<uuid>","topic_id":"<uuid>","timestamp_ms":1700000000000,
#      "operation":"append","writer":"distlog 0.1.0 ...","actions":[{"add":{...}},...],"crc32c":2882343476}
#
# A commit that needs named features has a member `requires` (see `features`). Unknown members are ignored.
# `write_id` is optional: a write that may be repeated finds its commit by it.


FORMAT = 1


#: The operation of a commit that makes an empty topic.
CREATE = "create"


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
    # The features that readers and writers need from this version on.
    requires: Requires = stored(Requires.of, default=NOTHING)
    # How long its writer has retried, since other commits came first: newer writers let it go first.
    waited_ms: int = stored(LONG, default=0)
    # The write that made the commit, if that must be recognized.
    write_id: str | None = stored(optional(NAME), default=None)
    # The stem of an append that waits in line, if many do: its writer commits next, see `commit_race`.
    next_append: str | None = stored(optional(Text(NEW_STEM_PATTERN)), default=None)
    # The size of its file, which says when the next checkpoint is due; 0 until it was read from one.
    size: int = dataclasses.field(default=0, compare=False)

    def encode(self) -> bytes:
        """The bytes of the commit file."""
        facts = {name: value for name, value in fields.write(self).items() if value != _COMMIT_DEFAULTS[name]}
        body = {"format": FORMAT, **facts, "actions": list(write_items(self.actions))}
        return fields.write_text(body, fields.write)

    @classmethod
    def decode(cls, data: bytes, file: str) -> Commit:
        """The commit that the bytes of `file` hold.

        Raises UnsupportedVersionError when a newer library wrote what this one must not ignore,
        CorruptMetadataError for anything else that is not a commit.
        """
        try:
            return fields.read(cls, parse(data, file), size=len(data))
        except (ValueError, RecursionError) as error:
            raise CorruptMetadataError(f"not a commit: {error}; restore the file from a copy", file=file) from error


#: Fields that are not written where they are empty.
_COMMIT_DEFAULTS = {spec.name: spec.default for spec in dataclasses.fields(Commit)}


def parse(data: bytes, file: str) -> Any:
    """The JSON object of the commit `file`; raises ValueError, and UnsupportedVersionError for a feature it lacks."""
    body = fields.parse(data)
    if not isinstance(body, dict):
        raise ValueError("a commit must be an object")
    if fields.LONG(body.get("format")) > FORMAT:
        raise UnsupportedVersionError("a newer distlog wrote this topic: upgrade", file=file, format=body["format"])
    fields.check_sum(data)
    # before the rest: a reader that lacks the feature may not be able to make sense of that
    Requires.of(body.get("requires", {})).check_readable(file)
    return body


# ---
# Manifests: files with the actions of commits that are too large for a conditional put.
#
# A manifest has one action per line, or many in columns, as in a commit. Its commit holds the name, size and
# checksum of the manifest instead of the actions. The manifest is durable before the commit is put, and has a
# unique name, so that the loser of a race overwrites nothing. A manifest of a commit is kept as long as the
# commit is. Vacuum deletes an unreferenced manifest that was begun below the gc floor.


# The least bytes of a segment's action: too many segments are refused before their commit is encoded.
_ADD_BYTES = 500


def encode(actions: Sequence[Action]) -> bytes:
    """The bytes of a manifest of `actions`."""
    lines = (json.dumps(item, default=fields.write, separators=(",", ":")) for item in write_items(actions))
    return b"".join(line.encode() + b"\n" for line in lines)


def expanded(commit: Commit, read: Callable[[Manifest], bytes]) -> Commit:
    """`commit` with the actions of its manifest, which `read` reads; CorruptMetadataError if they are not valid."""
    if not any(isinstance(action, Manifest) for action in commit.actions):
        return commit
    actions: list[Action] = []
    for action in commit.actions:
        actions += _decode(read(action), action) if isinstance(action, Manifest) else [action]
    return dataclasses.replace(commit, actions=tuple(actions), size=commit.size + manifest_bytes(commit))


def manifest_bytes(commit: Commit) -> int:
    """The size of the manifests of `commit`."""
    return sum(action.size for action in commit.actions if isinstance(action, Manifest))


def _decode(data: bytes, manifest: Manifest) -> list[Action]:
    file = manifest.file
    if len(data) != manifest.size or crc32c(data) != manifest.crc32c:
        raise CorruptMetadataError("the manifest does not match its commit; restore it from a copy", file=file)
    try:
        fields.check(data)
        actions = read_items(json.loads(line) for line in data.splitlines())
    except (ValueError, RecursionError) as error:
        raise CorruptMetadataError(f"not a manifest: {error}; restore the file from a copy", file=file) from error
    if any(isinstance(action, Manifest) for action in actions):
        raise CorruptMetadataError("a manifest names no manifest; restore the file from a copy", file=file)
    return actions


def read(storage: Storage, manifest: Manifest) -> bytes:
    """The bytes of `manifest`, at most one more than its size; CorruptMetadataError when it is missing."""
    try:
        return storage.read(manifest.file, 0, manifest.size + 1)
    except FileNotFoundError:
        raise CorruptMetadataError("a manifest is missing; restore it from a copy", file=manifest.file) from None


class CommitWriter:
    """Makes the bytes of one commit, again after each lost race, and a manifest if the commit is too large.

    A commit of more than `limit` bytes gets a manifest.
    """

    def __init__(self, storage: Storage, limit: int = MAX_CONDITIONAL_BYTES) -> None:
        self._storage, self._limit = storage, limit
        self._manifest: Manifest | None = None
        self._lines = b""
        self._is_written = False

    def encode(self, commit: Commit, read_version: int, gc_floor: int) -> bytes:
        """The commit's bytes. `read_version` is that of a new manifest; one with the same actions is kept.

        Raises CommitConflictError when the commit is too large even with a manifest.
        """
        if len(commit.actions) * _ADD_BYTES <= self._limit:
            data = commit.encode()
            if len(data) <= self._limit:
                self._manifest = None
                return data
        self._manifest = self._manifest_of(encode(commit.actions), read_version, gc_floor)
        requires = commit.requires.also(Requires(reader=(MANIFEST,)))
        return dataclasses.replace(commit, actions=(self._manifest,), requires=requires).encode()

    def _manifest_of(self, lines: bytes, read_version: int, gc_floor: int) -> Manifest:
        if len(lines) > MAX_MANIFEST_BYTES:
            raise CommitConflictError(
                f"nothing was committed: a commit takes up to {MAX_MANIFEST_BYTES} bytes; do it in several",
                size=len(lines),
            )
        last = self._manifest
        if last and lines == self._lines and (paths.manifest_read_version(last.file) or 0) >= gc_floor:
            return last
        self._lines, self._is_written = lines, False
        return Manifest(paths.manifest_file(read_version, uuid.uuid4().hex), len(lines), crc32c(lines))

    def decode(self, data: bytes, file: str) -> Commit:
        """The commit that readers get from `data`, which `encode` made."""
        return expanded(Commit.decode(data, file), lambda manifest: self._lines)

    def write_manifest(self) -> None:
        """Make a new manifest durable; call it before the commit is put."""
        if self._manifest and not self._is_written:
            self._storage.put(self._manifest.file, self._lines)
            self._is_written = True
