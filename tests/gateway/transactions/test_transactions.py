"""Transactions of Kafka's protocol on the wire: rights to write, visibility, and the code of each refusal."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from gateways import FETCH, LIST_OFFSETS, Wire, fetch_fields, fetching, open_topic, serving
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsTopic
from transacting import values_seen
from transactional_clients import RawProducer

import distlog
from distlog.core.errors import StorageError
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.groups.coordinator import Coordination

FINE = ErrorCode.none


@pytest.fixture
def root(tmp_path: Path) -> Path:
    distlog.create(str(tmp_path / "clicks"), partitions=2)
    distlog.create(str(tmp_path / "views"))
    return tmp_path


def values(root: Path, topic: str = "clicks") -> dict[int, list[bytes]]:
    return values_seen(distlog.open(str(root / topic)))


def test_a_transaction_over_two_topics_is_visible_after_its_commit(root: Path) -> None:
    with serving(root) as gateway, Wire(gateway) as wire:
        producer = RawProducer(wire)
        assert producer.init() is FINE
        assert producer.add(("clicks", 0), ("clicks", 1), ("views", 0)) == [FINE] * 3
        assert [producer.send(b"a"), producer.send(b"b", 1), producer.send(b"c", topic="views")] == [FINE] * 3
        assert (values(root), values(root, "views")) == ({0: [], 1: []}, {0: []})
        assert producer.end() is FINE
        assert (values(root), values(root, "views")) == ({0: [b"a"], 1: [b"b"]}, {0: [b"c"]})
        assert producer.add(("clicks", 0)) == [FINE]
        assert producer.send(b"d") is FINE
        assert producer.end(committed=False) is FINE
        assert values(root) == {0: [b"a"], 1: [b"b"]}


def test_a_reader_of_committed_records_stops_before_what_is_undecided(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire, Wire(gateway) as reader:
        producer = RawProducer(wire)
        producer.init()
        producer.add(("clicks", 0))
        producer.send(b"a")
        reply = fetching(reader, 0, isolation_level=1)
        assert (reply.high_watermark, reply.last_stable_offset, reply.records) == (1, 0, b"")
        assert fetching(reader, 0).records
        waiting = reader.send(
            FETCH, 12, **fetch_fields(12, [("clicks", 0, 0)], isolation_level=1, max_wait_ms=20_000)
        )
        producer.end(committed=False)
        (topic,) = reader.answer(FETCH, 12, waiting).responses
        (reply,) = topic.partitions
        assert (reply.high_watermark, reply.last_stable_offset) == (2, 2)
        assert [
            (transaction.producer_id, transaction.first_offset) for transaction in reply.aborted_transactions
        ] == [(producer.producer_id, 0)]


def test_the_latest_offset_of_a_reader_of_committed_records_is_the_last_stable_one(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        producer.init()
        producer.add(("clicks", 0))
        producer.send(b"a")
        requested = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
        topics = (ListOffsetsTopic(name="clicks", partitions=(requested,)),)
        ends = []
        for level in (0, 1):
            body = wire.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=level, topics=topics)
            ends.append(body.topics[0].partitions[0].offset)
        assert ends == [1, 0]


def test_only_partitions_of_the_transaction_take_its_batches(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        producer.init()
        assert producer.send(b"before") is ErrorCode.invalid_txn_state
        producer.add(("clicks", 0))
        assert producer.send(b"elsewhere", 1) is ErrorCode.invalid_txn_state
        assert producer.send(b"nameless", id=None) is ErrorCode.invalid_record
        assert producer.send(b"of another", id="refunds") is ErrorCode.invalid_producer_id_mapping
        assert producer.send(b"fine") is FINE
        assert producer.end() is FINE
        assert producer.send(b"behind") is ErrorCode.invalid_txn_state
    assert values_seen(open_topic(gateway)) == {0: [b"fine"], 1: []}


def test_a_second_instance_fences_the_first_and_aborts_what_it_has_open(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire, Wire(gateway) as other:
        first, second = RawProducer(wire), RawProducer(other)
        first.init()
        first.add(("clicks", 0))
        first.send(b"zombie")
        assert second.init() is FINE
        assert second.producer_id == first.producer_id
        assert second.epoch > first.epoch
        assert first.send(b"late") is ErrorCode.invalid_producer_epoch
        assert [first.end(), first.end(version=1)] == [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch]
        assert first.add(("clicks", 1)) == [ErrorCode.producer_fenced]
        assert first.add_offsets() is ErrorCode.producer_fenced
        assert first.init(again=True) is ErrorCode.producer_fenced
        second.add(("clicks", 0))
        second.send(b"alive")
        assert second.end() is FINE
    assert values_seen(open_topic(gateway))[0] == [b"alive"]


def test_a_continuing_producer_gets_the_next_epoch_once(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        producer.init()
        previous = producer.producer_id, producer.epoch
        assert producer.init(again=True) is FINE
        after = producer.producer_id, producer.epoch
        assert after == (previous[0], previous[1] + 1)
        producer.producer_id, producer.epoch = previous
        assert producer.init(again=True) is FINE
        assert (producer.producer_id, producer.epoch) == after


def test_a_repeated_end_is_accepted_and_another_one_refused(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        producer.init()
        assert producer.end() is ErrorCode.invalid_txn_state
        for committed in (True, False):
            producer.add(("clicks", 0))
            producer.send(b"v")
            assert [producer.end(committed=committed) for _ in range(2)] == [FINE] * 2
            assert producer.end(committed=not committed) is ErrorCode.invalid_txn_state
    topic = open_topic(gateway)
    assert values_seen(topic)[0] == [b"v"]
    assert topic.end_offsets()[0] == 4


def test_a_missing_partition_refuses_all_partitions(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        producer.init()
        unknown, not_attempted = ErrorCode.unknown_topic_or_partition, ErrorCode.operation_not_attempted
        assert producer.add(("clicks", 0), ("clicks", 7), ("none", 0)) == [not_attempted, unknown, unknown]
        own_value = ErrorCode.invalid_topic_exception
        assert producer.add(("__consumer_offsets", 0), ("__transaction_state", 0)) == [own_value, own_value]
        assert producer.end() is ErrorCode.invalid_txn_state


def test_invalid_ids_and_timeouts_are_refused(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        assert RawProducer(wire, "").init() is ErrorCode.invalid_request
        assert RawProducer(wire, "x" * 32_768).init() is ErrorCode.invalid_request
        for timeout_ms in (0, -1, 900_001):
            assert RawProducer(wire, timeout_ms=timeout_ms).init() is ErrorCode.invalid_transaction_timeout
        assert RawProducer(wire, timeout_ms=900_000).init() is FINE
        nobody = RawProducer(wire, "nobody")
        nobody.producer_id, nobody.epoch = 5, 0
        mapping = ErrorCode.invalid_producer_id_mapping
        assert [*nobody.add(("clicks", 0)), nobody.end(), nobody.add_offsets()] == [mapping] * 3


@pytest.mark.parametrize("version", range(5))
def test_each_version_of_init_producer_id_begins_a_producer(gateway: GatewayServer, version: int) -> None:
    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        assert [producer.init(version), producer.init(version)] == [FINE] * 2
        assert producer.epoch == 1


def test_transactions_are_listed_and_described(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        open_, idle = RawProducer(wire), RawProducer(wire, "refunds")
        for producer in (open_, idle):
            producer.init()
        open_.add(("clicks", 0), ("clicks", 1))
        (response,) = wire.ask(65, 0, transactional_ids=("payments",)).transaction_states
        assert (response.error_code, response.transaction_state, response.producer_id) == (
            FINE,
            "Ongoing",
            open_.producer_id,
        )
        assert [(topic.topic, topic.partitions) for topic in response.topics] == [("clicks", (0, 1))]
        # a transaction that has not started has the start -1, which kio writes and does not read
        wire.send(65, 0, transactional_ids=("refunds", "nobody"))
        frame = wire.frame()
        assert frame.count((-1).to_bytes(8, "big", signed=True)) == 2
        assert b"Empty" in frame
        assert ErrorCode.transactional_id_not_found.value.to_bytes(2, "big") + b"\x07nobody" in frame
        for filters, names in (((), ["payments", "refunds"]), (("Ongoing", "None"), ["payments"])):
            listed = wire.ask(66, 0, state_filters=filters, producer_id_filters=())
            assert [state.transactional_id for state in listed.transaction_states] == names
        assert listed.unknown_state_filters == ("None",)
        of_one = wire.ask(66, 1, state_filters=(), producer_id_filters=(idle.producer_id,), duration_filter=-1)
        assert [state.transactional_id for state in of_one.transaction_states] == ["refunds"]
        long = wire.ask(66, 1, state_filters=(), producer_id_filters=(), duration_filter=3_600_000)
        assert long.transaction_states == ()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (None, ["payments", "refunds"]),
        ("", ["payments", "refunds"]),
        ("pay.*", ["payments"]),
        ("pay", []),
        ("(?i)REFUNDS|payments", ["payments", "refunds"]),
        ("(", ErrorCode.invalid_regular_expression),
    ],
)
def test_transactions_are_listed_by_a_pattern_of_their_ids(
    gateway: GatewayServer, pattern: str | None, names: list[str] | ErrorCode
) -> None:
    with Wire(gateway) as wire:
        for id_ in ("payments", "refunds"):
            RawProducer(wire, id_).init()
        response = wire.plain(66, 2, duration_filter=-1, transactional_id_pattern=pattern)
    listed = [state.transactional_id for state in response.transaction_states]
    assert (response.error_code if response.error_code is not FINE else listed) == names


def test_a_list_of_transactions_is_refused_during_a_load(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Wire(gateway) as wire:
        assert wire.ask(66, 0, state_filters=(), producer_id_filters=()).error_code is FINE
        monkeypatch.setattr(Coordination, "is_loading", True)
        response = wire.ask(66, 0, state_filters=(), producer_id_filters=())
        assert response.error_code is ErrorCode.coordinator_load_in_progress


def test_a_producer_adds_its_partitions_again_where_the_storage_of_a_topic_did_not_answer(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka gives its transaction up at any code of storage. The log has the details."""
    error = f"no answer, {uuid.uuid4().hex}"

    def fail(topic: str) -> None:
        raise StorageError(error)

    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        producer.init()
        with monkeypatch.context() as patches:
            patches.setattr(gateway.broker.metadata, "client_topic", fail)
            assert producer.add(("clicks", 0)) == [ErrorCode.coordinator_not_available]
        assert f"reading a topic failed: {error}" in caplog.messages
        assert producer.add(("clicks", 0)) == [FINE]
