"""WriteTxnMarkers ends a transaction that hangs, and no other (KIP-664)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gateways import Wire, serving
from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v1.request import WritableTxnMarker, WritableTxnMarkerTopic
from left_transactions import in_transaction, left_log_dir, plain
from transactional_clients import RawProducer

import distlog

LOG = plain(0, b"a") + in_transaction(1, b"b") + plain(2, b"c")


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    root = str(tmp_path / "root") if request.param == "local" else f"memory://{tmp_path.name}/root"
    distlog.adopt(left_log_dir(tmp_path, {"clicks-0": LOG}, {}), root)
    return root


def marker_code(
    wire: Wire, producer: int, epoch: int, *, number: int = 0, committed: bool = False, by: int = 0
) -> Any:
    topics = (WritableTxnMarkerTopic(name="clicks", partition_indexes=(number,)),)
    requested = WritableTxnMarker(
        producer_id=producer, producer_epoch=epoch, transaction_result=committed, topics=topics, coordinator_epoch=by
    )
    ((code,),) = [
        [partition.error_code for topic in marker.topics for partition in topic.partitions]
        for marker in wire.ask(27, 1, markers=(requested,)).markers
    ]
    return code


def committed(root: str) -> list[bytes]:
    actual: list[bytes] = (
        distlog.open(f"{root}/clicks").scan(isolation="read_committed").to_table()["value"].to_pylist()
    )
    return actual


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_hanging_transaction_ends_as_requested(root: str, is_committed: bool) -> None:
    with serving(root, linger_ms=1) as gateway, Wire(gateway) as wire:
        assert marker_code(wire, 7, 2) is ErrorCode.invalid_producer_epoch
        assert marker_code(wire, 7, 3, number=1) is ErrorCode.unknown_topic_or_partition
        assert committed(root) == [b"a"]
        assert marker_code(wire, 7, 3, committed=is_committed, by=5) is ErrorCode.none
        assert committed(root) == ([b"a", b"b", b"c"] if is_committed else [b"a", b"c"])
        assert marker_code(wire, 7, 3, committed=not is_committed, by=5) is ErrorCode.none
    assert distlog.open(f"{root}/clicks").end_offsets() == {0: 4}


def test_a_transaction_that_a_coordinator_has_is_refused(root: str) -> None:
    with serving(root, linger_ms=1) as gateway, Wire(gateway) as wire:
        producer = RawProducer(wire)
        assert producer.init() is ErrorCode.none
        assert producer.add(("clicks", 0)) == [ErrorCode.none]
        assert producer.send(b"d") is ErrorCode.none
        assert marker_code(wire, producer.producer_id, producer.epoch) is ErrorCode.invalid_txn_state
        assert marker_code(wire, 7, 3) is ErrorCode.none
        assert producer.end() is ErrorCode.none
    assert committed(root) == [b"a", b"c", b"d"]
