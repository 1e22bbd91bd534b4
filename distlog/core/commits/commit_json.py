"""A commit and its JSON: the only thing that ever changes a topic."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distlog.core.arrays import integers, texts
from distlog.core.commits import fields
from distlog.core.commits.action_table import (
    ADD_TABLE,
    MOST_ROWS,
    MOST_ROWS_OF_TABLE,
    REMOVE_TABLE,
    read_table,
    write_table,
)
from distlog.core.commits.actions import (
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
    LogFloor,
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
    without_tables,
)
from distlog.core.commits.fields import LONG, NAME, UUID, Integer, Text, optional, stored
from distlog.core.commits.producer_table import BOUNDS, NONE, ProducerBatch
from distlog.core.commits.segment_table import REMOVED_SCHEMA, SegmentInfo, to_columns
from distlog.core.errors import CorruptMetadataError, UnsupportedVersionError
from distlog.core.integers import MAX_LONG
from distlog.core.paths import NEW_STEM_PATTERN

#: From this number on, actions of a kind are a table, see `action_table`.
TABLE_ROWS = 32


def in_tables(actions: Sequence[Action]) -> list[Action]:
    """The actions, of which long runs of segments that are added or removed are tables."""
    if len(actions) < TABLE_ROWS:
        return list(actions)
    tabled = list[Action]()
    for kind, group in itertools.groupby(actions, type):
        run: list[Any] = list(group)
        if kind not in (Add, Remove) or len(run) < TABLE_ROWS:
            tabled += run
        elif kind is Add:
            tabled.append(AddTable(to_columns([action.segment for action in run])))
        else:
            columns = [integers([action.partition for action in run]), texts([action.stem for action in run])]
            tabled.append(RemoveTable(pa.RecordBatch.from_arrays(columns, schema=REMOVED_SCHEMA)))
    return tabled


def replacing(removed: pa.RecordBatch, added: pa.RecordBatch) -> list[Action]:
    """The actions that take out the segments in `removed`, and add those in `added`: tables if these are many."""
    tables: list[Action] = [RemoveTable(removed), AddTable(added)]
    return tables if max(len(removed), len(added)) >= TABLE_ROWS else [*without_tables(tables)]


#: The name of the action.
PRODUCERS = "producers"
#: Batches of producers that a commit records at most.
MOST_PRODUCER_BATCHES = 100_000
PRODUCER_STEPS = ("partition", "last_offset", "timestamp")
_PRODUCER_DEFAULTS = {"kind": 0, "coordinator_epoch": NONE}


def _long(name: str, column: Any, count: int) -> list[Any]:
    if not isinstance(column, list):
        return [column] * count
    if len(column) != count:
        raise ValueError(f"{name}: a column must have a value for each of the {count} partitions")
    return column


def _short(column: list[Any]) -> Any:
    return column[0] if len(set(column)) == 1 else column


def _numbers(name: str, column: list[Any]) -> list[int]:
    if set(map(type, column)) - {int}:
        raise ValueError(f"{name}: must be integers")
    return column


def write_producers(action: ProducerBatches) -> dict[str, Any]:
    """The JSON object of the action."""
    rows = [(partition, *batch) for partition, batches in action.batches.items() for batch in batches]
    columns: dict[str, Any] = dict(zip(("partition", *BOUNDS), map(list, zip(*rows, strict=True)), strict=True))
    for name in PRODUCER_STEPS:
        columns[name] = [value - previous for previous, value in itertools.pairwise([0, *columns[name]])]
    short = {name: _short(column) for name, column in columns.items()}
    shown = {name: column for name, column in short.items() if column != _PRODUCER_DEFAULTS.get(name)}
    # the list that says how many there are
    return {PRODUCERS: {**shown, "partition": columns["partition"]}}


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
    batches_by_partition: dict[int, list[ProducerBatch]] = {}
    for partition, *values in zip(*columns.values(), strict=True):
        batches_by_partition.setdefault(partition, []).append(ProducerBatch(*values))
    return ProducerBatches({partition: tuple(batches) for partition, batches in batches_by_partition.items()})


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
    "cleaned": Cleaned,
    "active": Active,
    "seal": Seal,
    "gc_floor": GcFloor,
    "log_floor": LogFloor,
}
_NAME_OF = {kind: name for name, kind in _NAMES.items()}


def read_actions(items: Any) -> tuple[Action, ...]:
    """The actions of a commit, from a list of JSON objects; raises ValueError, and UnsupportedVersionError."""
    if not isinstance(items, list):
        raise ValueError("must be a list")
    actions = tuple(_read_action(*named(item)) for item in items)
    if sum(isinstance(action, ProducerBatches) for action in actions) > 1:
        raise ValueError("a commit has producers once, not several times")
    rows = sum(len(action.rows) for action in actions if isinstance(action, AddTable | RemoveTable))
    if rows > MOST_ROWS:
        raise ValueError(f"tables of {rows} rows are more than a commit has")
    return actions


def write_actions(actions: Iterable[Action]) -> list[dict[str, Any]]:
    """The JSON objects that `read_actions` turns into the actions; a table of too many rows becomes several."""
    return [item for action in actions for item in _write_action(action)]


def named(item: Any) -> tuple[str, Any]:
    """The name and the body of an action; raises ValueError."""
    if not isinstance(item, dict) or len(item) != 1:
        raise ValueError("an action must be an object with one member")
    ((name, body),) = item.items()
    return name, body


def check_known(name: str) -> None:
    """Raise UnsupportedVersionError unless this library knows the action `name`."""
    if name not in _NAMES and name not in (ADD_TABLE, REMOVE_TABLE, PRODUCERS):
        raise UnsupportedVersionError(f"a newer distlog wrote the action {name[:100]!r}: upgrade")


def _read_action(name: str, body: Any) -> Action:
    check_known(name)
    if name in (ADD_TABLE, REMOVE_TABLE):
        return read_table(name, body)
    if name == PRODUCERS:
        return read_producers(body)
    if name == "add":
        return Add(fields.read(SegmentInfo, body))
    action: Action = fields.read(_NAMES[name], body)
    return action


def _write_action(action: Action) -> Iterator[dict[str, Any]]:
    match action:
        case AddTable() | RemoveTable():
            for first in range(0, len(action.rows), MOST_ROWS_OF_TABLE):
                yield write_table(type(action)(action.rows.slice(first, MOST_ROWS_OF_TABLE)))
        case ProducerBatches():
            yield write_producers(action)
        case Add(segment):
            yield {"add": fields.write(segment)}
        case _:
            yield {_NAME_OF[type(action)]: fields.write(action)}


#: The format of commits and checkpoints: docs/formats.md has the layouts.
FORMAT = 2
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
    # The stem of a queued append, if many are queued: its writer commits next, see `commit_race`.
    next_append: str | None = stored(optional(Text(NEW_STEM_PATTERN)), default=None)
    # The size of its file, which says when the next checkpoint is due; 0 until it was read from one.
    size: int = dataclasses.field(default=0, compare=False)

    def encode(self) -> bytes:
        """The bytes of the commit file."""
        body = {"format": FORMAT, **fields.write(self), "actions": write_actions(self.actions)}
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


def parse(data: bytes, file: str) -> Any:
    """The JSON object of the commit `file`; raises ValueError, and UnsupportedVersionError for a feature it lacks."""
    body = fields.parse(data)
    if not isinstance(body, dict):
        raise ValueError("a commit must be an object")
    check_format(body.get("format"), file)
    fields.check_sum(data)
    # before the rest: a reader that lacks the feature may not be able to make sense of that
    Requires.of(body.get("requires", {})).check_readable(file)
    return body


def check_format(stored_format: Any, file: str) -> None:
    """Raise UnsupportedVersionError for another format of a commit or checkpoint, and ValueError for no number."""
    if fields.LONG(stored_format) > FORMAT:
        raise UnsupportedVersionError("a newer distlog wrote this topic: upgrade", file=file, format=stored_format)
    if stored_format < FORMAT:
        raise UnsupportedVersionError(
            "a distlog from before the first release wrote this topic: read it with that, and append it to a new one",
            file=file,
            format=stored_format,
        )
