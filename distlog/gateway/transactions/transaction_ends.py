"""Tells partitions and readers how a decided transaction ended: Kafka's markers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import ProducerFencedError, TopicNotFoundError
from distlog.core.log.end_marker import marker
from distlog.core.storage.parallel import in_parallel
from distlog.gateway.delayed_fetches import DelayedFetches
from distlog.gateway.groups.positions import TopicPartition
from distlog.gateway.metadata_cache import MetadataCache
from distlog.gateway.partition import Partition
from distlog.gateway.transactions.transaction_log import TransactionLog
from distlog.gateway.transactions.transaction_state import Status, TransactionState


class _GoneError(Exception):
    """Another gateway has finished the transaction."""


class TransactionEnds:
    """Ends decided transactions where they wrote; may be repeated."""

    def __init__(
        self, metadata: MetadataCache, fetches: DelayedFetches, log: TransactionLog, clock: Callable[[], int]
    ) -> None:
        self._metadata, self._fetches, self._log, self._clock = metadata, fetches, log, clock

    def end(self, decided: TransactionState) -> None:
        """Have the end marker in each of its partitions, on the device.

        A partition of a topic that was dropped needs none. Raises DistlogError.
        """
        for each in in_parallel(partial(self._end, decided), sorted(decided.partitions)):
            if each is not None:
                self._fetches.appended(each)

    def _end(self, decided: TransactionState, place: TopicPartition) -> Partition | None:
        producer, is_committed = decided.producer, decided.status is Status.PREPARE_COMMIT
        try:
            hosted = self._metadata.fresh_topic(place[0])
            hosted.end_transaction(
                place[1],
                marker(producer.id, producer.epoch, self._clock(), is_committed=is_committed),
                partial(self._check_stands, decided),
            )
        except (TopicNotFoundError, ProducerFencedError, _GoneError):
            # a newer producer has written there: so another gateway has ended this transaction
            return None
        return hosted.partition(place[1])

    def _check_stands(self, decided: TransactionState, snapshot: Snapshot) -> None:
        """Raise _GoneError unless it is this transaction that is decided, and not finished."""
        found = self._log.newest(decided.transactional_id)
        if found is None or (found.producer, found.status, found.started_ms) != (
            decided.producer,
            decided.status,
            decided.started_ms,
        ):
            raise _GoneError
