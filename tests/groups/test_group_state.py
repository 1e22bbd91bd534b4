"""The memory that a group's file can allocate."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from crc32c import crc32c

from distlog.core.errors import CorruptMetadataError
from distlog.core.read.consumer_group import GroupState

TOPIC = "12345678-1234-1234-1234-123456789abc"


def test_a_claimed_count_of_partitions_allocates_no_memory() -> None:
    body = {"format": 1, "version": 0, "id": TOPIC, "topic_id": TOPIC, "group": "jobs", "partitions": 3_000_000}
    body |= {"members": [], "owners": {}, "positions": {"0": 1}}
    text = json.dumps(body, separators=(",", ":"))[:-1].encode()
    data = text + b',"crc32c":%d}\n' % crc32c(text)
    tracemalloc.start()
    with pytest.raises(CorruptMetadataError, match="each partition of the group needs one position"):
        GroupState.decode(data, "f")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
