"""Loads the kernels that requests need before the first request, which would wait for them."""

from __future__ import annotations

import tempfile
from contextlib import closing

from distlog.core.log.partition.partition_log import PartitionLog
from distlog.core.topics.open_topic import create


def warm_up() -> None:
    """Append to a small topic on disk, and read it, in the ways of the gateway."""
    with tempfile.TemporaryDirectory() as folder:
        topic = create(f"{folder}/warm-up", 2)
        topic.append([{"key": b"k", "value": b"v", "partition": 1}])
        batch = bytes(topic.read(1, 0))
        with closing(PartitionLog(topic.handle, 0, topic.current)) as log:
            for _ in range(2):
                log.append_batches(batch)
        topic.refresh().read(0, 1)
