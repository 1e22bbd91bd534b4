"""Where the work of maintenance runs: in threads of this process, or in tasks of another system."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from distlog.core.commits.snapshot import Snapshot
from distlog.core.maintain.compaction import Cleanable, clean_dirtiest
from distlog.core.maintain.group_rewrite import Result, RewriteFailure, RewrittenPartition
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.calls import in_order
from distlog.core.storage.storage import Storage


class Executor(Protocol):
    @property
    def memory(self) -> int:
        """The default memory of a merge in one process, in bytes; 0 means the minimum."""

    @property
    def workers(self) -> int:
        """The number of items that one process works on at the same time."""

    def map(self, work: Callable[[Item], Result], items: Sequence[Item], /) -> Iterable[Result]:
        """Return the result of the idempotent `work` for each item, in order; `work` and the items must pickle."""

    def clean(
        self, handle: TopicHandle, snapshot: Snapshot, due: Sequence[Cleanable], dedupe_buffer_bytes: int, /
    ) -> Sequence[RewrittenPartition | RewriteFailure]:
        """Run one round of compaction over at least one of the partitions that are due."""


#: How many items of a topic in an object store run at once. Each takes a few MiB, and 30 MiB more in an upload.
PARALLEL = 8


class WorkItem(Protocol):
    """An item with its size, by which tasks get equal shares."""

    @property
    def log_bytes(self) -> int:
        """Bytes of log to read."""


Item = TypeVar("Item", bound=WorkItem)


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Runs the work in this process: in threads for remote storage, and item by item for local storage."""

    storage: Storage
    memory: int = 0

    @property
    def workers(self) -> int:
        return 1 if self.storage.is_local else PARALLEL

    def map(self, work: Callable[[Item], Result], items: Sequence[Item], /) -> Iterable[Result]:
        """Return the results. The iteration waits for all threads before it ends or raises."""
        if self.storage.is_local:
            return map(work, items)
        return in_order((partial(work, item) for item in items), PARALLEL, joined=True)

    def clean(
        self, handle: TopicHandle, snapshot: Snapshot, due: Sequence[Cleanable], dedupe_buffer_bytes: int, /
    ) -> Sequence[RewrittenPartition | RewriteFailure]:
        return clean_dirtiest(handle, snapshot, due, dedupe_buffer_bytes)
