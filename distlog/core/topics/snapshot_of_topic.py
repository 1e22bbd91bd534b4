"""The part of a topic that is at hand without reading: its names, settings, offsets, and how it shows itself."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.current_snapshot import AT_A_VERSION, CurrentSnapshot
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.display import tables
from distlog.core.display.units import size_text
from distlog.core.errors import TopicNotFoundError
from distlog.core.log.live_snapshot import LiveSnapshot
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics import metadata_tables
from distlog.core.whole_number import whole_number

#: What writers, transactions and Spark use of a topic. Completion does not offer it.
_INTERNAL = {
    *("advance", "appender", "check_partition", "clock", "current", "destination", "handle", "live"),
    *("live_snapshot", "log", "reader", "snapshot", "storage"),
}


class SnapshotOfTopic:
    """A topic at one snapshot.

    `current` holds the commit log's snapshot; transactions and writers of this object share it, and move it on.
    `live` holds what is read: the same, with the active segments.
    """

    def __init__(
        self, handle: TopicHandle, snapshot: Snapshot, *, pinned: bool = False, why: str = AT_A_VERSION
    ) -> None:
        self.handle = handle
        self.current = CurrentSnapshot(handle.log, snapshot, pinned=pinned, why=why)
        self.live = LiveSnapshot(handle, self.current)

    @property
    def storage(self) -> Storage:
        """The topic's folder."""
        return self.handle.storage

    @property
    def log(self) -> CommitLog:
        """The topic's commits."""
        return self.handle.log

    @property
    def reader(self) -> SegmentReader:
        """The reader of this topic's segments."""
        return self.handle.reader

    @property
    def clock(self) -> Callable[[], int]:
        """The time of new records, in ms since 1970."""
        return self.handle.clock

    @property
    def snapshot(self) -> Snapshot:
        """The commit log's snapshot, without active segments: the base of a commit."""
        return self.current.snapshot

    @property
    def live_snapshot(self) -> Snapshot:
        """The snapshot that this object reads, with the active segments up to their ends at the last refresh."""
        return self.live.snapshot

    @property
    def url(self) -> str:
        """The topic's address, without credentials."""
        return self.storage.url

    @property
    def name(self) -> str:
        """The topic's name: the last part of its address when it was created."""
        return self.snapshot.name

    @property
    def version(self) -> int:
        """The version of the snapshot that this object reads."""
        return self.snapshot.version

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""
        return self.snapshot.config

    @property
    def partitions(self) -> int:
        """How many partitions there are, numbered from 0."""
        return len(self.snapshot.partitions)

    def start_offsets(self) -> dict[int, int]:
        """The first readable offset of each partition."""
        return {number: state.log_start_offset for number, state in enumerate(self.live_snapshot.partitions)}

    def end_offsets(self) -> dict[int, int]:
        """The next offset to be assigned in each partition."""
        return {number: state.log_end_offset for number, state in enumerate(self.live_snapshot.partitions)}

    def check_partition(self, partition: int) -> None:
        """Raise TopicNotFoundError unless the topic has this partition."""
        if not 0 <= whole_number("partition", partition) < self.partitions:
            raise TopicNotFoundError(f"the topic has partitions 0 to {self.partitions - 1}", partition=partition)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, version={self.version}, partitions={self.partitions})"

    def _repr_html_(self) -> str:
        table = metadata_tables.partitions(self.live_snapshot)
        records, size = (sum(table[name].to_pylist()) for name in ("records", "bytes"))
        return (
            f"<p><b>{escape(self.name)}</b> version {self.version} at {escape(self.url)}: "
            f"{records:,} records, {size_text(size)}</p>{tables.html(table)}"
        )

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]
