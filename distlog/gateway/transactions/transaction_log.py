"""The states of transactions in the topic `__transaction_state` of a root, which compaction keeps small."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from distlog.core.errors import CorruptRecordError, TopicNotFoundError
from distlog.core.storage.parallel import in_parallel
from distlog.core.topics.open_topic import open_or_create
from distlog.gateway.groups.offsets_format import offsets_partition
from distlog.gateway.hosted_topic import HostedTopic
from distlog.gateway.metadata_cache import TRANSACTIONS_TOPIC as NAME
from distlog.gateway.metadata_cache import MetadataCache
from distlog.gateway.transactions.own_records import MAX_BATCH_BYTES, own_batch
from distlog.gateway.transactions.state_format import decode_key, decode_state, encode_key, encode_state
from distlog.gateway.transactions.transaction_state import TransactionState

_log = logging.getLogger("distlog.gateway")

#: Kafka's `transaction.state.log.num.partitions`, so that a broker finds each id where it looks for it.
PARTITIONS = 50
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": 104_857_600, "max.message.bytes": MAX_BATCH_BYTES}


class TransactionLog:
    """Keeps the newest state of each transactional id, on a local disk; for many threads. `clock` tells the ms."""

    def __init__(self, metadata: MetadataCache, clock: Callable[[], int]) -> None:
        self._metadata, self._clock = metadata, clock

    @property
    def exists(self) -> bool:
        """Whether the root has ever had a transaction."""
        try:
            self._metadata.fresh_topic(NAME)
        except TopicNotFoundError:
            return False
        return True

    def load(self) -> Iterator[TransactionState]:
        """The newest state of each id, on the device. A record that does not check is logged and left out.

        Raises DistlogError.
        """
        try:
            hosted = self._metadata.fresh_topic(NAME)
        except TopicNotFoundError:
            return
        topic = hosted.topic
        # the gateway that wrote it may have been killed before its sync, and what is read here is acted upon
        used = [number for number, end in topic.end_offsets().items() if end]
        in_parallel(lambda number: hosted.partition(number).sync(None), used)
        newest = dict[str, TransactionState]()
        for batch in topic.scan(columns=["partition", "offset", "key", "value"]):
            for row in batch.to_pylist():
                try:
                    _take(newest, row["key"], row["value"])
                except CorruptRecordError as error:  # noqa: PERF203 - one must not hide all others
                    _log.error("%s (partition=%s offset=%s)", error, row["partition"], row["offset"])
        yield from newest.values()

    def write(self, state: TransactionState, *, is_durable: bool = True) -> None:
        """Keep a state; on the device when this returns, unless that may wait. Raises DistlogError."""
        self._append(state.transactional_id, encode_state(state), is_durable=is_durable)

    def forget(self, transactional_id: str) -> None:
        """Keep nothing of an id any more. Raises DistlogError."""
        self._append(transactional_id, None, is_durable=False)

    def _append(self, transactional_id: str, value: bytes | None, *, is_durable: bool) -> None:
        hosted = self._hosted()
        number = offsets_partition(transactional_id, len(hosted.snapshot.partitions))
        partition = hosted.partition(number)
        appended = partition.append_run(own_batch([(encode_key(transactional_id), value)], self._clock()))
        if is_durable:
            partition.sync(appended)

    def _hosted(self) -> HostedTopic:
        with suppress(TopicNotFoundError):
            return self._metadata.topic(NAME)
        open_or_create(f"{self._metadata.root.url}/{NAME}", PARTITIONS, _CONFIG)
        return self._metadata.topic(NAME)


def _take(newest: dict[str, TransactionState], key: bytes | None, value: bytes | None) -> None:
    transactional_id = decode_key(key or b"")
    if transactional_id is None:
        return
    if value is None:
        newest.pop(transactional_id, None)
    else:
        newest[transactional_id] = decode_state(transactional_id, value)
