"""Batches of some KB that expand to much more are refused: a client is told to make smaller ones."""

from __future__ import annotations

import tracemalloc

import pytest
from gateways import Wire, producing
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

from distlog.core.batches.compression import GZIP, LZ4, SNAPPY, ZSTD, compress
from distlog.core.config import TopicConfig
from distlog.core.errors import RecordTooLargeError
from distlog.core.log import log_validator
from distlog.core.log.log_validator import validate
from distlog.gateway.gateway_server import GatewayServer


def expanding(codec: int, size: int) -> bytes:
    """A batch of one record of so many zeros."""
    records = [record(0, 0, None, bytes(size))]
    return batch(records, attributes=codec, section=compress(codec, records[0]))


@pytest.mark.long
@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_batch_that_expands_too_far_is_refused_and_costs_no_memory(gateway: GatewayServer, codec: int) -> None:
    with Wire(gateway) as wire:
        told = producing(wire, expanding(codec, 40 << 20))
        assert (told.error_code, told.base_offset) == (ErrorCode.message_too_large, -1)
        assert "expands to more than 32 times max.message.bytes" in told.error_message
        # one that is large, and no bomb
        assert producing(wire, expanding(codec, 20 << 20)).base_offset == 0


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_batch_that_expands_too_far_for_a_small_topic_is_refused(codec: int) -> None:
    config = TopicConfig.parse({"max.message.bytes": "200000"})
    with pytest.raises(RecordTooLargeError, match="expands to more than 32 times"):
        validate(expanding(codec, log_validator._SMALLEST_LIMIT), config, 0)


def test_a_snappy_batch_has_no_room_for_a_bomb(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        assert producing(wire, expanding(SNAPPY, 40 << 20)).error_code is ErrorCode.message_too_large
        assert producing(wire, expanding(SNAPPY, 10 << 20)).base_offset == 0


@pytest.mark.long
def test_the_memory_for_a_bomb_is_bounded_by_its_topic() -> None:
    bomb = expanding(ZSTD, 128 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(RecordTooLargeError):
            validate(bomb, TopicConfig(), 0)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert len(validate(bomb, TopicConfig.parse({"max.message.bytes": str(8 << 20)}), 1000).rows) == 1
