"""The actions that a commit is made of, each of which changes one thing about a topic; `action_json` stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from distlog.core import paths
from distlog.core.commits.format import fields
from distlog.core.commits.format.fields import LONG, NAME, PARTITION, STEM, Integer, Text, stored, unknown_fields
from distlog.core.commits.format.segment_info import SegmentInfo

MAX_PARTITIONS = 100_000
#: About two million segments.
MAX_MANIFEST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Create:
    """Begins a topic: at version 0, or after a drop; `name` is the prefix of its partition folders."""

    name: str = stored(Text("[a-zA-Z0-9._-]{1,249}"))


@dataclass(frozen=True, slots=True)
class Drop:
    """Ends the topic; its segments are no longer referenced."""


@dataclass(frozen=True, slots=True)
class SetPartitions:
    """Raises the number of partitions to `count`."""

    count: int = stored(Integer(1, MAX_PARTITIONS))


@dataclass(frozen=True, slots=True)
class SetConfig:
    """Replaces the topic's settings; `settings` is what the topic sets itself (TopicConfig.overrides)."""

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
class SetLogStartOffset:
    """Raises a partition's log start offset; above the log end only while the partition holds no segment."""

    partition: int = stored(PARTITION)
    offset: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class Restore:
    """Lets the commit add segments again that were live at `version` or later; lowers the log start offset.

    The version must not be below the gc floor: vacuum keeps the files of these versions. A library that does not know
    this action refuses the commit; in a checkpoint nothing is left of it.
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


#: Kafka's names for the states of a transaction: it is open; it is decided; its markers are in all partitions.
ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE = "ongoing", "prepare_commit", "prepare_abort", "complete"


@dataclass(frozen=True, slots=True)
class ProducerTransaction:
    """The newest transaction of a transactional id: in place, over the `partitions` that it may have written to.

    `generation` counts the producers with this id, `number` the transactions of one of them. The commit that begins
    one gives it `started_ms`. It goes from ONGOING to PREPARE_COMMIT or PREPARE_ABORT, which is the decision, and
    then to COMPLETE, or gives way to the next one.
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
        """Which transaction of the transactional id it is: later ones have a higher place."""
        return self.generation, self.number

    @property
    def is_decided(self) -> bool:
        """Whether it is to be committed or aborted, and nothing can change that."""
        return self.state in (PREPARE_COMMIT, PREPARE_ABORT)

    def of(self, state: str) -> ProducerTransaction:
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
class Pin:
    """Asks vacuum to keep the files of `version` until the time `until_ms`, under a name."""

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
    | SetPartitions
    | SetConfig
    | Add
    | Remove
    | SetLogStartOffset
    | Restore
    | SetTransaction
    | ProducerTransaction
    | Cleaned
    | Active
    | Seal
    | GcFloor
    | Pin
    | Unpin
    | Manifest
    | UnknownAction
)
