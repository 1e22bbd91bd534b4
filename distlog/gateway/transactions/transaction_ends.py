"""Tells partitions, groups and readers how a decided transaction ended: Kafka's markers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from distlog.core.errors import TopicNotFoundError
from distlog.core.log.appended import Appended
from distlog.core.log.end_marker import marker
from distlog.core.storage.parallel import in_parallel
from distlog.gateway.delayed_fetches import DelayedFetches
from distlog.gateway.groups.committed_offsets import CommittedOffsets
from distlog.gateway.groups.positions import TopicPartition
from distlog.gateway.metadata_cache import MetadataCache
from distlog.gateway.partition import Partition
from distlog.gateway.transactions.transaction_state import Status, TransactionState


class TransactionEnds:
    """Ends decided transactions where they wrote; may be repeated, since a log knows what is open in it."""

    def __init__(
        self,
        metadata: MetadataCache,
        fetches: DelayedFetches,
        positions: CommittedOffsets,
        clock: Callable[[], int],
    ) -> None:
        self._metadata, self._fetches, self._positions, self._clock = metadata, fetches, positions, clock

    def sync(self, partitions: Iterable[TopicPartition], appended: Mapping[TopicPartition, Appended]) -> None:
        """Have what was `appended`, or else all that there is, on the device. Raises DistlogError if it is not."""
        in_parallel(lambda place: self._sync(place, appended.get(place)), sorted(partitions))

    def _sync(self, place: TopicPartition, appended: Appended | None) -> None:
        # with a topic that was dropped, its part of the transaction is gone
        with suppress(TopicNotFoundError):
            self._metadata.fresh_topic(place[0]).partition(place[1]).sync(appended)

    def end(self, decided: TransactionState) -> None:
        """Have the end marker in each of its partitions, on the device; then its positions are seen, or forgotten.

        A partition of a topic that was dropped needs none. Raises DistlogError.
        """
        found = in_parallel(partial(self._end, decided), sorted(decided.partitions))
        is_committed = decided.status is Status.PREPARE_COMMIT
        self._positions.end_transaction(decided.producer.id, is_committed=is_committed)
        for each in found:
            if each is not None:
                self._fetches.appended(each)

    def _end(self, decided: TransactionState, place: TopicPartition) -> Partition | None:
        producer, is_committed = decided.producer, decided.status is Status.PREPARE_COMMIT
        try:
            partition = self._metadata.fresh_topic(place[0]).partition(place[1])
            ended = partition.end_transaction(
                marker(producer.id, producer.epoch, self._clock(), is_committed=is_committed)
            )
            # one that is there already may not be on the device: then all is flushed
            partition.sync(ended)
        except TopicNotFoundError:
            return None
        return partition
