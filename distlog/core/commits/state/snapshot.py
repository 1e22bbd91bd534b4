"""The state of a topic at one version: `fold` makes it from commits, and plans are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distlog.core.commits.format.actions import Active, Pin, ProducerTransaction
from distlog.core.commits.format.features import NOTHING, Requires
from distlog.core.commits.format.segment_info import NO_OFFSET
from distlog.core.commits.state.segment_table import EMPTY, SegmentTable
from distlog.core.commits.state.transaction_columns import TransactionInfo
from distlog.core.commits.state.transaction_table import TransactionTable
from distlog.core.config import TopicConfig


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition: offsets from `log_start_offset` (in) to `log_end_offset` (out) and what holds them.

    Below `first_dirty_offset` the partition is compacted. An `active` segment begins at `log_end_offset` and grows in
    place; only its file says how far.
    """

    log_start_offset: int = 0
    log_end_offset: int = 0
    segments: SegmentTable = EMPTY
    first_dirty_offset: int = 0
    active: Active | None = None
    unknown: str = ""

    @property
    def first_unstable_offset(self) -> int:
        """The first offset of the oldest transaction that is open at the end of the segments; NO_OFFSET for none."""
        return self.segments[-1].first_unstable_offset if len(self.segments) else NO_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A topic at `version`; immutable, so it is shared, kept and pickled freely.

    `name` is the prefix of the partition folders: the topic's name when it was created. A commit is refused if the
    read version of its files is below `gc_floor`. `commit_bytes` is the size of all commits so far. `requires` names
    the features that readers and writers must know. `producer_transactions` are those that are not complete, by
    transactional id. `unknown` holds fields that only a newer library knows.
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
    producer_transactions: Mapping[str, ProducerTransaction] = field(default_factory=dict)

    def transaction(self, app_id: str, batch_id: int | str) -> TransactionInfo | None:
        """The set transaction of the application's batch; None if it was not committed, or was forgotten.

        Batches older than 30 days are forgotten, except the application's newest; so are earlier ones than the last
        few of an application that commits in order.
        """
        return self.transactions.get(app_id, batch_id)
