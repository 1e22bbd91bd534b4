"""The actions that a commit is made of, each of which changes one thing about a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core.arrays import join, numbers_of
from distlog.core.commits import fields
from distlog.core.commits.fields import LONG, NAME, PARTITION, STEM, UUID, Integer, Text, stored
from distlog.core.commits.producer_table import ProducerBatch
from distlog.core.commits.segment_table import SCHEMA, SegmentInfo, to_columns, to_segments
from distlog.core.errors import UnsupportedVersionError
from distlog.core.integers import MAX_LONG

# If older libraries would misread a commit, its `requires` lists a feature, which stays in the topic state. This
# library knows no feature yet, so it raises an error with the names of all that are listed.


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
        """The features in a JSON object; raises ValueError."""
        return fields.read(cls, value)

    def also(self, other: Requires) -> Requires:
        if other == NOTHING:
            return self
        return Requires(_sorted(self.reader, other.reader), _sorted(self.writer, other.writer))

    def check_readable(self, file: str) -> None:
        """Raise UnsupportedVersionError, with their names, if readers need features."""
        _refuse(self.reader, "read", file)

    def check_writable(self) -> None:
        """Raise UnsupportedVersionError, with their names, if writers need features."""
        _refuse((*self.reader, *self.writer), "write to", None)


NOTHING = Requires()


def _refuse(features: Sequence[str], verb: str, file: str | None) -> None:
    if features:
        raise UnsupportedVersionError(
            f"a newer distlog wrote this topic with {', '.join(features)}: upgrade to {verb} it", file=file
        )


def _sorted(names: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*names, *more}))


MAX_PARTITIONS = 100_000
#: Prefixes of the application ids of leaders and producers. Another application with one would fence them.
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
    """Gives the topic another id, from the next commit on: for users of the former id it was dropped."""

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
    """Lets the commit add segments again that were live at `version` or later.

    Lowers the log start offset.
    """

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
    offsets: Mapping[int, tuple[int, int]] = stored(fields.offset_ranges)
    in_order: bool = stored(fields.boolean, default=False)


@dataclass(frozen=True, slots=True)
class ProducerBatches:
    """The batches of producers that a commit adds, by partition, in offset order.

    The first commit that names producers of a partition also lists batches of its earlier segments.
    """

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
class GcFloor:
    """From now on, refuses files whose read version is below `version`, so that vacuum may delete them."""

    version: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class LogFloor:
    """From now on, commits and checkpoints below `version` may be deleted; not above the vacuum horizon."""

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
    | GcFloor
    | LogFloor
)


def without_tables(actions: Iterable[Action]) -> Iterator[Action]:
    """Yield the actions, with each row of a table as an action: objects that take long to make if there are many."""
    for action in actions:
        if isinstance(action, AddTable):
            yield from map(Add, to_segments(action.rows))
        elif isinstance(action, RemoveTable):
            yield from map(Remove, action.rows["partition"].to_pylist(), action.rows["stem"].to_pylist())
        else:
            yield action


#: The field with the position of each part of a bundle that a segment may have, and the field with its size.
PARTS = (
    ("log_position", "log_bytes"),
    ("offset_index_position", "offset_index_bytes"),
    ("time_index_position", "time_index_bytes"),
)
#: The columns that `check_parts` needs.
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
        raise ValueError("a part of a bundle ends after the largest position")
    order = np.lexsort((begins + sizes, begins, owners))
    owners, begins, ends = owners[order], begins[order], (begins + sizes)[order]
    if np.any((owners[1:] == owners[:-1]) & (begins[1:] < ends[:-1])):
        raise ValueError("two parts of a bundle overlap")
