"""Records that all gateways of a root share: the newest of each key, in a compacted topic of the root."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar, cast

from distlog.core.config import TopicConfig
from distlog.core.display import text
from distlog.core.errors import DistlogError, TopicNotFoundError
from distlog.core.format.record_batch import CONTROL
from distlog.core.format.record_decoder import decode
from distlog.core.maintain.cleaning_plan import first_dirty_offset
from distlog.gateway.topics.metadata_cache import HostedTopic, MetadataCache
from distlog.gateway.topics.partition import READ_BYTES, PartitionTail
from distlog.gateway.transactions.transaction_log import own_batch

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RootRecords(Generic[Key, Value]):
    """The records of the topic `name` of a root, for many threads; `clock` returns ms.

    `parse` gives the key of a record and its value, None for a record that removes the key; it raises ValueError or
    DistlogError for a record that is none, which is logged without its content, and passed over; UnknownValueError
    for one that only removes its key, as what it meant is not what was before. `changed` gets all values when they
    are other ones.
    """

    def __init__(
        self,
        metadata: MetadataCache,
        name: str,
        clock: Callable[[], int],
        parse: Callable[[bytes, bytes | None], tuple[Key, Value | None]],
        changed: Callable[[Mapping[Key, Value]], None],
    ) -> None:
        self._metadata, self._name, self._clock = metadata, name, clock
        self._parse, self._changed = parse, changed
        self._lock = threading.Lock()
        self._hosted: HostedTopic | None = None
        self._tail = PartitionTail(lambda offset: None)
        self._values: dict[Key, Value] = {}
        # the values are unknown before the first refresh
        self._is_told = False

    def refresh(self) -> None:
        """Read what was changed, by any gateway. Raises DistlogError."""
        with self._lock:
            try:
                hosted = self._metadata.fresh_topic(self._name)
                hosted.refresh()
            except TopicNotFoundError:
                if self._hosted is not None:
                    self._reset(None)
            else:
                self._read(hosted)
            if not self._is_told:
                self._changed(dict(self._values))
                self._is_told = True

    def append(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Keep these records: they are durable, and count here, when this returns. Raises DistlogError."""
        if records:
            hosted = self._metadata.own_topic(self._name, 1, _CONFIG)
            hosted.append_run(0, own_batch(records, self._clock()), lambda snapshot: None)
            self.refresh()

    def _reset(self, hosted: HostedTopic | None) -> None:
        self._hosted, self._values, self._is_told = hosted, {}, False

    def _read(self, hosted: HostedTopic) -> None:
        partition = hosted.partition(0)
        if hosted is not self._hosted:
            self._reset(hosted)
            self._tail = PartitionTail(lambda offset: partition.fetch(offset, READ_BYTES, committed=False).batches)
        state = partition.fresh.snapshot.partitions[0]
        if max(first_dirty_offset(state), state.log_start_offset) > self._tail.offset:
            # the part that is not read yet was cleaned, and may have had the end of a value
            self._reset(hosted)
            self._tail.offset = state.log_start_offset
        for batches in self._tail.batches():
            rows = batches.rows[batches.rows["attributes"] & CONTROL == 0]
            for row in decode(batches.data, rows, columns=_COLUMNS).to_pylist():
                self._is_told = False
                try:
                    key, value = self._parse(row["key"] or b"", row["value"])
                except (ValueError, DistlogError) as error:
                    reason = text(str(error))[:_MOST_TEXT]
                    _log.error("a record of %s is unknown: %s (offset=%s)", self._name, reason, row["offset"])
                    if isinstance(error, UnknownValueError):
                        self._values.pop(cast("Key", error.key), None)
                    continue
                if value is None:
                    self._values.pop(key, None)
                else:
                    self._values[key] = value


_log = logging.getLogger("distlog.gateway")
_CONFIG = TopicConfig.parse({"cleanup.policy": "compact"})
_COLUMNS = ("offset", "key", "value")
_MOST_TEXT = 300


class UnknownValueError(ValueError):
    """The value of a record's `key` is not understood."""

    def __init__(self, key: Hashable, reason: str) -> None:
        super().__init__(reason)
        self.key = key
