"""Somebody deletes a topic's folder beneath a gateway: clients are told that there is no such topic.

So nothing is acknowledged that would lie in a folder that nobody can open.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Address
from gateways import Wire, fetching, opened, producing
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

import distlog
from distlog.core.commits import commit_log
from distlog.core.storage.storage import Storage
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer

DATA = batch([record(0, 0, b"k", b"v")])


def test_on_a_disk_the_next_batch_is_refused_and_the_topic_can_be_made_anew(gateway: GatewayServer) -> None:
    folder = Path(gateway.root) / "clicks"
    with Wire(gateway) as wire:
        assert producing(wire, DATA).error_code is ErrorCode.none
        shutil.rmtree(folder)
        assert producing(wire, DATA).error_code is ErrorCode.unknown_topic_or_partition
        assert fetching(wire, 0).error_code is ErrorCode.unknown_topic_or_partition
        assert not list(folder.rglob("*.json"))
        distlog.create(str(folder), partitions=2)
        assert (producing(wire, DATA).base_offset, opened(gateway).end_offsets()) == (0, {0: 1, 1: 0})


@pytest.fixture
def on_objects(memory_url: Address) -> Iterator[GatewayServer]:
    distlog.create(f"{memory_url.url}/clicks", partitions=2)
    with GatewayServer(memory_url.url, port=0, config=GatewayConfig(linger_ms=1)) as served:
        yield served


def test_on_an_object_store_batches_are_refused_at_the_next_look(
    on_objects: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Storage(f"{on_objects.root}/clicks")
    with Wire(on_objects) as wire:
        assert producing(wire, DATA).error_code is ErrorCode.none
        topic.delete([each.name for each in topic.list("_commits")])
        monkeypatch.setattr(commit_log, "LOOK_S", 0.0)
        assert producing(wire, DATA).error_code is ErrorCode.unknown_topic_or_partition
        assert not topic.list("_commits")
