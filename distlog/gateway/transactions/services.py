"""The transactions of a gateway as one service: what its APIs use, started and stopped with it."""

from __future__ import annotations

import logging
import threading

from kio.schema.errors import ErrorCode

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import MAX_LONG
from distlog.core.errors import DistlogError
from distlog.core.topic_handle import new_id
from distlog.gateway.broker import Broker
from distlog.gateway.commits.gathered_batch import Fence
from distlog.gateway.groups.coordination import Coordination
from distlog.gateway.groups.members.exchanges import GroupRefusedError
from distlog.gateway.groups.offsets.positions import TopicPartition
from distlog.gateway.groups.services import GroupServices
from distlog.gateway.transactions.transaction_coordinator import TransactionCoordinator
from distlog.gateway.transactions.transaction_ends import TransactionEnds
from distlog.gateway.transactions.transaction_log import TransactionLog
from distlog.gateway.transactions.transaction_state import (
    ProducerId,
    TransactionRefusedError,
    TransactionState,
    check_open,
)

#: How often transactions are looked at that are open for too long, or not finished; and, after an error, loaded.
_PAUSE_S = 1.0
_log = logging.getLogger("distlog.gateway")


class TransactionServices:
    """The transactions whose ids this gateway coordinates, as its lease says, and the fence for those of all others.

    One thread loads, unloads and ends them; any thread calls the rest.
    """

    def __init__(self, broker: Broker, groups: GroupServices) -> None:
        self._log = TransactionLog(broker.metadata, broker.clock, lambda: groups.partitions)
        self.coordination = Coordination[TransactionState](broker.cluster, self._log)
        ends = TransactionEnds(broker.metadata, broker.fetches, self._log, broker.clock)
        #: Those that this gateway answers for.
        self.coordinator = TransactionCoordinator(self._log, ends, broker.clock, new_producer_id, self._check)
        self._changed, self._is_over, self._has_failed = threading.Event(), False, False
        self._unloaded = groups.share(self.coordination, self._changed)
        self._thread = threading.Thread(target=self._run, name="transactions", daemon=True)

    @property
    def is_loading(self) -> bool:
        """Whether transactions are missing that this gateway will answer for soon."""
        return self.coordination.is_loading

    def start(self) -> None:
        """Learn what is stored; what fails is logged, and tried again."""
        self.tick()
        self._thread.start()

    def fence(self, transactional_id: str, producer: ProducerId, place: TopicPartition) -> Fence:
        """What refuses to append, unless the producer's transaction is open, and has the partition `place`.

        It raises TransactionRefusedError, and DistlogError.
        """

        def check(snapshot: Snapshot) -> None:
            check_open(self._log.newest(transactional_id), producer, place)

        return check

    def tick(self) -> None:
        """Load and unload as the lease says, and let time pass for what is loaded. Raises nothing."""
        try:
            before = self.coordination.loaded
            try:
                self.coordination.step(self.coordinator)
            finally:
                if before - self.coordination.loaded:
                    self._unloaded.set()
            self.coordinator.tick()
            self._has_failed = False
        except GroupRefusedError:
            # the lease is another one by now
            return
        except Exception as error:
            if not self._has_failed:
                _log.error("transactions: %s", error, exc_info=not isinstance(error, DistlogError))
            self._has_failed = True

    def compact(self) -> None:
        """Compact what this gateway leads and has become many segments; one caller at a time. Raises nothing."""
        self._log.compact()

    def stop(self) -> None:
        """Coordinate no more."""
        self._is_over = True
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            self._changed.wait(_PAUSE_S)
            self._changed.clear()
            if not self._is_over:
                self.tick()

    def _check(self, transactional_id: str) -> None:
        if self._is_over:
            raise TransactionRefusedError(ErrorCode.not_coordinator)
        try:
            self.coordination.check(transactional_id)
        except GroupRefusedError as refused:
            raise TransactionRefusedError(refused.code) from refused


def new_producer_id() -> int:
    """A random id of 63 bits: no two gateways, and no writers of distlog, need to agree on who gets which."""
    return int(new_id()[:16], 16) & MAX_LONG
