"""The actions that a commit is made of, each of which changes one thing about a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import join, numbers_of
from distlog.core.commits import fields
from distlog.core.commits.fields import LONG, NAME, PARTITION, STEM, UUID, Integer, Text, stored, unknown_fields
from distlog.core.commits.producer_table import ProducerBatch
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.segment_table import SCHEMA, to_columns, to_segments
from distlog.core.config import MAX_LONG
from distlog.core.errors import UnsupportedVersionError

# ---
# Named features: a library must know them before it reads or writes a topic.
#
# A commit with a feature that an older library would get wrong names it in `requires`. From then on the
# name is in the topic's state and in every checkpoint. A library that does not know it raises an error with its
# name.


#: Records of a segment have the time of its commit (SegmentInfo.append_time_ms), whatever its batches say.
APPEND_TIME = "append-time"

#: The actions of a commit may be in a manifest.
MANIFEST = "manifest"

#: Partitions may have active segments: a writer that adds a segment behind one first seals it, under the partition's
#: lock.
ACTIVE_SEGMENTS = "active-segments"

#: A segment may be a part of a bundle (SegmentInfo.log_position).
BUNDLES = "bundles"

#: Many actions of a commit may be one, in columns.
COLUMNS = "columns"

#: Older versions had transactions in place, which the commit log decided; one may be undecided, or lack its markers.
PRODUCER_TRANSACTIONS = "producer-transactions"

#: Commits name the producers of the batches that they add: each writer of such batches must name them, too.
PRODUCERS = "producers"

#: Many actions of a commit may be one, as a compressed table.
TABLES = "action-tables"

#: Old commits are deleted. A reader that is behind, or a writer that was slow, must not believe that a name is free
#: because nothing is there. Only writers must know it as soon as the topic sets `commit.retention.ms`.
COMMIT_RETENTION = "commit-retention"

KNOWN = frozenset(
    {
        *(APPEND_TIME, MANIFEST, ACTIVE_SEGMENTS, BUNDLES, COLUMNS, PRODUCER_TRANSACTIONS, PRODUCERS, TABLES),
        COMMIT_RETENTION,
    }
)

FEATURE = Text("[A-Za-z0-9_.-]{1,100}")
_MOST = 1000


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MOST:
        raise ValueError("must be a list of features")
    return tuple(sorted({FEATURE(name) for name in value}))


@dataclass(frozen=True, slots=True)
class Requires:
    """The features that a reader must know, and the features that only a writer must know; sorted."""

    reader: tuple[str, ...] = stored(_names, default=())
    writer: tuple[str, ...] = stored(_names, default=())

    @classmethod
    def of(cls, value: Any) -> Requires:
        """The features that the JSON object `value` names; raises ValueError."""
        return fields.read(cls, value)

    def also(self, other: Requires) -> Requires:
        """These features and the features of `other`."""
        return (
            self
            if other == NOTHING
            else Requires(_sorted(self.reader, other.reader), _sorted(self.writer, other.writer))
        )

    def beyond(self, other: Requires) -> Requires:
        """These features without the features of `other`."""
        reader, writer = set(self.reader) - set(other.reader), set(self.writer) - set(other.writer)
        return Requires(tuple(sorted(reader)), tuple(sorted(writer)))

    def check_readable(self, file: str) -> None:
        """Raise UnsupportedVersionError, with their names, if this library lacks features that a reader needs."""
        self._check(self.reader, "read", file)

    def check_writable(self) -> None:
        """Raise UnsupportedVersionError, with their names, if this library lacks features that a writer needs."""
        self._check((*self.reader, *self.writer), "write to", None)

    def _check(self, names: Iterable[str], verb: str, file: str | None) -> None:
        lacking = sorted(set(names) - KNOWN)
        if lacking:
            raise UnsupportedVersionError(
                f"a newer distlog wrote this topic with {', '.join(lacking)}: upgrade to {verb} it", file=file
            )


NOTHING = Requires()


def _sorted(left: Iterable[str], right: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*left, *right}))


# ---
# The actions that a commit is made of, each of which changes one thing about a topic; `commit_json` stores them.


MAX_PARTITIONS = 100_000
#: About two million segments.
MAX_MANIFEST_BYTES = 1 << 30
#: Where the application ids of leaders, of producers, and of micro-batches that came again begin. No other
#: application's may: its batches would end a leader, fence a producer, or hide a write.
LEADER_APP, PRODUCER_APP = RESERVED_APPS = ("leader:", "producer:")


@dataclass(frozen=True, slots=True)
class Create:
    """Begins a topic: at version 0, or after a drop; `name` is the prefix of its partition folders."""

    name: str = stored(Text("[a-zA-Z0-9._-]{1,249}"))


@dataclass(frozen=True, slots=True)
class Drop:
    """Ends the topic; its segments are no longer referenced."""


@dataclass(frozen=True, slots=True)
class SetTopicId:
    """Gives the topic another id, as a copy of a folder needs: to all that know the former one it was dropped.

    The commit itself has the former id, so it follows the commits before it; the next one has the new id.
    """

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
    """Adds a sealed segment: at the log's end, or in the place of segments that the same commit removes."""

    segment: SegmentInfo


@dataclass(frozen=True, slots=True)
class Remove:
    """Takes a segment out of the snapshot; vacuum deletes its files later."""

    partition: int = stored(PARTITION)
    stem: str = stored(STEM)


@dataclass(frozen=True, slots=True)
class AddTable:
    """Adds the segments in `rows`, in their order, as an Add for each does; of SegmentTable's SCHEMA."""

    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class RemoveTable:
    """Takes out the segments in `rows`, as a Remove for each does; of REMOVED_SCHEMA."""

    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class SetLogStartOffset:
    """Raises a partition's log start offset; above the log end only while the partition holds no segment."""

    partition: int = stored(PARTITION)
    offset: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class Restore:
    """Lets the commit add segments again that were live at `version` or later; lowers the log start offset.

    The version must not be below the gc floor: vacuum keeps the files of these versions. A library that does not know
    this action refuses the commit; a checkpoint has no trace of it.
    """

    partition: int = stored(PARTITION)
    offset: int = stored(LONG)
    version: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class SetTransaction:
    """Records an application's batch and the offsets it got by partition (Delta's set transaction).

    `in_order` says that the application numbers its batches, and commits them one after the other. So much lower
    numbers may be forgotten. A library that does not know this keeps them for thirty days, which does no harm.
    """

    app_id: str = stored(NAME)
    batch_id: int | str = stored(fields.batch_id)
    offsets: Mapping[int, tuple[int, int]] = stored(fields.offset_ranges)
    in_order: bool = stored(fields.boolean, default=False)
    unknown: str = unknown_fields()


@dataclass(frozen=True, slots=True)
class ProducerBatches:
    """The producers of the batches that a commit adds, by partition, in the order of the offsets.

    A partition whose producers no commit has named yet may get earlier batches, too. A library that does not know
    this action may read the topic, but not write it: the next writer would not know the batches that it appended.
    """

    batches: Mapping[int, tuple[ProducerBatch, ...]]


#: Kafka's names for the states of a transaction: it is open; it is decided; its markers are in all partitions.
ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE = "ongoing", "prepare_commit", "prepare_abort", "complete"


@dataclass(frozen=True, slots=True)
class InPlaceTransaction:
    """A transaction in place, of an older version: its records are in `partitions`, and wait for end markers there.

    Today's version begins none. It ends a transaction that was left, see `begin_producer`. `generation` counts the
    producers with the transactional id, `number` the transactions of one of them. It goes from ONGOING to
    PREPARE_COMMIT or PREPARE_ABORT, which is the decision, and then to COMPLETE, or gives way to the next one.
    """

    transactional_id: str = stored(NAME)
    generation: int = stored(LONG)
    number: int = stored(LONG)
    producer_id: int = stored(LONG)
    producer_epoch: int = stored(Integer(0, 2**15 - 1))
    state: str = stored(Text(f"{ONGOING}|{PREPARE_COMMIT}|{PREPARE_ABORT}|{COMPLETE}"))
    partitions: tuple[int, ...] = stored(fields.numbers_of(PARTITION))
    timeout_ms: int = stored(LONG)
    started_ms: int = stored(LONG, default=0)
    unknown: str = unknown_fields()

    @property
    def place(self) -> tuple[int, int]:
        """Its place among the transactions of the transactional id: later ones have a higher place."""
        return self.generation, self.number

    @property
    def is_decided(self) -> bool:
        """True if it is to be committed or aborted, and nothing can change that."""
        return self.state in (PREPARE_COMMIT, PREPARE_ABORT)

    def of(self, state: str) -> InPlaceTransaction:
        """This transaction in another state."""
        return replace(self, state=state)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Compaction has cleaned the partition below `first_dirty_offset` (Kafka's cleaner-offset-checkpoint)."""

    partition: int = stored(PARTITION)
    first_dirty_offset: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class Active:
    """Opens a segment that all processes append to in place, from the partition's log end offset on."""

    partition: int = stored(PARTITION)
    stem: str = stored(STEM)
    base_offset: int = stored(LONG)
    unknown: str = unknown_fields()


@dataclass(frozen=True, slots=True)
class Seal:
    """Closes the partition's active segment; unless it is empty, an Add of the same stem follows."""

    partition: int = stored(PARTITION)
    stem: str = stored(STEM)


@dataclass(frozen=True, slots=True)
class GcFloor:
    """From now on, refuses files whose read version is below `version`, so that vacuum may delete them."""

    version: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class LogFloor:
    """From now on, the commits, checkpoints and manifests of versions below `version` may be deleted.

    It is not above the gc floor: to find files that may be deleted, vacuum reads the commits behind that.
    """

    version: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class Pin:
    """Asks vacuum to keep the files of `version`, and its commit, until the time `until_ms`, under a name."""

    name: str = stored(NAME)
    version: int = stored(LONG)
    until_ms: int = stored(LONG)
    unknown: str = unknown_fields()


@dataclass(frozen=True, slots=True)
class Unpin:
    """Takes a pin back."""

    name: str = stored(NAME)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Stands, in the bytes of a commit only, for the actions in a file; readers of the commit get those actions."""

    file: str = stored(Text(paths.MANIFEST_PATTERN))
    size: int = stored(Integer(1, MAX_MANIFEST_BYTES))
    crc32c: int = stored(Integer(0, 2**32 - 1))


@dataclass(frozen=True, slots=True)
class UnknownAction:
    """An action of a newer library that changes nothing for readers: it stops only writers."""

    kind: str


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
    | InPlaceTransaction
    | Cleaned
    | Active
    | Seal
    | GcFloor
    | LogFloor
    | Pin
    | Unpin
    | Manifest
    | UnknownAction
)


def each(actions: Iterable[Action]) -> Iterator[Action]:
    """The actions with those of tables one by one: as objects, which take long to make if there are many."""
    for action in actions:
        if isinstance(action, AddTable):
            yield from map(Add, to_segments(action.rows))
        elif isinstance(action, RemoveTable):
            yield from map(Remove, action.rows["partition"].to_pylist(), action.rows["stem"].to_pylist())
        else:
            yield action


# ---
# The rule of bundles: no byte of one belongs to two parts, and every position is one that a file can have.


#: The field with the position of each part of a bundle that a segment may have, and the field with its size.
PARTS = (
    ("log_position", "log_bytes"),
    ("offset_index_position", "offset_index_bytes"),
    ("time_index_position", "time_index_bytes"),
)
#: The columns of a segment that the rule is about.
_PART_SCHEMA = pa.schema([SCHEMA.field(name) for name in ("stem", *chain.from_iterable(PARTS))])


def check_added(actions: Sequence[Action]) -> None:
    """Raise ValueError if parts overlap that one commit adds: a task writes and commits a bundle as a whole."""
    added = [action.segment for action in actions if isinstance(action, Add) and action.segment.is_bundled]
    batches = [action.rows.select(_PART_SCHEMA.names) for action in actions if isinstance(action, AddTable)]
    if added:
        batches.append(to_columns(added, _PART_SCHEMA))
    if batches:
        check(join(batches))


def check(segments: pa.RecordBatch) -> None:
    """Raise ValueError if parts of bundles overlap or end too far; `segments` are rows of SegmentTable's SCHEMA."""
    if not (numbers_of(segments["log_position"]) >= 0).any():
        return
    stems = numbers_of(segments["stem"].dictionary_encode().indices)
    columns = [(numbers_of(segments[begin]), numbers_of(segments[size])) for begin, size in PARTS]
    owners = np.concatenate([stems[begins >= 0] for begins, _ in columns])
    begins = np.concatenate([begins[begins >= 0] for begins, _ in columns])
    sizes = np.concatenate([sizes[begins >= 0] for begins, sizes in columns])
    if np.any(begins > MAX_LONG - sizes):
        raise ValueError("a part of a bundle ends behind the largest position")
    order = np.lexsort((begins + sizes, begins, owners))
    owners, begins, ends = owners[order], begins[order], (begins + sizes)[order]
    if np.any((owners[1:] == owners[:-1]) & (begins[1:] < ends[:-1])):
        raise ValueError("two parts of a bundle overlap")
