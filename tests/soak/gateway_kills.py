"""Idempotent producers of librdkafka, during kills (kill -9) of their gateways, and sometimes of producers.

Acknowledged records exist once, at the reported offset. The records of each producer are in order. The check also
runs if a client gave up: then the log, and not the client, shows whether anything was lost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fault_proxy import FaultProxy

import distlog
from soak.gateway_process import GatewayProcess
from soak.patience import Patience
from soak.senders import PARTITIONS, Sender, check
from soak.streams_on_s3 import disturb, server
from soak.tally import Tally, demand, skipped

#: Small segments, so that a restarted gateway finds sealed and active ones.
CONFIG = {"internal.segment.bytes": 50_000, "index.interval.bytes": 500}
_PATIENCE_S = 120.0


def run(
    folder: Path, seed: int, *, kills: int = 9, senders: int = 4, gateways: int = 1, program: Sequence[str] = ()
) -> Tally:
    """Kill gateways of a local root; Violation if a promise is broken. `program` replaces the senders."""

    def log_bytes() -> int:
        # written records are not acknowledged before a sync
        return sum(file.stat().st_size for file in folder.glob("root/events/*/*.log"))

    counts, root = (kills, senders, gateways), (str(folder / "root"), {})
    return _run(folder, root, random.Random(seed), counts, [log_bytes], lambda: None, program)


def run_on_s3(
    folder: Path, seed: int, *, kills: int = 9, senders: int = 3, gateways: int = 1, program: Sequence[str] = ()
) -> Tally:
    """Kill gateways on moto's S3 server, which also loses responses and refuses requests."""
    chance = random.Random(seed)
    with server() as (root, options), FaultProxy(str(options["endpoint_url"])) as proxy:

        def commits() -> int:
            return proxy.count("PUT", "*/events/_commits/*")

        def bundles() -> int:
            return proxy.count("PUT", "*/events/*") - commits()

        address, counts = (root, {**options, "endpoint_url": proxy.url}), (kills, senders, gateways)
        tally = _run(folder, address, chance, counts, [commits, bundles], lambda: disturb(proxy, chance), program)
        faults = sum(request.fault is not None for request in proxy.requests)
        return tally + Tally(requests=len(proxy.requests), faults=faults)


def _run(
    folder: Path,
    root: tuple[str, Mapping[str, Any]],
    chance: random.Random,
    counts: tuple[int, int, int],
    moments: Sequence[Callable[[], int]],
    disturb: Callable[[], None],
    program: Sequence[str],
) -> Tally:
    try:
        import confluent_kafka  # noqa: F401
        import kio  # noqa: F401
    except ModuleNotFoundError as error:
        return skipped("gateway-kills", f"it needs {error.name}")
    kills, senders, gateways = counts
    topic = distlog.create(f"{root[0]}/events", PARTITIONS, CONFIG, storage_options=root[1])
    serving = [GatewayProcess(*root) for _ in range(gateways)]
    addresses = ",".join(process.address for process in serving)
    sending, killed = [Sender(addresses, str(name), folder, program) for name in range(senders)], list[Sender]()
    try:
        for number in range(kills):
            disturb()
            _wait_for_news(sending)
            time.sleep(chance.uniform(0, 0.5))
            kind = number % 3
            if kind == 2:
                sending.append(Sender(addresses, str(senders + number), folder, program))
                killed.append(sending.pop(chance.randrange(senders)))
                killed[-1].kill()
                continue
            if kind < len(moments):
                _wait_for_more(moments[kind])
            _kill_one(serving, chance)
        _end(sending, serving)
    finally:
        for process in (*sending, *serving):
            process.kill()
    records = check(topic.refresh(), (*sending, *killed))
    return Tally(kills=kills, clients=len(killed), records=records)


def _kill_one(serving: Sequence[GatewayProcess], chance: random.Random) -> None:
    gateway = chance.choice(serving)
    gateway.kill()
    # the other gateways take over, or it is back before that
    time.sleep(chance.choice((0, 2 * gateway.session_s)) if len(serving) > 1 else 0)
    gateway.begin()


def _end(sending: Sequence[Sender], serving: Sequence[GatewayProcess]) -> None:
    for sender in sending:
        sender.stop()
    for sender in sending:
        sender.end()
    for gateway in serving:
        gateway.end()


def _wait_for_news(sending: Sequence[Sender]) -> None:
    """Wait until a producer gets another acknowledgement: a client polls its broker only now and then."""
    old_news, patience = sum(sender.news for sender in sending), Patience(_PATIENCE_S)
    while sum(sender.news for sender in sending) == old_news:
        demand(not patience.is_over(None), "nothing is acknowledged any more")
        time.sleep(0.01)


def _wait_for_more(written: Callable[[], int]) -> None:
    """Wait for a write that may not be acknowledged yet."""
    old_count, patience = written(), Patience(_PATIENCE_S)
    while written() <= old_count:
        demand(not patience.is_over(None), "nothing is appended any more")
        time.sleep(0.001)
