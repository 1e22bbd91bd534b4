"""A gateway takes over a `__transaction_state` of any number of partitions, independent of `__consumer_offsets`."""

from __future__ import annotations

from pathlib import Path

import pytest
from gateways import Wire, serving
from kio.schema.errors import ErrorCode
from left_transactions import left_log_dir, plain, state, states_log
from transactional_clients import RawProducer

import distlog
from distlog.core.kafka.transactions import TRANSACTIONS_TOPIC, TransactionStatus
from distlog.core.read.kafka_offsets import offsets_partition
from distlog.core.times import now_ms

STATES, ID = 7, "payments"


@pytest.mark.parametrize("groups", [None, 3, 9])
@pytest.mark.parametrize("where", ["local", "memory"])
def test_the_producers_of_a_broker_continue(where: str, groups: int | None, tmp_path: Path) -> None:
    root = str(tmp_path / "root") if where == "local" else f"memory://{tmp_path.name}/root"
    number = offsets_partition(ID, STATES)
    assert number != offsets_partition(ID, groups or 50)
    logs = dict.fromkeys(range(STATES), b"") | {
        number: states_log([state(ID, TransactionStatus.COMPLETE_COMMIT, time_ms=now_ms())])
    }
    distlog.adopt(left_log_dir(tmp_path, {"clicks-0": plain(0, b"a")}, logs), root)
    assert distlog.open(f"{root}/{TRANSACTIONS_TOPIC}").partitions == STATES
    if groups is not None:
        distlog.create(f"{root}/__consumer_offsets", groups)
    with serving(root, linger_ms=1) as gateway, Wire(gateway) as wire:
        producer = RawProducer(wire, ID)
        assert producer.init() is ErrorCode.none
        assert (producer.producer_id, producer.epoch) == (7, 4)
        assert producer.add(("clicks", 0)) == [ErrorCode.none]
        assert producer.send(b"b") is ErrorCode.none
        assert producer.add_offsets() is ErrorCode.none
        assert producer.commit_offset(1) is ErrorCode.none
        assert producer.end() is ErrorCode.none
    values = distlog.open(f"{root}/clicks").scan(isolation="read_committed").to_table()["value"].to_pylist()
    assert values == [b"a", b"b"]
