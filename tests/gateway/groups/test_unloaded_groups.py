"""A group, or a transaction, that is unloaded while a request for it is under way: it is elsewhere, not unknown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from consumer_groups import GROUP, Client, Gateway, stable
from consumer_members import ConsumerGateway
from kio.schema.errors import ErrorCode
from waiting import until

from distlog.core.read.kafka_offsets import Position
from distlog.core.storage.storage import Storage
from distlog.gateway.config import GatewayConfig
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.server.delayed_operations import DelayedFetches
from distlog.gateway.topics.metadata_cache import MetadataCache
from distlog.gateway.transactions.transaction_coordinator import TransactionCoordinator, TransactionEnds
from distlog.gateway.transactions.transaction_log import TransactionLog


class Loader:
    """Unloads the groups of a gateway at once after the `passed` check has passed, as its thread may do."""

    def __init__(self, gateway: Gateway, *, passed: int = 1, loads_again: bool = False) -> None:
        self._gateway, self._passed, self._loads_again, self.checks = gateway, passed, loads_again, 0
        gateway.groups.check = self._check

    def _check(self, name: str) -> None:
        self.checks += 1
        if self.checks == self._passed:
            self._gateway.groups.unload(lambda name: True)
            if self._loads_again:
                self._gateway.groups.load(self._gateway.store.load())
        elif self.checks > self._passed and not self._loads_again:
            raise CoordinatorError(ErrorCode.not_coordinator)


def committed(member: Client) -> ErrorCode | None:
    codes: list[ErrorCode] = []
    positions, ids = {("clicks", 0): Position(7)}, {"member_id": member.id, "generation": member.generation}
    member.gateway.offsets.commit(GROUP, positions, codes.append, **ids)  # type: ignore[arg-type]
    return codes[0]


def fetched(member: Client) -> ErrorCode:
    try:
        member.gateway.offsets.fetch(GROUP, [("clicks", 0)])
    except CoordinatorError as refused:
        return refused.code
    return ErrorCode.none


ASK: dict[str, Callable[[Client], ErrorCode | None]] = {
    "Heartbeat": lambda member: member.beat(),
    "JoinGroup": lambda member: member.join().join_error,
    "SyncGroup": lambda member: member.sync().synced.error,  # type: ignore[union-attr]
    "LeaveGroup": lambda member: member.leave(),
    "OffsetCommit": committed,
    "OffsetFetch": fetched,
}


@pytest.mark.parametrize("api", ASK)
def test_a_member_whose_group_is_unloaded_concurrently_is_sent_to_the_coordinator(api: str) -> None:
    gateway = Gateway()
    member = gateway.member("a")
    stable(gateway, member)
    Loader(gateway)
    assert ASK[api](member) is ErrorCode.not_coordinator


@pytest.mark.parametrize("api", ["Heartbeat", "SyncGroup", "OffsetCommit", "OffsetFetch"])
def test_a_member_of_a_reloaded_group_continues(api: str) -> None:
    gateway = Gateway()
    member = gateway.member("a", instance_id="one")
    stable(gateway, member)
    member.instance_id = None
    loader = Loader(gateway, loads_again=True)
    assert ASK[api](member) is ErrorCode.none
    assert loader.checks >= 2


def test_a_member_that_waits_for_the_lock_of_a_group_that_is_unloaded_is_sent_to_the_coordinator() -> None:
    gateway = Gateway()
    member = gateway.member("a")
    stable(gateway, member)
    checks, codes, refused = list[str](), list[ErrorCode](), False

    def check(name: str) -> None:
        checks.append(name)
        if refused:
            raise CoordinatorError(ErrorCode.coordinator_load_in_progress)

    with gateway.groups.locked(GROUP):
        gateway.groups.check = check
        asking = threading.Thread(target=lambda: codes.append(member.beat()))
        asking.start()
        until(lambda: checks)
        refused = True
        gateway.groups.unload(lambda name: True)
    asking.join()
    assert codes == [ErrorCode.coordinator_load_in_progress]


def test_a_member_of_the_newer_protocol_is_sent_to_the_coordinator_too() -> None:
    gateway = ConsumerGateway()
    member = gateway.consumer("a")
    member.goes_on()
    Loader(gateway, passed=3)
    assert member.code() is ErrorCode.not_coordinator


def test_a_producer_whose_transaction_is_unloaded_concurrently_is_sent_to_the_coordinator(tmp_path: Path) -> None:
    metadata = MetadataCache(Storage(str(tmp_path)), {}, lambda: 0, GatewayConfig())
    log, checks = TransactionLog(metadata, lambda: 0, lambda: 1), list[str]()
    log.begin([0])

    def check(id_: str) -> None:
        checks.append(id_)
        if len(checks) == 3:
            coordinator.unload(lambda id_: True)
        elif len(checks) > 3:
            raise CoordinatorError(ErrorCode.not_coordinator)

    ends = TransactionEnds(metadata, DelayedFetches(lambda request: None, 1000), log, lambda: 0)
    coordinator = TransactionCoordinator(log, ends, lambda: 0, lambda: 7, check)
    producer = coordinator.begin_producer("payments", 60_000)
    with pytest.raises(CoordinatorError) as refused:
        coordinator.add_partitions("payments", producer, [("clicks", 0)])
    assert refused.value.code is ErrorCode.not_coordinator
    metadata.close()
