"""The state of a topic at one version, as a value: what `fold` makes of commits, and what plans are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distlog.core.commits.actions import Active, Pin
from distlog.core.commits.features import NOTHING, Requires
from distlog.core.commits.segment_table import EMPTY, SegmentTable
from distlog.core.commits.transaction_table import TransactionInfo, TransactionTable
from distlog.core.config import TopicConfig


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition: offsets from `log_start_offset` (in) to `log_end_offset` (out) and what holds them.

    Below `first_dirty_offset` the partition is compacted. An `active` segment begins at
    `log_end_offset` and grows in place; how far is in its file, not here.
    """

    log_start_offset: int = 0
    log_end_offset: int = 0
    segments: SegmentTable = EMPTY
    first_dirty_offset: int = 0
    active: Active | None = None
    unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A topic at `version`; immutable, so it is shared, kept and pickled freely.

    `name` is the prefix of the partition folders: the topic's name when it was created.
    `gc_floor` is the version below which no transaction may have begun that is still to commit.
    `commit_bytes` counts all commits so far. `requires` names what readers and writers must know. `unknown` is what
    a newer library stored besides, kept for it.
    """

    version: int
    commit_id: str
    topic_id: str
    name: str
    timestamp_ms: int
    config: TopicConfig
    partitions: tuple[PartitionState, ...]
    transactions: TransactionTable
    gc_floor: int = 0
    pins: Mapping[str, Pin]
    dropped: bool = False
    requires: Requires = NOTHING
    unknown: str = ""
    commit_bytes: int = 0

    def transaction(self, app_id: str, batch_id: int | str) -> TransactionInfo | None:
        """What the application's batch got when it was committed, or None if it was not, or over 30 days ago."""
        return self.transactions.get(app_id, batch_id)
