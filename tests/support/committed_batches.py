"""Transactions in the commits of a topic, as the gateways of an object store append them; nobody coordinates."""

from __future__ import annotations

from collections.abc import Callable

from addresses import Address
from raw_batches import batch, record

import distlog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.format.record_batch import TRANSACTIONAL
from distlog.core.kafka.transactions import marker
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.gateway.config import GatewayConfig
from distlog.gateway.topics.metadata_cache import HostedTopic, MetadataCache

NOW = 1_700_000_000_000


def allowed(snapshot: Snapshot) -> None:
    """Refuses nothing."""


class Gateway:
    """Appends to the topic `clicks` of an address as one gateway does; `now_ms` is its time."""

    def __init__(self, address: Address) -> None:
        self.address, self.now_ms = address, NOW
        config = GatewayConfig(linger_ms=1, metadata_max_age_ms=0)
        storage = Storage(address.url, address.options)
        self._metadata = MetadataCache(storage, {}, lambda: self.now_ms, config)
        self._sequences = dict[tuple[int, int], int]()

    @property
    def hosted(self) -> HostedTopic:
        return self._metadata.fresh_topic("clicks")

    def send(
        self,
        producer: int,
        value: bytes,
        number: int = 0,
        *,
        key: bytes = b"k",
        fence: Callable[[Snapshot], None] = allowed,
        sequence: int | None = None,
    ) -> int:
        """Append a record of the producer's transaction, the next one it sends here; returns its offset."""
        sequence = self._sequences.get((producer, number), 0) if sequence is None else sequence
        data = batch([record(0, 0, key, value)], attributes=TRANSACTIONAL, producer=(producer, 0, sequence))
        info = self.hosted.append_later({number: (data, fence)})[number].result()
        self._sequences[producer, number] = sequence + 1
        return info.appended.first_offset

    def end(self, producer: int, number: int = 0, *, is_committed: bool) -> None:
        markers = {number: marker(producer, 0, self.now_ms, is_committed=is_committed)}
        self.hosted.end_transaction(markers, allowed)[number].result()

    def close(self) -> None:
        self._metadata.close()

    def topic(self) -> Topic:
        return distlog.open(f"{self.address.url}/clicks", storage_options=self.address.options)
