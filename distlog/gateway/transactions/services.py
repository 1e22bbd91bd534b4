"""The transactions of a gateway as one service: what its APIs use, started and stopped with it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from distlog.core.config import MAX_LONG
from distlog.core.errors import DistlogError, StorageError
from distlog.core.storage.local.file_lock import FileLock
from distlog.core.topic_handle import new_id
from distlog.gateway.broker import Broker
from distlog.gateway.groups.services import GroupServices
from distlog.gateway.transactions.transaction_coordinator import TransactionCoordinator
from distlog.gateway.transactions.transaction_ends import TransactionEnds
from distlog.gateway.transactions.transaction_log import TransactionLog
from distlog.gateway.transactions.transaction_state import TransactionRefusedError

#: Its name in the broker's parts.
PART = "transactions"
#: In the root: who holds its lock coordinates the root's transactions. A gateway that is killed lets it go.
LOCK_FILE = ".transactions.lock"
#: Why there are none on an object store.
NOT_LOCAL = "transactions need a root on a local disk: this gateway's root is an object store"
_log = logging.getLogger("distlog.gateway")


class TransactionServices:
    """The coordinator of a root's transactions, while this gateway is the one that has it. For many threads."""

    def __init__(self, broker: Broker, groups: GroupServices) -> None:
        root, self._groups, self._cluster = broker.metadata.root, groups, broker.cluster
        self.is_local = root.is_local_disk
        self._lock, self._is_over = threading.Lock(), False
        self._has_lock, self._is_second = False, False
        self._file = FileLock(root.local_path(LOCK_FILE), makes_folder=True) if self.is_local else None
        self._coordinator: TransactionCoordinator | None = None
        self._loads = 0
        self._log = TransactionLog(broker.metadata, broker.clock)
        ends = TransactionEnds(broker.metadata, broker.fetches, groups.offsets, broker.clock)
        self._make: Callable[[], TransactionCoordinator] = lambda: TransactionCoordinator(
            self._log, ends, broker.clock, new_producer_id
        )

    @property
    def coordinator(self) -> TransactionCoordinator:
        """The transactions. Raises TransactionRefusedError while another gateway has the root's, and DistlogError."""
        if not self.is_local:
            _log.warning("a client was refused: %s", NOT_LOCAL)
            raise TransactionRefusedError(ErrorCode.transactional_id_authorization_failed)
        if not self._cluster.held:
            raise TransactionRefusedError(ErrorCode.not_coordinator)
        if self._coordinator is not None and self._loads != self._groups.coordination.loads:
            # the groups were loaded anew beside it, and may have missed how transactions ended
            self._let_go()
        return self._coordinator or self._take_over()

    def tick(self) -> None:
        """Let time pass: end what is open for too long, and take over what another gateway left. Raises nothing."""
        try:
            if self.is_local and not self._cluster.held:
                self._let_go()
            elif self._coordinator is not None or (self.is_local and self._log.exists):
                self.coordinator.tick()
        except TransactionRefusedError:
            # another gateway lets time pass
            return
        except DistlogError as error:
            _log.warning("transactions are not looked at: %s", error)

    def stop(self) -> None:
        """Coordinate no more."""
        self._is_over = True
        self._let_go()

    def _let_go(self) -> None:
        """Let another gateway take over, when no call is under way any more."""
        with self._lock:
            coordinator, self._coordinator = self._coordinator, None
            if coordinator is not None:
                coordinator.close()
            if self._file is not None and self._has_lock:
                self._file.release()
                self._file.close()
                self._has_lock = False

    def _take_over(self) -> TransactionCoordinator:
        with self._lock:
            if self._is_over:
                raise TransactionRefusedError(ErrorCode.coordinator_not_available)
            if self._coordinator is None:
                self._acquire()
                # who had them before may have ended transactions behind the load of the groups
                if not self._groups.load_again():
                    raise TransactionRefusedError(ErrorCode.coordinator_load_in_progress)
                self._loads = self._groups.coordination.loads
                coordinator = self._make()
                coordinator.load()
                self._coordinator = coordinator
            return self._coordinator

    def _acquire(self) -> None:
        if self._has_lock or self._file is None:
            return
        try:
            self._file.acquire(0)
        except StorageError as error:
            if not self._is_second:
                _log.warning("another gateway has the transactions of this root: %s", error)
            self._is_second = True
            raise TransactionRefusedError(ErrorCode.coordinator_not_available) from error
        self._has_lock, self._is_second = True, False


def new_producer_id() -> int:
    """A random id of 63 bits: no two gateways, and no writers of distlog, need to agree on who gets which."""
    return int(new_id()[:16], 16) & MAX_LONG


def transactions_of(broker: Broker) -> TransactionServices:
    """The transactions of this gateway."""
    found = broker.parts[PART]
    assert isinstance(found, TransactionServices)
    return found
