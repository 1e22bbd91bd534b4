"""Two gateways append to one topic on an object store: what one has not seen yet, it checks before its commit."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Address
from gateway_pairs import SESSION_MS
from gateways import Wire, producing
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

import distlog
from distlog.core.topics import committed_batches
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer

write_bundle = committed_batches.write_bundle


def data(sequence: int, producer: int = 7) -> bytes:
    return batch([record(0, 0, b"k", b"v")], producer=(producer, 0, sequence))


def started(address: Address) -> GatewayServer:
    config = GatewayConfig(linger_ms=1, metadata_max_age_ms=50, broker_session_timeout_ms=SESSION_MS)
    return GatewayServer(address.url, port=0, config=config, storage_options=address.options)


@pytest.mark.parametrize(("sent", "told"), [(7, 1), (8, 2)])
def test_a_batch_that_another_gateway_commits_first_is_there_once(
    memory_url: Address, monkeypatch: pytest.MonkeyPatch, sent: int, told: int
) -> None:
    distlog.create(f"{memory_url.url}/clicks")
    with started(memory_url) as one, started(memory_url) as other, Wire(one) as wire, Wire(other) as elsewhere:
        assert producing(wire, data(0)).base_offset == 0

        def slow(*given: Any) -> Any:
            # its client gives up, and sends the batch by the other gateway
            monkeypatch.setattr(committed_batches, "write_bundle", write_bundle)
            written = write_bundle(*given)
            assert producing(elsewhere, data(1, sent)).error_code is ErrorCode.none
            return written

        monkeypatch.setattr(committed_batches, "write_bundle", slow)
        assert producing(wire, data(1)).base_offset == told
        assert producing(wire, data(2)).base_offset == told + 1
        assert producing(wire, data(1)).base_offset == told
    topic = distlog.open(f"{memory_url.url}/clicks", storage_options=memory_url.options)
    assert topic.end_offsets() == {0: told + 2}
