"""A transactional producer of librdkafka, with its defaults, on object stores, at two gateways."""

from __future__ import annotations

from typing import Any

import pytest
from transacting import seen

import distlog
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer

confluent_kafka = pytest.importorskip("confluent_kafka")
PATIENCE_S = 60
ABORTED, COMMITTED = range(2)


@pytest.mark.parametrize("store", ["memory_url", pytest.param("s3_url", marks=pytest.mark.s3)])
def test_a_client_commits_and_aborts_records_and_positions_on_an_object_store(
    request: pytest.FixtureRequest, store: str
) -> None:
    url, options = request.getfixturevalue(store)
    topic = distlog.create(f"{url}/clicks", 2, storage_options=options)
    config = GatewayConfig(linger_ms=1)
    with (
        GatewayServer(url, port=0, config=config, storage_options=options) as one,
        GatewayServer(url, port=0, config=config, storage_options=options) as two,
    ):
        servers = {"bootstrap.servers": f"{one.address},{two.address}"}
        producer = confluent_kafka.Producer({**servers, "transactional.id": "payments"})
        reader = confluent_kafka.Consumer({**servers, "group.id": "billing"})
        producer.init_transactions(PATIENCE_S)
        for number in (ABORTED, COMMITTED):
            transaction(producer, reader, number, is_committed=number == COMMITTED)
        assert seen(topic) == {number: [b"%d" % COMMITTED] for number in range(2)}
        (found,) = reader.committed([confluent_kafka.TopicPartition("clicks", 0)], PATIENCE_S)
        assert found.offset == COMMITTED
        reader.close()


def transaction(producer: Any, reader: Any, number: int, *, is_committed: bool) -> None:
    """A record in each partition, and a position."""
    producer.begin_transaction()
    for partition in range(2):
        producer.produce("clicks", b"%d" % number, partition=partition)
    positions = [confluent_kafka.TopicPartition("clicks", 0, number)]
    producer.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), PATIENCE_S)
    if is_committed:
        producer.commit_transaction(PATIENCE_S)
    else:
        producer.abort_transaction(PATIENCE_S)
