"""DescribeLogDirs: the root, as the one log directory, and the size of each partition's log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from kio.schema.errors import ErrorCode

from distlog.core.errors import TopicNotFoundError
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request
from distlog.gateway.topics.hosted_topic import HostedTopic


def handle(request: Request, broker: Broker) -> Fields:
    """The partitions asked for, or all."""
    result = {
        "error_code": ErrorCode.none,
        "log_dir": broker.metadata.root.url,
        "topics": list(_topics(request, broker)),
        "total_bytes": -1,
        "usable_bytes": -1,
    }
    return {"throttle_time": 0, "error_code": ErrorCode.none, "results": [result]}


def _topics(request: Request, broker: Broker) -> Iterator[Fields]:
    if request.body.topics is None:
        for hosted in broker.metadata.all_topics().values():
            yield _sizes(hosted, range(len(hosted.snapshot.partitions)))
        return
    for asked in request.body.topics:
        # as Kafka does: what is not there is left out
        with suppress(TopicNotFoundError):
            yield _sizes(broker.metadata.fresh_topic(asked.topic), asked.partitions)


def _sizes(hosted: HostedTopic, numbers: range | tuple[int, ...]) -> Fields:
    count = len(hosted.snapshot.partitions)
    partitions = [
        {
            "partition_index": number,
            "partition_size": hosted.partition(number).visible_end(committed=False).log_bytes,
            "offset_lag": 0,
            "is_future_key": False,
        }
        for number in numbers
        if 0 <= number < count
    ]
    return {"name": hosted.name, "partitions": partitions}


API = Api(35, "DescribeLogDirs", 1, 4, handle)
