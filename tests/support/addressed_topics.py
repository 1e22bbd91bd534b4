"""Topics at an address of a storage, as the fixtures give it."""

from __future__ import annotations

from typing import Any

from addresses import Address
from topics import TINY

import distlog


def create(address: Address, partitions: int = 1, **config: str) -> distlog.Topic:
    settings = {**TINY, **{name.replace("_", "."): value for name, value in config.items()}}
    return distlog.create(address.url, partitions, settings, address.options)


def reopened(topic: distlog.Topic, address: Address, **options: Any) -> distlog.Topic:
    return distlog.open(topic.url, storage_options=address.options, **options)
