"""What a group's file costs before it is believed."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from crc32c import crc32c

from distlog.core.errors import CorruptMetadataError
from distlog.core.groups.group_log import GroupState

TOPIC = "12345678-1234-1234-1234-123456789abc"


def test_a_count_of_partitions_takes_no_memory_before_it_is_believed() -> None:
    body = {"format": 1, "version": 0, "id": TOPIC, "topic_id": TOPIC, "group": "jobs", "partitions": 3_000_000}
    text = json.dumps({**body, "owners": {}, "positions": {"0": 1}}, separators=(",", ":"))[:-1].encode()
    data = text + b',"crc32c":%d}\n' % crc32c(text)
    tracemalloc.start()
    with pytest.raises(CorruptMetadataError, match="there must be one position for each partition"):
        GroupState.decode(data, "f")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_what_an_older_library_noted_of_kafkas_clients_is_passed_over() -> None:
    body = {"format": 1, "version": 0, "id": TOPIC, "topic_id": TOPIC, "group": "jobs", "partitions": 1}
    noted = {"kafka": {"0": [5, 1]}, "forgotten": [0]}
    text = json.dumps({**body, "owners": {}, "positions": {"0": 7}, **noted}, separators=(",", ":"))[:-1].encode()
    state = GroupState.decode(text + b',"crc32c":%d}\n' % crc32c(text), "f")
    assert state.positions == {0: 7}
