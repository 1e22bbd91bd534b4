"""Two gateways that share what they coordinate, on a local disk and on an object store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from addresses import Address
from gateways import Wire, until

import distlog
from distlog.core.read.kafka_offsets import offsets_partition
from distlog.core.times import elapsed_s
from distlog.gateway import gateway_server
from distlog.gateway.cluster import GatewayLease
from distlog.gateway.config import GatewayConfig, GroupSettings
from distlog.gateway.gateway_server import GatewayServer

FIND_COORDINATOR = 10
#: A machine with much to do must not let leases lapse.
SESSION_MS = 2000


@pytest.fixture
def until_soon(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """As `until`, while the clock of all leases goes some times as fast."""
    ahead_s = 0.0
    monkeypatch.setattr(gateway_server, "GatewayLease", partial(GatewayLease, clock=lambda: elapsed_s() + ahead_s))

    def expire(condition: Callable[[], object]) -> object:
        nonlocal ahead_s
        ahead_s += 0.01
        return condition()

    return lambda condition: until(lambda: expire(condition))


@pytest.fixture
def begin(address: Address, until_soon: object) -> Iterator[Any]:
    with ExitStack() as ends:

        def start_gateway(session_ms: int = SESSION_MS, **settings: Any) -> GatewayServer:
            config = GatewayConfig(
                linger_ms=1,
                broker_session_timeout_ms=session_ms,
                groups=GroupSettings(initial_rebalance_delay_ms=0),
                **settings,
            )
            gateway = GatewayServer(address.url, port=0, config=config, storage_options=address.options)
            ends.callback(gateway.stop)
            return gateway.start()

        yield start_gateway


@pytest.fixture(params=["local", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Any, memory_url: Address) -> Address:
    gateway_address = Address(str(tmp_path), {}) if request.param == "local" else memory_url
    distlog.create(f"{gateway_address.url}/clicks", 8, storage_options=gateway_address.options)
    return gateway_address


def pair(begin: Any) -> tuple[GatewayServer, GatewayServer]:
    first, two = begin(), begin()
    leases = [gateway.broker.cluster for gateway in (first, two)]
    until(
        lambda: (
            [len(lease.held_partitions) for lease in leases] == [25, 25]
            and not is_loading(first)
            and not is_loading(two)
        )
    )
    until(lambda: all(len(lease.nodes) == 2 for lease in leases))
    # each has seen what the other took
    until(lambda: all(lease.holder(number) is not None for lease in leases for number in range(50)))
    return first, two


def is_loading(gateway: GatewayServer) -> bool:
    return gateway.broker.groups.coordination.is_loading or gateway.broker.transactions.is_loading


def coordinator(wire: Wire, group: str) -> Any:
    (answer,) = wire.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=(group,)).coordinators
    return answer


def group_of(gateway: GatewayServer) -> str:
    """The name of a group, or a transactional id, that this gateway coordinates."""
    held = gateway.broker.cluster.held_partitions
    return next(name for name in map("group-{}".format, range(1000)) if offsets_partition(name, 50) in held)


def stop_syncing(monkeypatch: pytest.MonkeyPatch, gateway: GatewayServer) -> None:
    # nothing has a pause while it is due, as a request has one, and would take a whole core
    monkeypatch.setattr(gateway.broker.groups, "_sync", lambda: time.sleep(0.05))
    # what it has in memory stays there
    monkeypatch.setattr(gateway.broker.transactions, "run_timers", lambda: None)


def blind(monkeypatch: pytest.MonkeyPatch, gateway: GatewayServer, held: frozenset[int], term: int) -> None:
    """Have the gateway believe that it holds what it held."""

    class Lease:
        pass

    lease: Any = Lease()
    lease.held_partitions, lease.term = held, term
    for coordination in (gateway.broker.groups.coordination, gateway.broker.transactions.coordination):
        monkeypatch.setattr(coordination, "step", lambda registry: None)
        monkeypatch.setattr(coordination, "_lease", lease)
        monkeypatch.setattr(coordination, "_loaded", dict.fromkeys(held, term))
