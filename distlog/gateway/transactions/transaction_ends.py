"""Tells partitions and readers how a decided transaction ended: Kafka's markers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import ProducerFencedError, TopicNotFoundError
from distlog.core.log.end_marker import marker
from distlog.core.log.partition.batch_runs import BatchRun
from distlog.core.storage.parallel import in_parallel
from distlog.gateway.fetches.delayed_fetches import DelayedFetches
from distlog.gateway.topics.metadata_cache import MetadataCache
from distlog.gateway.topics.partition import Partition
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
        numbers = defaultdict[str, list[int]](list)
        for topic, number in sorted(decided.partitions):
            numbers[topic].append(number)
        for ended in in_parallel(lambda topic: self._end(decided, topic, numbers[topic]), numbers):
            for each in ended:
                self._fetches.appended(each)

    def _end(self, decided: TransactionState, topic: str, numbers: Sequence[int]) -> list[Partition]:
        try:
            hosted = self._metadata.fresh_topic(topic)
            if numbers[-1] >= len(hosted.snapshot.partitions):
                # what is known of it is not of this moment, and others may have added partitions
                hosted.refresh()
        except TopicNotFoundError:
            return []
        # one of the same name may have fewer
        there = [number for number in numbers if number < len(hosted.snapshot.partitions)]
        markers = {number: self._marker(decided) for number in there}
        told = hosted.end_transaction(markers, partial(self._check_stands, decided)) if markers else {}
        # first all, then what came of them: none is left on its way
        wait(told.values())
        if any(isinstance(each.exception(), TopicNotFoundError) for each in told.values()):
            # one of the same name may be there by now, and have records of the transaction, too
            self._metadata.forget(hosted)
            return self._end(decided, topic, numbers)
        return [hosted.partition(number) for number in there if _is_ended(told[number])]

    def _marker(self, decided: TransactionState) -> BatchRun:
        producer, is_committed = decided.producer, decided.status is Status.PREPARE_COMMIT
        return marker(producer.id, producer.epoch, self._clock(), is_committed=is_committed)

    def _check_stands(self, decided: TransactionState, snapshot: Snapshot) -> None:
        """Raise _GoneError unless it is this transaction that is decided, and not finished."""
        found = self._log.newest(decided.transactional_id)
        if found is None or (found.producer, found.status, found.started_ms) != (
            decided.producer,
            decided.status,
            decided.started_ms,
        ):
            raise _GoneError


def _is_ended(told: Future[Any]) -> bool:
    try:
        told.result()
    except (ProducerFencedError, _GoneError):
        # a newer producer has written there: so another gateway has ended this transaction
        return False
    return True
