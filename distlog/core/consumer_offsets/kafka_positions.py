"""How far Kafka's clients have come in one topic, as the gateways of its root keep it: read without a gateway."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from distlog.core import paths
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.format.actions import MAX_PARTITIONS
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.consumer_offsets.offsets_records import offsets_records
from distlog.core.consumer_offsets.positions_format import (
    OFFSETS_TOPIC,
    OffsetKey,
    Position,
    decode_offset_key,
    decode_position,
    offset_key_prefixes,
    offsets_partition,
)
from distlog.core.errors import CorruptRecordError, DistlogError, StorageDeniedError, TopicNotFoundError
from distlog.core.groups.committed import Committed
from distlog.core.log.live_snapshot import LiveSnapshot
from distlog.core.topic_handle import TopicHandle, topic_log

_log = logging.getLogger(__name__)


class KafkaPositions:
    """The positions in the topic of `handle` that `__consumer_offsets` beside it holds; each call reads them anew.

    A position in a transaction counts when that is committed. A root that had no gateway costs two LISTs.
    """

    def __init__(self, handle: TopicHandle) -> None:
        self._handle, self._topic = handle, handle.storage.url.rpartition("/")[2]

    def of_group(self, group: str) -> dict[int, Committed]:
        """A group's positions, by partition. Raises DistlogError."""
        found = self._opened()
        if found is None:
            return {}
        offsets, snapshot = found
        number = offsets_partition(group, len(snapshot.partitions))
        positions = self._read(offsets, snapshot, [number], offset_key_prefixes(group, self._topic))
        return positions.get(group, {})

    def by_group(self) -> dict[str, dict[int, Committed]]:
        """The positions of all groups, by group and partition. Raises DistlogError."""
        found = self._opened()
        return {} if found is None else self._read(*found, range(len(found[1].partitions)), (b"",))

    def _opened(self) -> tuple[TopicHandle, Snapshot] | None:
        storage = self._handle.storage.sibling(OFFSETS_TOPIC)
        if storage is None:
            return None
        log = topic_log(storage, self._handle.clock)
        try:
            if not storage.list(paths.COMMITS_DIR):
                # most roots have no gateway, and to load what is not there takes more requests
                return None
            snapshot = log.load()
            handle = TopicHandle.of(storage, snapshot.name, log, self._handle.clock)
            return handle, LiveSnapshot(handle, CurrentSnapshot(log, snapshot)).refresh()
        except TopicNotFoundError:
            return None
        except StorageDeniedError as error:
            # a root whose other topics are not ours to read may have no gateway, as most have none
            _log.warning("positions that Kafka's clients may have committed are not known: %s", error)
            return None
        except DistlogError as error:
            # else it looks like damage of the topic itself
            error.details.setdefault("url", storage.url)
            raise

    def _read(
        self, offsets: TopicHandle, snapshot: Snapshot, partitions: Iterable[int], prefixes: Sequence[bytes]
    ) -> dict[str, dict[int, Committed]]:
        standing = dict[bytes, bytes | None]()
        for record in offsets_records(offsets.reader, snapshot, partitions, prefixes):
            if record.waits_for is None:
                standing[record.key] = record.value
        return self._by_group(standing)

    def _by_group(self, standing: Mapping[bytes, bytes | None]) -> dict[str, dict[int, Committed]]:
        found = defaultdict[str, dict[int, Committed]](dict)
        for key_bytes, value in standing.items():
            key, position = _decoded(key_bytes, value)
            committed = None if position is None else committed_of(position)
            if key is None or committed is None or key.topic != self._topic:
                continue
            # a group may note all of them in its file: no more than a topic can have
            if 0 <= key.partition < MAX_PARTITIONS:
                found[key.group][key.partition] = committed
        return dict(found)


def committed_of(position: Position) -> Committed | None:
    """What is compared of a position; None for one that is no offset, which clients may commit."""
    return None if position.offset < 0 else Committed(position.offset, max(0, position.commit_ms))


def _decoded(key: bytes, value: bytes | None) -> tuple[OffsetKey | None, Position | None]:
    try:
        found = decode_offset_key(key)
        # a group's own record is of another kind
        return found, None if found is None or value is None else decode_position(value)
    except CorruptRecordError as error:
        # one must not hide all groups
        _log.warning("%s", error)
        return None, None
